from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Union

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.config.fields import (
    Finite,
    FinitePositive,
    LayerSize,
    NonNegative,
    Positive,
    PositiveInt,
    ProperShare,
    Range,
    Settings,
    Share,
    ShareBelowOne,
    WrongTypeError,
    convert,
    describe,
    from_plain,
)

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
        (PositiveInt, "int (at least 1)"),
        (LayerSize | None, "int (from 1 to 65,536) or none"),
        (tuple[Positive, ...], "a list of float (above 0)"),
        (ShareBelowOne, "float (at least 0 and below 1)"),
        (Finite, "float (finite)"),
        (FinitePositive, "float (above 0 and finite)"),
    ],
)
def test_types_are_described_in_words(annotation, words):
    assert describe(annotation) == words


@dataclass(frozen=True)
class NetworkConfig(Settings):
    layers: PositiveInt = 2
    hidden: LayerSize = 512
    dropout: ShareBelowOne = 0.0
    shares: tuple[ProperShare, ...] = ()
    span: tuple[NonNegative, Annotated[float, Range(most=10)]] = (0.0, 1.0)
    beam: Positive | None = None
    average: Share | Literal["auto"] = "auto"
    kind: Literal["lstm", "blstm"] = "lstm"
    scale: float = 1.0
    offset: Finite = 0.0
    seed: int = 0

    def check(self):
        if self.kind == "blstm" and self.layers > 4:
            raise ValueError("a blstm has at most 4 layers")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layers": 0}, "`layers` is 0 but must be at least 1"),
        ({"hidden": 10**10}, "`hidden` is 10000000000 but must be from 1 to 65,536"),
        ({"hidden": 10**400}, "`hidden` is an integer of over 63 bits but must be from 1 to 65,"),
        ({"dropout": 1.0}, "`dropout` is 1.0 but must be at least 0 and below 1"),
        ({"shares": (0.5, 1.0)}, "`shares` has a value that is 1.0 but must be above 0 and below"),
        ({"span": (0.0, 11.0)}, "`span` has a value that is 11.0 but must be at most 10"),
        ({"beam": 0.0}, "`beam` is 0.0 but must be above 0"),
        ({"average": 1.5}, "`average` is 1.5 but must be from 0 to 1"),
        ({"kind": "gru"}, "`kind` is 'gru' but must be 'lstm' or 'blstm'"),
        ({"scale": float("nan")}, "`scale` is nan but must be a number"),
        ({"shares": (float("nan"),)}, "`shares` has a value that is nan but must be a number"),
        ({"offset": float("inf")}, "`offset` is inf but must be finite"),
        ({"offset": -float("inf")}, "`offset` is -inf but must be finite"),
        ({"seed": 2**63}, "`seed` is an integer of over 63 bits but must be at most 9,223,"),
        ({"kind": "blstm", "layers": 5}, "a blstm has at most 4 layers"),
    ],
)
def test_settings_out_of_range_are_refused_wherever_they_come_from(values, message):
    with pytest.raises(ValueError, match=message):
        NetworkConfig(**values)
    with pytest.raises(ValueError, match=message):
        replace(NetworkConfig(), **values)
    if all(abs(value) < 2**63 for value in values.values() if isinstance(value, int)):
        with pytest.raises(ValueError, match=message):
            from_plain(
                NetworkConfig,
                {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()},
            )


def test_a_choice_beside_a_number_is_named():
    with pytest.raises(ValueError, match="`average` is 'none' but must be 'auto'"):
        NetworkConfig(average="none")


def test_limits_themselves_are_in_range():
    NetworkConfig(layers=1, hidden=65_536, dropout=0.0, span=(0, 10), average=1, beam=1e-9)


def test_ranges_of_a_class_without_checks_hold_in_a_bundle():
    @dataclass(frozen=True)
    class Layer:
        size: LayerSize

    with pytest.raises(ValueError, match="`size` is 0 but must be from 1 to 65,536"):
        from_plain(Layer, {"size": 0})
