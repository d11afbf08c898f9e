"""Typed configurations: nested frozen dataclasses, overridden by `--set key=value` and YAML.

A change goes through `dataclasses.replace`, so that every check of the class runs again. All
changes of one call are made together, so that two fields that are only valid as a pair can be set.
The documentation of a setting is the docstring below its field.
"""

import ast
import dataclasses
import difflib
import inspect
import math
import re
import reprlib
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from toolkit.config.fields import (
    WrongTypeError,
    annotations,
    check_value,
    convert,
    describe,
    section_type,
)
from toolkit.errors import ToolkitError
from toolkit.storage.reading import quoted, regular

Config = TypeVar("Config")
LONGEST_KEY = 200  # characters
MOST_HINTS = 3
"""Largest number of settings of the same name that the error for an unknown key suggests."""
NO_EFFECT_ON_RESULTS = {"affects_results": False}
"""Metadata of a field that decides how something is computed but not the result: changing such a
field makes no stage stale."""


class ConfigError(ToolkitError):
    """Raised for an unknown key, a value of the wrong type, or an invalid combination of values."""


def load_config(
    profile: Callable[[], Config],
    folder: Path,
    yaml_file: Path | None = None,
    overrides: Sequence[str] = (),
) -> Config:
    """Return a profile's configuration, changed by a YAML file and then by the overrides.

    If the class has a method `refuse_contradictions`, which may raise a ValueError, it is called.

    Args:
      profile: function that returns the configuration.
      folder: base of relative paths in the profile.
      yaml_file: see `load_yaml`.
      overrides: see `apply_overrides`; relative paths start from the working directory.

    Raises:
      ConfigError: an unknown key, or a value that does not fit.
    """
    # Each source has its own base of relative paths: the recipe, the file, the working directory.
    config = resolve_paths(profile(), folder)
    if yaml_file is not None:
        config = load_yaml(config, yaml_file)
    config = apply_overrides(config, overrides, Path.cwd())
    if hasattr(config, "refuse_contradictions"):
        try:
            config.refuse_contradictions()
        except ValueError as error:
            raise ConfigError(str(error)) from error
    return config


def apply_overrides(config: Config, overrides: Sequence[str], base: Path) -> Config:
    """Return `config` with each "key=value" applied; later ones win.

    Args:
      config: a dataclass, possibly of dataclasses.
      overrides: for example ["ce.epochs=4", "corpus.root=../speech"]. Tuples and lists are given
        with commas or as JSON; `none` sets an optional field to None.
      base: the folder that relative paths are relative to.

    Raises:
      ConfigError: a key is unknown or a value does not fit; the message names the key, and the
        nearest known one or the expected type.
    """
    values: dict[str, Any] = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise ConfigError(f"`{override}` is not of the form key=value, e.g. {_example(config)}")
        values[key.strip()] = text
    return _apply(config, values, base)


def load_yaml(config: Config, path: Path, option: str = "--config ") -> Config:
    """Return `config` with a YAML file's values; relative paths start from the file's folder.

    Args:
      config: the settings to change.
      path: the file.
      option: the option that precedes the file name in messages; "" if the file is an argument.

    Raises:
      ConfigError: the file cannot be read, or as for `apply_overrides`; the message names the file.
    """
    named = f"{option}{path}"
    try:
        mapping = read_yaml(path)
    except OSError as error:
        raise ConfigError(f"cannot read {named}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{named} is {error}") from error
    if mapping is None:
        return config
    if not isinstance(mapping, Mapping):
        content = reprlib.repr(mapping)
        raise ConfigError(f"{named}: expected `key: value` lines, found {content}")
    try:
        values: dict[str, Any] = {}
        for key, value in _leaves(config, mapping):
            if key in values:
                raise ConfigError(
                    f"`{key}` is given twice, in a section and by its full name: remove one of them"
                )
            values[key] = value
        return _apply(config, values, Path(path).absolute().parent)
    except ConfigError as error:
        raise ConfigError(f"{named}: {error}") from error


def resolve_paths(config: Config, base: Path) -> Config:
    """Return `config` with relative `Path`s made absolute, starting from the folder `base`."""

    def resolved(value: Any) -> Any:
        if isinstance(value, Path):
            return base / value
        if isinstance(value, tuple | list):
            return type(value)(resolved(item) for item in value)
        return resolve_paths(value, base) if _is_section(value) else value

    changes = {field.name: resolved(getattr(config, field.name)) for field in _fields(type(config))}
    return dataclasses.replace(config, **changes)


def to_plain(value: Any) -> Any:
    """Convert a configuration to JSON-compatible data: paths as strings, tuples as lists."""
    return _to_json(value, every_field=True)


def result_parameters(value: Any) -> Any:
    """Return the settings that affect results, as JSON-compatible data.

    Fields marked `NO_EFFECT_ON_RESULTS` are left out.
    """
    return _to_json(value, every_field=False)


def _to_json(value: Any, every_field: bool) -> Any:
    """Convert a value of a configuration to JSON-compatible data."""
    inner = partial(_to_json, every_field=every_field)
    if _is_section(value):
        return {
            field.name: inner(getattr(value, field.name))
            for field in _fields(type(value))
            if every_field or field.metadata != NO_EFFECT_ON_RESULTS
        }
    if isinstance(value, Mapping):
        return {str(key): inner(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [inner(item) for item in value]
    # Sets have no order of their own; the digest of the parameters must not depend on it.
    if isinstance(value, set | frozenset):
        return sorted(inner(item) for item in value)
    if isinstance(value, Enum):
        return inner(value.value)
    if isinstance(value, Path):
        return str(value)
    # JSON has no infinity.
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{value!r} has no JSON form; configurations hold plain values only")


def flatten(data: Any, prefix: str = "") -> dict[str, Any]:
    """Return {"ce.epochs": 4, ...} for the nested plain mapping {"ce": {"epochs": 4}, ...}."""
    if not isinstance(data, Mapping) or (prefix and not data):
        return {prefix: data}
    flat: dict[str, Any] = {}
    for key, value in data.items():
        flat |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def _example(config: Any) -> str:
    """Return an override `key=value` of this configuration, as an example for a message."""
    flat = flatten(to_plain(config))
    numbers = [key for key, value in flat.items() if type(value) in (int, float)]
    key = next(iter([*numbers, *flat]), "key")
    return f"{key}={flat.get(key)}"


def _is_section(value: Any) -> bool:
    """Return whether a value is an instance of a dataclass."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _fields(section: Any) -> list[dataclasses.Field]:
    """Return the fields that can be set."""
    return [field for field in dataclasses.fields(section) if field.init]


def _leaves(config: Any, mapping: Mapping, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the (dotted key, value) of each setting in nested mappings."""
    for name, value in mapping.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and _names_a_section(config, key):
            yield from _leaves(config, value, f"{key}.")
        else:
            yield key, value


def _names_a_section(config: Any, key: str) -> bool:
    """Return whether a dotted key names a dataclass rather than a single setting."""
    for name in key.split("."):
        is_field = name in _hints(config)
        config = _section(config, name) if is_field else None
        if config is None:
            # An unknown key counts as a section, so that the error names the leaf below it.
            return not is_field
    return True


def _hints(section: Any) -> dict[str, Any]:
    """Return the annotations of a section's fields."""
    return annotations(section if isinstance(section, type) else type(section))


def _section(section: Any, name: str) -> Any:
    """Return the section in a field: its value if it is set, else its type; None if no section."""
    value = getattr(section, name, None)
    return value if _is_section(value) else section_type(_hints(section)[name])


def _apply(config: Config, values: Mapping[str, Any], base: Path) -> Config:
    """Return `config` with new values, given by dotted key, which are converted and checked."""
    # 1. Convert and check each value alone.
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *sections, leaf = key.split(".")
        annotation = _annotation(config, key)
        try:
            converted = convert(value, annotation, base)
        except WrongTypeError as error:
            expected = describe(annotation)
            text = quoted(value) if isinstance(value, str) else reprlib.repr(value)
            raise ConfigError(f"`{key}` expects {expected}, not {text}{error}") from error
        try:
            check_value(leaf, converted, annotation)
        except ValueError as error:
            raise ConfigError(f"`{key}`: {error}") from error
        # 2. Collect them in a tree of sections: a section's check sees its values together.
        node = tree
        for name in sections:
            node = node.setdefault(name, {})
            if isinstance(node, _Leaf):
                raise ConfigError(
                    f"both `{key}` and the whole section `{name}` are set: set only one of them"
                )
        node[leaf] = _Leaf(converted)
    return _rebuild(config, tree, "")


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """A converted value in the tree of sections."""

    value: Any


def _annotation(config: Any, key: str) -> Any:
    """Return the annotation of the setting at the dotted `key`."""
    section, annotation = config, None
    names = key.split(".")
    for depth, name in enumerate(names):
        fields = [] if section is None else [field.name for field in _fields(section)]
        if name not in fields:
            raise _unknown(config, key, ".".join(names[:depth]), name, fields)
        annotation = _hints(section)[name]
        section = _section(section, name)
    return annotation


def _unknown(config: Any, key: str, prefix: str, name: str, fields: list[str]) -> ConfigError:
    """Make the error for an unknown key, with similar keys as a hint."""
    dot = f"{prefix}." if prefix else ""
    if len(key) > LONGEST_KEY:
        key, name = f"{key[:LONGEST_KEY]}...", name[:LONGEST_KEY]
    # Hints: a similar name in the section, the same name elsewhere, else a similar dotted key.
    near = [f"{dot}{match}" for match in difflib.get_close_matches(name, fields, n=1)]
    leaves = list(all_keys(config))
    same_leaf = [leaf for leaf in leaves if leaf.split(".")[-1] == key.split(".")[-1]]
    near = near or same_leaf[:MOST_HINTS] or difflib.get_close_matches(key, leaves, n=1)
    hint = f"; did you mean {' or '.join(f'`{leaf}`' for leaf in near)}?" if near else ""
    where = f"`{prefix}` has" if prefix else "known keys:"
    listing = f" ({where} {', '.join(fields)})" if fields else f" (`{prefix}` has no keys below it)"
    return ConfigError(f"unknown key `{key}`{hint}{listing}")


def all_keys(config: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted key of every setting, in the order of the fields."""
    for field in _fields(config):
        section = _section(config, field.name)
        if section is None:
            yield f"{prefix}{field.name}"
        else:
            yield from all_keys(section, f"{prefix}{field.name}.")


def _rebuild(section: Any, tree: Mapping[str, Any], prefix: str) -> Any:
    """Return a copy of a section with new values; nested sections are copied first."""
    changes = {}
    hints = _hints(section)
    for name, node in tree.items():
        if isinstance(node, _Leaf):
            changes[name] = node.value
            continue
        inner = getattr(section, name)
        if inner is None:  # an optional section that this profile leaves out
            inner = _default(section_type(hints[name]), f"{prefix}{name}")
        changes[name] = _rebuild(inner, node, f"{prefix}{name}.")
    try:
        return dataclasses.replace(section, **changes)
    except (ValueError, TypeError, ArithmeticError) as error:
        # The section's check refused the combination: name all settings changed in it.
        keys = ", ".join(f"`{prefix}{name}`" for name in changes)
        raise ConfigError(f"{keys}: {error}") from error


def _default(section: type, key: str) -> Any:
    """Make a section with its default values."""
    try:
        return section()
    except TypeError as error:
        raise ConfigError(
            f"the section `{key}` is not set in this profile and has no default values"
        ) from error


_NOT_DECIMAL = re.compile(r"[-+]?0[0-9_]+|[^:]*:.*")
"""Numbers that YAML reads as octal, such as 010, or in base 60, such as 1:30."""


@cache
def _plain_loader() -> Any:
    """Return a safe YAML loader class; import yaml only when a file is read."""
    import yaml

    class PlainLoader(yaml.SafeLoader):
        """Refuses repeated keys, and aliases, which can expand a short file to gigabytes.

        Also refuses numbers that look decimal, but that YAML reads as octal (010) or to base 60
        (1:30).
        """

        def compose_node(self, parent: Any, index: Any) -> Any:
            event = self.peek_event()
            if isinstance(event, yaml.events.AliasEvent):
                raise yaml.composer.ComposerError(
                    None, None, f"`*{event.anchor}` is an alias: write out the value instead",
                    event.start_mark,
                )  # fmt: skip
            return super().compose_node(parent, index)

        def construct_number(self, node: Any) -> Any:
            if _NOT_DECIMAL.fullmatch(node.value):
                raise yaml.constructor.ConstructorError(
                    None, None, f"`{node.value[:80]}` is not decimal in YAML: write a plain "
                    "number, or the text in quotation marks", node.start_mark,
                )  # fmt: skip
            if node.tag.endswith(":int"):
                return super().construct_yaml_int(node)
            return super().construct_yaml_float(node)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict:
            keys = set()
            for key, _ in node.value:
                if key.value in keys and isinstance(key.value, str):
                    raise yaml.constructor.ConstructorError(
                        None, None, f"`{key.value[:80]}` is given twice", key.start_mark
                    )
                # A key that is a list or a mapping cannot be compared here.
                keys.add(key.value if isinstance(key.value, str) else id(key))
            return super().construct_mapping(node, deep)

    for tag in ("int", "float"):
        PlainLoader.add_constructor(f"tag:yaml.org,2002:{tag}", PlainLoader.construct_number)
    return PlainLoader


def read_yaml(path: Path) -> Any:
    """Read a UTF-8 file of YAML or JSON.

    Raises:
      ValueError: it is not plain data; the message says where.
      OSError: it cannot be read.
    """
    import yaml

    try:
        return yaml.load(regular(path).read_text(encoding="utf-8-sig"), _plain_loader())
    except (yaml.YAMLError, RecursionError, ValueError, TypeError, ArithmeticError) as error:
        problem = "nested too deeply" if isinstance(error, RecursionError) else error
        raise ValueError(f"not plain YAML: {problem}") from error


_CODES = re.compile(r" \((?:[ABC]\d{1,2}(?:, |-)?)+\)")
"""References to items of the papers, such as (C18), which are meant for readers of the code."""


@dataclass(frozen=True)
class Setting:
    """A setting of a configuration, with its type, default and description."""

    key: str
    """Dotted key, as for `--set`."""
    value: Any
    """The value as plain data, like `default`."""
    default: Any
    """The default value in its class."""
    expects: str
    """The type in words."""
    text: str
    """Description; empty if the field has no docstring."""


def list_settings(config: Any, prefix: str = "") -> Iterator[Setting]:
    """Yield every setting of a configuration in the order of the fields.

    An optional section that is not set is one setting with the value None.
    """
    hints, texts = _hints(config), field_texts(type(config))
    defaults = {field.name: _field_default(field) for field in dataclasses.fields(config)}
    for field in dataclasses.fields(config):
        if not field.init:
            continue
        key, value = f"{prefix}{field.name}", getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            default = defaults[field.name]
            leaves = flatten(to_plain(default)) if dataclasses.is_dataclass(default) else {}
            for inner in list_settings(value, f"{key}."):
                leaf = inner.key.removeprefix(f"{key}.")
                yield dataclasses.replace(inner, default=leaves.get(leaf, inner.default))
        else:
            default = defaults[field.name]
            default = None if default is dataclasses.MISSING else to_plain(default)
            expects = describe(hints[field.name])
            yield Setting(key, to_plain(value), default, expects, texts.get(field.name, ""))


def _field_default(field: dataclasses.Field) -> Any:
    """Return the default value of a field."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


@cache
def field_texts(kind: type) -> dict[str, str]:
    """Return the docstrings of a dataclass's fields, own and inherited, each as one line.

    References to items of the papers are removed.
    """
    texts: dict[str, str] = {}
    # Base classes first: a class may replace the text of an inherited field.
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(body, ast.ClassDef)
        # A field's docstring is the string expression after its annotated assignment.
        for field, text in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
            ):
                texts[field.target.id] = _CODES.sub("", " ".join(text.value.value.split()))
    return texts
