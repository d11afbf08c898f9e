"""The documentation of settings, from the docstrings below the fields of their dataclasses."""

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, get_type_hints

from toolkit.config.convert import describe
from toolkit.config.settings import flatten, to_plain

_CODES = re.compile(r" \((?:[ABC]\d{1,2}(?:, |-)?)+\)")
"""Items of the papers, which are sources for readers of the code."""


@dataclass(frozen=True)
class Setting:
    """One setting of a configuration."""

    key: str
    """Dotted, as `--set` takes it."""
    value: Any
    """As plain data, like `default`."""
    default: Any
    """The value that its class gives it."""
    expects: str
    """The type in words."""
    text: str
    """What it is; empty where the class does not say."""


def settings(config: Any, prefix: str = "") -> Iterator[Setting]:
    """Yield every setting of a configuration, a dataclass of dataclasses, in order of the fields.

    An optional section that is not set is one setting with the value None.
    """
    hints, texts = get_type_hints(type(config)), field_texts(type(config))
    defaults = {field.name: _default(field) for field in dataclasses.fields(config)}
    for field in dataclasses.fields(config):
        if not field.init:
            continue
        key, value = f"{prefix}{field.name}", getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            default = defaults[field.name]
            known = flatten(to_plain(default)) if dataclasses.is_dataclass(default) else {}
            for inner in settings(value, f"{key}."):
                own = inner.key.removeprefix(f"{key}.")
                yield dataclasses.replace(inner, default=known.get(own, inner.default))
        else:
            default = defaults[field.name]
            plain = None if default is dataclasses.MISSING else to_plain(default)
            expects = describe(hints[field.name])
            yield Setting(key, to_plain(value), plain, expects, texts.get(field.name, ""))


def _default(field: dataclasses.Field) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


@cache
def field_texts(kind: type) -> dict[str, str]:
    """Return the docstrings of a dataclass's fields, and of those that it inherits, as one line.

    Items of the papers are left out.
    """
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
            ):
                found[field.target.id] = _CODES.sub("", " ".join(text.value.value.split()))
    return found
