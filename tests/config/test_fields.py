from pathlib import Path
from typing import Any, Literal, Optional, Union

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.config.fields import WrongTypeError, convert, describe

BASE = Path("/base")


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        ("4", int, 4),
        ("-1", int, -1),
        (4, float, 4.0),
        ("1e-3", float, 1e-3),
        ("inf", float, float("inf")),
        ("yes", bool, True),
        ("False", bool, False),
        ("0", bool, False),
        (True, bool, True),
        ("4", str, "4"),
        ("", str, ""),
        ("a/b", Path, BASE / "a/b"),
        ("/a", Path, Path("/a")),
        ("none", Optional[int], None),  # noqa: UP045
        ("null", Path | None, None),
        ("7", int | None, 7),
        ("7", Union[str, int], 7),  # noqa: UP007
        ("x", str | int, "x"),
        ("a", Path | None, BASE / "a"),
        ("fbank", Literal["fbank", "plp"], "fbank"),
        ("2", Literal[1, 2], 2),
        ("1,2,3", tuple[int, ...], (1, 2, 3)),
        ("a, b", list[str], ["a", "b"]),
        ('["a,b", "c"]', tuple[str, ...], ("a,b", "c")),
        ("", tuple[str, ...], ()),
        ("[]", list[int], []),
        ("5", tuple[int, ...], (5,)),
        ("3,0.5", tuple[int, float], (3, 0.5)),
        ([1, 2], tuple[int, ...], (1, 2)),
        ("a,b", tuple[Path, ...], (BASE / "a", BASE / "b")),
        ("[[1, 2], [3]]", tuple[tuple[int, ...], ...], ((1, 2), (3,))),
        ('{"a": 1}', dict[str, float], {"a": 1.0}),
        ({"a": "1"}, dict[str, int], {"a": 1}),
        ({"a": [1]}, Any, {"a": [1]}),
    ],
)
def test_values_take_the_annotated_type(value, annotation, expected):
    converted = convert(value, annotation, BASE)
    assert converted == expected
    assert type(converted) is type(expected)


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        ("four", int),
        ("4.5", int),
        (4.5, int),
        (True, int),
        (True, float),
        (1, bool),
        ("maybe", bool),
        (4, str),
        (True, str),
        ("", Path),
        (3, Path),
        (None, int),
        ("mfcc", Literal["fbank", "plp"]),
        (True, Literal[1, 2]),
        ("1,x", tuple[int, ...]),
        ("1,2,3", tuple[int, int]),
        ("a,", tuple[str, ...]),
        ("a,,b", list[str]),
        (",", tuple[Path, ...]),
        ("[1, 2", tuple[int, ...]),
        (3, tuple[int, ...]),
        ("[1]", dict[str, int]),
        ("{", dict[str, int]),
        ("x", int | None),
    ],
)
def test_values_of_another_type_are_refused(value, annotation):
    with pytest.raises(WrongTypeError):
        convert(value, annotation, BASE)


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=False)))
def test_lists_of_numbers_survive_being_written_with_commas(numbers):
    text = ",".join(repr(number) for number in numbers)
    assert convert(text, tuple[float, ...], BASE) == tuple(numbers)


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (int, "int"),
        (int | None, "int or none"),
        (Literal["a", "b"], "one of a, b"),
        (tuple[int, ...], "a list of int"),
        (tuple[int, float], "2 values: int, float"),
    ],
)
def test_types_are_described_in_words(annotation, words):
    assert describe(annotation) == words
