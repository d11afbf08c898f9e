import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.markers import attempt, make_marker
from toolkit.stages.marker import (
    CodeVersion,
    Marker,
    Provenance,
    UnreadableMarkerError,
    code_version,
    outputs_of,
    parameters_digest,
)
from toolkit.storage.digests import Content


def marker(**changes):
    values = {
        "number": 6,
        "title": "Train",
        "parameters": {"ce": {"epochs": 4, "rate": 0.1, "parts": ["a"], "limit": None}},
        "inputs": {"lang": Content(5, "aa", 1, files={"lexicon.txt": "bb"})},
        "outputs": {"model": Content(7, "cc"), "ali/train": Content(9, "dd")},
        "command": "run.py --stage 6",
        "started": "2026-11-21T06:00:00+00:00",
        "ended": "2026-11-21T06:00:09+00:00",
        "seconds": 9.25,
        "headline": {"wer": 8.5, "words": 12},
    }
    return make_marker(**(values | changes))


def test_a_marker_survives_the_disk_and_is_readable(tmp_path):
    path = tmp_path / "06.json"
    marker().write(path)
    assert Marker.read(path) == marker()
    marker_json = json.loads(path.read_text())
    assert marker_json["schema"] == 2
    assert marker_json["parameters_digest"] == parameters_digest(marker().provenance.parameters)
    assert '   "lexicon.txt": "bb"\n' in path.read_text()
    assert outputs_of(path) == ["ali/train", "model"]


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
        (lambda text: text.replace('"peak_bytes": ', '"peak_bytes": -'), "damaged"),
        (lambda text: text.replace('"commit": "', '"commit": 1, "a": "'), "damaged"),
        (
            lambda text: re.sub(r'"attempts": \[.*?\n \]', '"attempts": []', text, flags=re.S),
            "damaged",
        ),
        (lambda text: text.replace('"schema": 2', '"schema": 1'), "another version"),
        (lambda text: text.replace('"epochs": 4', '"epochs": 5'), "were edited"),
    ],
)
def test_a_damaged_marker_is_recognised(tmp_path, damage, why):
    path = tmp_path / "06.json"
    marker().write(path)
    path.write_text(damage(path.read_text()))
    with pytest.raises(UnreadableMarkerError, match=why):
        Marker.read(path)
    assert outputs_of(path) == []


def test_the_digest_of_parameters_does_not_depend_on_their_order():
    assert parameters_digest({"a": 1, "b": 2}) == parameters_digest({"b": 2, "a": 1})
    assert parameters_digest({"a": 1}) != parameters_digest({"a": 2})


def code_version_of(commit="a" * 40, diff="", **packages):
    return CodeVersion(commit, bool(diff), diff, {"python": "3.10", "torch": "1.13.1"} | packages)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (code_version_of(), code_version_of(), []),
        (code_version_of(), code_version_of("b" * 40), ["commit aaaaaaaaaaaa -> bbbbbbbbbbbb"]),
        (code_version_of(), code_version_of(None), ["commit aaaaaaaaaaaa -> none"]),
        (
            code_version_of(diff="1" * 32),
            code_version_of(diff="2" * 32),
            ["commit aaaaaaaaaaaa with changes 11111111 -> aaaaaaaaaaaa with changes 22222222"],
        ),
        (code_version_of(), code_version_of(numpy="2.0"), []),
        (
            code_version_of(k2=None),
            code_version_of("b" * 40, k2="1.24", torch="2.13.0"),
            ["commit aaaaaaaaaaaa -> bbbbbbbbbbbb", "torch 1.13.1 -> 2.13.0", "k2 none -> 1.24"],
        ),
    ],
)
def test_changes_of_code_are_named_with_both(old, new, expected):
    assert old.changes(new) == expected


def test_git_is_asked_once_per_process(tmp_path, monkeypatch):
    commands = []
    real = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: commands.append(a) or real(*a, **k))
    assert code_version(tmp_path) is code_version(Path(tmp_path))
    assert len(commands) == 1


def test_provenance_survives_json(tmp_path):
    attempts = [attempt(code_version_of(k2=None), numeric={"blas": None, "threads": 2})]
    inputs = {"lang": Content(5, "aa", 1, files={"lexicon.txt": "bb"})}
    provenance = Provenance({"ce": {"epochs": 4}}, inputs, attempts, forced=True)
    path = tmp_path / "04.json"
    assert Provenance.read(path) is None
    path.write_text(provenance.to_json())
    assert Provenance.read(path) == provenance
    path.write_text(provenance.to_json().replace('"commit": "', '"commit": 1, "a": "'))
    assert Provenance.read(path) is None
