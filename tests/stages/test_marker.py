import json

import pytest

from toolkit.stages.marker import (
    Marker,
    UnreadableMarkerError,
    outputs_of,
    parameters_digest,
)
from toolkit.storage.digest import Content


def marker(**changes):
    values = {
        "stage": 6,
        "title": "Train",
        "parameters": {"ce": {"epochs": 4, "rate": 0.1, "parts": ["a"], "limit": None}},
        "inputs": {"lang": Content(5, "aa", 1, files={"lexicon.txt": "bb"})},
        "outputs": {"model": Content(7, "cc"), "ali/train": Content(9, "dd")},
        "versions": {"python": "3.10", "k2": None},
        "git": {"commit": "123", "dirty": False},
        "command": "run.py --stage 6",
        "started": "2026-11-21T06:00:00+00:00",
        "ended": "2026-11-21T06:00:09+00:00",
        "seconds": 9.25,
        "headline": {"wer": 8.5, "words": 12},
    }
    return Marker(**(values | changes))


def test_a_marker_survives_the_disk_and_is_readable(tmp_path):
    path = tmp_path / "06.json"
    marker().write(path)
    assert Marker.read(path) == marker()
    plain = json.loads(path.read_text())
    assert plain["schema"] == 1
    assert plain["parameters_digest"] == parameters_digest(marker().parameters)
    assert '   "lexicon.txt": "bb"\n' in path.read_text()
    assert outputs_of(path) == ["ali/train", "model"]


def test_memory_is_read_back_and_absent_from_earlier_markers(tmp_path):
    path = tmp_path / "06.json"
    marker(peak_bytes=2**30).write(path)
    assert Marker.read(path).peak_bytes == 2**30
    plain = json.loads(path.read_text())
    del plain["peak_bytes"]
    path.write_text(json.dumps(plain))
    assert Marker.read(path).peak_bytes is None
    path.write_text(json.dumps(plain | {"peak_bytes": -1}))
    with pytest.raises(UnreadableMarkerError, match="damaged"):
        Marker.read(path)


def test_a_missing_marker_is_none(tmp_path):
    assert Marker.read(tmp_path / "06.json") is None
    assert outputs_of(tmp_path / "06.json") == []


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda text: text[: len(text) // 2], "damaged"),
        (lambda text: "[]", "damaged"),
        (lambda text: text.replace('"outputs"', '"output"'), "damaged"),
        (lambda text: text.replace('"digest"', '"hash"'), "damaged"),
        (lambda text: text.replace('"schema": 1', '"schema": 0'), "another version"),
        (lambda text: text.replace('"epochs": 4', '"epochs": 5'), "were edited"),
    ],
)
def test_a_damaged_marker_is_told_from_a_good_one(tmp_path, damage, why):
    path = tmp_path / "06.json"
    marker().write(path)
    path.write_text(damage(path.read_text()))
    with pytest.raises(UnreadableMarkerError, match=why):
        Marker.read(path)
    assert outputs_of(path) == []


def test_the_digest_of_parameters_does_not_depend_on_their_order():
    assert parameters_digest({"a": 1, "b": 2}) == parameters_digest({"b": 2, "a": 1})
    assert parameters_digest({"a": 1}) != parameters_digest({"a": 2})
