"""Fields of settings: their declared ranges, and the conversion of values to their types.

```python
@dataclass(frozen=True)
class TreeConfig(Settings):
    leaves: Annotated[int, Range(1, 10_000_000)] = 2000
    smoothing: Share = 0.1
    kind: Literal["full", "tied"] = "full"

TreeConfig(smoothing=2)    # ValueError: `smoothing` is 2 but must be from 0 to 1
```

Text comes from the command line, plain data from YAML and JSON. The upper limits of sizes are far
above any useful value: a larger one is a typing error or an attack on the machine's memory. Several
large settings together may still exceed the memory.
"""

import dataclasses
import json
import math
import types
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from toolkit.errors import ToolkitError
from toolkit.storage.reading import quoted, read_json, reading, reason

LONGEST_INTEGER = 1 << 63


@dataclass(frozen=True)
class Range:
    """The numbers that a field accepts, as in `Annotated[float, Range(0, below=1)]`."""

    least: float | None = None
    """Smallest value; None: no limit."""
    most: float | None = None
    """Largest value."""
    above: float | None = None
    """Limit that the value must exceed, instead of `least`."""
    below: float | None = None
    """Limit that the value must stay below, instead of `most`."""

    def __contains__(self, number: float) -> bool:
        return (
            (self.least is None or number >= self.least)
            and (self.most is None or number <= self.most)
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
        )

    def __str__(self) -> str:
        if self.least is not None and self.most is not None:
            return f"from {_number(self.least)} to {_number(self.most)}"
        limits = {"at least": self.least, "above": self.above}
        limits |= {"at most": self.most, "below": self.below}
        parts = [
            f"{words} {_number(limit)}"
            for words, limit in limits.items()
            if limit is not None and math.isfinite(limit)
        ]
        return " and ".join([*parts, *["finite"] * (self.below == math.inf)])


def _number(limit: float) -> str:
    """Format a limit of a range."""
    return f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"


PositiveInt = Annotated[int, Range(1)]
NonNegativeInt = Annotated[int, Range(0)]
Positive = Annotated[float, Range(above=0)]
NonNegative = Annotated[float, Range(0)]
Finite = Annotated[float, Range(above=-math.inf, below=math.inf)]
FinitePositive = Annotated[float, Range(above=0, below=math.inf)]
Share = Annotated[float, Range(0, 1)]
"""Share or probability, from 0 to 1."""
PositiveShare = Annotated[float, Range(above=0, most=1)]
"""Share above 0, up to 1."""
ShareBelowOne = Annotated[float, Range(0, below=1)]
"""Share from 0 and below 1, such as a dropout or a momentum."""
ProperShare = Annotated[float, Range(above=0, below=1)]
"""Share above 0 and below 1."""

LayerSize = Annotated[int, Range(1, 1 << 16)]
"""Units, channels or dimensions of a layer."""
NumLayers = Annotated[int, Range(1, 100)]
NumContextFrames = Annotated[int, Range(0, 1_000_000)]
BatchSize = Annotated[int, Range(1, 1_000_000)]
"""Chunks, utterances or words of a minibatch."""
BatchFrames = Annotated[int, Range(1, 10_000_000)]
NumEpochs = Annotated[int, Range(0, 1_000_000)]
"""Epochs, passes, iterations or rounds; 0: none."""
NumClasses = Annotated[int, Range(1, 10_000_000)]
"""Senones, Gaussians, word pieces."""
ListLength = Annotated[int, Range(1, 1_000_000)]
"""Hypotheses of an n-best list or a beam, samples of a loss."""
NumThreads = Annotated[int, Range(0, 100_000)]
"""Threads, processes or slots of a queue; the field says what 0 means."""
SamplingRate = Annotated[int, Range(1, 1_000_000)]
"""Samples per second."""


class Settings:
    """Base class of settings, which are frozen dataclasses.

    A new object is checked: every number must be in the range of its field, every choice must be in
    its `Literal`, and no number may be NaN. Then `check` is called.

    Raises:
      ValueError: a value is not allowed; the message names the field, the value and the range.
    """

    def __post_init__(self) -> None:
        check_fields(self)
        self.check()

    def check(self) -> None:
        """Raise a ValueError if fields contradict each other."""


def check_fields(settings: Any) -> None:
    """Check every field of a dataclass against its annotation; see `check_value`."""
    for name, annotation in annotations(type(settings)).items():
        check_value(name, getattr(settings, name), annotation)


def check_value(name: str, value: Any, annotation: Any) -> None:
    """Check a value against the ranges and choices of an annotation.

    Args:
      name: name of the field, for the message.
      value: a value of the annotated type; other types are not refused here.
      annotation: with `Annotated`, as `get_type_hints(include_extras=True)` returns it.

    Raises:
      ValueError: the value or an item of it is out of range, not among the choices, or NaN.
    """
    if isinstance(value, float) and math.isnan(value):
        raise ValueError(f"`{name}` is nan but must be a number")
    _refuse_problem(name, value, annotation)


def _refuse_problem(name: str, value: Any, annotation: Any) -> None:
    """Raise a ValueError that names the field if a value violates its annotation."""
    problem = _problem(value, annotation)
    if problem is not None:
        raise ValueError(f"`{name}` {problem}")


def _problem(value: Any, annotation: Any) -> str | None:
    """Return why a value is invalid, such as "is 2 but must be at most 1"; None if it is valid."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        kind, *constraints = arguments
        # bool is a subclass of int, but has no range.
        if isinstance(value, int | float) and not isinstance(value, bool):
            for limits in constraints:
                if isinstance(limits, Range) and value not in limits:
                    return f"is {_short(value)} but must be {limits}"
        return _problem(value, kind)
    if isinstance(value, int) and abs(value) >= LONGEST_INTEGER:
        return f"is {_short(value)} but must be at most {LONGEST_INTEGER - 1:,}"
    if origin is Literal:
        # By type as well, since 1 == True == 1.0.
        if any(value == option and type(value) is type(option) for option in arguments):
            return None
        options = [f"{option!r}" for option in arguments]
        choices = " or ".join(filter(None, (", ".join(options[:-1]), options[-1])))
        text = quoted(value) if isinstance(value, str) else _short(value)
        return f"is {text} but must be {choices}"
    if _is_union(annotation):
        # One of the members must accept the value; members of other types are ignored.
        members = [member for member in arguments if _is_instance(value, member)]
        problems = [_problem(value, member) for member in members]
        return None if None in problems else next(iter(problems), None)
    if origin in (tuple, list) and isinstance(value, tuple | list):
        kinds = arguments
        if _is_variadic(annotation):
            kinds = arguments[:1] * len(value)
        for item, kind in zip(value, kinds, strict=False):
            if isinstance(item, float) and math.isnan(item):
                return "has a value that is nan but must be a number"
            problem = _problem(item, kind)
            if problem is not None:
                return f"has a value that {problem}"
    return None


def _is_instance(value: Any, member: Any) -> bool:
    """Return whether a value's type alone allows a member of a union."""
    origin = get_origin(member)
    if origin is Annotated:
        return _is_instance(value, get_args(member)[0])
    if origin is Literal:
        return any(type(value) is type(option) for option in get_args(member))
    kind = origin or member
    if kind is float:
        return isinstance(value, int | float)
    return not isinstance(kind, type) or isinstance(value, kind)


def _short(value: Any) -> str:
    """Return a value's representation, shortened for a message."""
    is_long = isinstance(value, int) and abs(value) >= LONGEST_INTEGER
    return "an integer of over 63 bits" if is_long else str(value)


T = TypeVar("T")

_PLAIN = (str, int, float, bool)
TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


class WrongTypeError(ValueError):
    """Raised for a value of the wrong type; its text, if any, is appended to the message."""


def section_type(annotation: Any) -> type | None:
    """Return the dataclass that an annotation is or that its union contains; None without one."""
    members = get_args(annotation) if _is_union(annotation) else (annotation,)
    sections = [m for m in members if isinstance(m, type) and dataclasses.is_dataclass(m)]
    return sections[0] if sections else None


def describe(annotation: Any) -> str:
    """Describe an annotation in words, for an error message."""
    if get_origin(annotation) is Annotated:
        kind, *constraints = get_args(annotation)
        limits = [str(limits) for limits in constraints if isinstance(limits, Range)]
        return " ".join([describe(kind), *(f"({text})" for text in limits)])
    if _is_union(annotation):
        return " or ".join(describe(member) for member in get_args(annotation))
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(str(option) for option in get_args(annotation))
    if get_origin(annotation) in (tuple, list):
        inner = [describe(a) for a in get_args(annotation) if a is not Ellipsis]
        kind = "a list of" if _is_variadic(annotation) else f"{len(inner)} values:"
        return f"{kind} {', '.join(inner)}"
    if annotation is type(None):
        return "none"
    if section_type(annotation):
        names = ", ".join(field.name for field in dataclasses.fields(annotation))
        return f"a section (set its fields: {names})"
    return getattr(annotation, "__name__", str(annotation))


def from_plain(kind: type[T], data: Any) -> T:
    """Make a dataclass from parsed JSON that was written from `dataclasses.asdict`.

    Raises:
      ValueError: a field is missing, unknown, of the wrong type or refused by the class.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"{kind.__name__} is not a mapping")
    hints = annotations(kind)
    values = {}
    for name, value in data.items():
        if name not in hints:
            raise ValueError(f"{kind.__name__} has no field {quoted(str(name))}")
        # A mapping is the content of a nested dataclass, which is made and checked first.
        section = section_type(hints[name])
        if section is not None and isinstance(value, Mapping):
            values[name] = from_plain(section, value)
            continue
        try:
            values[name] = convert(value, hints[name], Path())
        except WrongTypeError as error:
            _refuse_problem(name, value, hints[name])  # names the choices, if the type is right
            raise ValueError(f"{name!r} is not {describe(hints[name])}{error}") from error
        # The class decides about NaN: records of a training run may hold it, settings may not.
        _refuse_problem(name, values[name], hints[name])
    try:
        return kind(**values)
    except (TypeError, ArithmeticError) as error:
        raise ValueError(str(error)) from error


def read_plain(path: Path, kind: type[T], error: type[ToolkitError], advice: str) -> T:
    """Read a dataclass from a JSON file; see `from_plain`, and `reading` for the errors.

    NaN is refused: Python's JSON can express it, and comparisons in a class do not detect it.
    """
    with reading(path, error, advice):
        data = read_json(path)
        if _has_nan(data):
            raise ValueError("a value is NaN but must be a number")
        return from_plain(kind, data)


def _has_nan(data: Any) -> bool:
    """Return whether NaN occurs anywhere in plain data."""
    if isinstance(data, Mapping):
        return any(map(_has_nan, data.values()))
    if isinstance(data, list):
        return any(map(_has_nan, data))
    return isinstance(data, float) and math.isnan(data)


@cache
def annotations(kind: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields by name, with their ranges."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def convert(value: Any, annotation: Any, base: Path) -> Any:
    """Convert a value to the annotated type.

    Args:
      value: text from the command line, or plain data from YAML. Text is parsed ("1e-3" is also
        text to YAML); other data must already be of the type, except that lists become tuples,
        integers become floats and strings become paths.
      annotation: bool, int, float, str, Path, Literal, None, a union, tuple, list, dict or Any;
        a range is not checked here.
      base: the folder that relative paths are relative to.

    Raises:
      WrongTypeError: when the value does not fit.
    """
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if annotation is Any or (annotation is type(value) and annotation in _PLAIN):
        return value
    if _is_union(annotation):
        return _convert_union(value, annotation, base)
    origin = get_origin(annotation) or annotation
    if origin is Literal:
        for option in get_args(annotation):
            if value == option and type(value) is type(option):
                return option
            # Text of the command line: "3" means the option 3.
            if isinstance(value, str) and value == str(option):
                return option
        raise WrongTypeError
    if origin in (tuple, list):
        return origin(_convert_items(value, annotation, base))
    if origin in (dict, Mapping):
        data = _json(value) if isinstance(value, str) else value
        if not isinstance(data, Mapping):
            raise WrongTypeError
        key_type, item_type = get_args(annotation) or (Any, Any)
        return {
            convert(key, key_type, base): convert(item, item_type, base)
            for key, item in data.items()
        }
    if annotation is type(None):
        if value is None or (isinstance(value, str) and value.lower() in ("none", "null")):
            return None
        raise WrongTypeError
    return _convert_scalar(value, annotation, base)


def _convert_scalar(value: Any, kind: Any, base: Path) -> Any:
    """Convert a value to a number, string, bool or path."""
    if kind is Path and isinstance(value, str | Path) and str(value) and "\0" not in str(value):
        try:
            return base / Path(value).expanduser()
        except RuntimeError as error:  # ~nobody
            raise WrongTypeError(f" ({error})") from error
    if kind is str and isinstance(value, str):
        return value
    if kind is bool and isinstance(value, str) and value.lower() in TRUE + FALSE:
        return value.lower() in TRUE
    if kind is bool and isinstance(value, bool):
        return value
    # By `type`, since bool is a subclass of int; a float does not become an int.
    if kind in (int, float) and type(value) in (str, int, kind):
        try:
            return kind(value)
        except (ValueError, OverflowError) as error:
            raise WrongTypeError from error
    raise WrongTypeError


def _convert_union(value: Any, annotation: Any, base: Path) -> Any:
    """Convert a value to the first member of a union that accepts it."""
    # `str` and `Path` accept any text, so they are tried last.
    members = sorted(get_args(annotation), key=lambda m: (m in (str, Path), m is not type(None)))
    for member in members:
        try:
            return convert(value, member, base)
        except WrongTypeError:
            continue
    raise WrongTypeError


def _convert_items(value: Any, annotation: Any, base: Path) -> list:
    """Convert the items of a list or tuple, which may be given as text."""
    if isinstance(value, str):
        # "1,2,3" or JSON; an empty text is an empty list.
        text = value.strip()
        is_json = text.startswith("[")
        items = _json(text) if is_json else [item.strip() for item in text.split(",")]
        items = [] if not text else items
        if not is_json and "" in items:
            raise WrongTypeError(" (an item between commas is empty)")
    else:
        items = value
    if not isinstance(items, list | tuple):
        raise WrongTypeError
    # tuple[int, ...] and list[int]: one type for all items; tuple[int, str]: one for each.
    inner = get_args(annotation) or (Any, Ellipsis)
    if _is_variadic(annotation) or inner[-1] is Ellipsis:
        inner = (inner[0],) * len(items)
    if len(inner) != len(items):
        raise WrongTypeError(f" ({len(items)} values)")
    return [convert(item, kind, base) for item, kind in zip(items, inner, strict=True)]


def _is_union(annotation: Any) -> bool:
    """Return whether an annotation is a union of types."""
    return get_origin(annotation) in (Union, types.UnionType)


def _is_variadic(annotation: Any) -> bool:
    """Return whether an annotation is a list, or a tuple of any length."""
    return get_origin(annotation) is list or get_args(annotation)[1:] == (Ellipsis,)


def _json(text: str) -> Any:
    """Parse a text as JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WrongTypeError(f" ({reason(error)})") from error
