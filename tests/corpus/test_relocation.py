"""Manifests and what they name are moved together."""

import shutil

import pytest

from tests.dummies import dummy_recording
from toolkit.corpus.check.exclusions import Exclusion, write_exclusions
from toolkit.corpus.manifest import audio_of, make_cut, read_cuts, write_cuts
from toolkit.storage.paths import PLACES, places_text


@pytest.fixture
def exp(tmp_path):
    exp = tmp_path / "exp"
    (exp / "stages").mkdir(parents=True)
    (exp / PLACES).write_text(places_text({"corpus.root": str(tmp_path / "speech")}))
    return exp


def cut_of(path, **arguments):
    recording = dummy_recording(1)
    recording.sources[0].source = str(path)
    return make_cut("u", recording, "A", "s", **arguments)


def test_audio_in_the_run_directory_is_found_in_the_new_place(exp, tmp_path):
    cut = cut_of(exp / "corpus" / "a.wav")
    cut.custom = {"components": {"echo": str(exp / "corpus" / "echo.wav")}}
    write_cuts([cut], exp / "data" / "train.jsonl")
    assert cut.custom["components"]["echo"] == str(exp / "corpus" / "echo.wav")  # not changed
    assert read_cuts(exp / "data" / "train.jsonl") == [cut]
    shutil.move(exp, tmp_path / "new")
    (found,) = read_cuts(tmp_path / "new" / "data" / "train.jsonl")
    assert audio_of(found) == str(tmp_path / "new" / "corpus" / "a.wav")
    assert found.custom["components"] == {"echo": str(tmp_path / "new" / "corpus" / "echo.wav")}


def test_details_of_faults_hold_no_place(exp, tmp_path):
    missing = tmp_path / "speech" / "a.wav"
    fault = ("missing-audio", f"no such file: {missing}")
    cuts = [cut_of(missing, fault=fault), cut_of("touch x |", fault=("refused-pipe", "touch x |"))]
    path = exp / "data" / "train.jsonl"
    write_cuts(cuts, path)
    assert str(tmp_path) not in path.read_text()
    assert read_cuts(path) == cuts
    write_exclusions([Exclusion("train", "u", 1, f"x: {fault[1]}")], exp / "check" / "out.tsv")
    assert "x: no such file: {corpus.root}/a.wav\n" in (exp / "check" / "out.tsv").read_text()


def test_outside_of_a_run_directory_paths_stay_absolute(tmp_path):
    write_cuts([cut_of(tmp_path / "speech" / "a.wav")], tmp_path / "train.jsonl")
    assert str(tmp_path / "speech" / "a.wav") in (tmp_path / "train.jsonl").read_text()
