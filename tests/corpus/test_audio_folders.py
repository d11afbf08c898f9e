from pathlib import Path

from toolkit.corpus.audio_folders import audio_folders
from toolkit.corpus.manifest import empty_recording, make_cut


def cuts(paths):
    return [make_cut(str(p), empty_recording(str(p), str(p)), "a", "s") for p in paths]


def make(root, *folders):
    for folder in folders:
        (root / folder).mkdir(parents=True)
    return cuts(root / folder / f"{n}.wav" for folder in folders for n in range(2))


def test_folders_outside_of_the_root(tmp_path):
    found = audio_folders(make(tmp_path, "data/wav", "far/b", "far/a"), tmp_path / "data")
    assert found == [tmp_path / "far/a", tmp_path / "far/b"]


def test_paths_upwards_lead_out_of_the_root(tmp_path):
    root = tmp_path / "data"
    made = make(tmp_path, "data/wav", "far")
    upwards = cuts([root / "../far/0.wav"])
    assert audio_folders([*made[:2], *upwards], root) == [root / "../far"]


def test_a_folder_above_another_stands_for_both(tmp_path):
    assert audio_folders(make(tmp_path, "a", "a/b/c"), tmp_path / "t.csv") == [tmp_path / "a"]


def test_many_folders_are_joined(tmp_path):
    made = make(tmp_path, *(f"x/{n}" for n in range(5)), "y")
    assert audio_folders(made, tmp_path / "t.csv", most=3) == [tmp_path / "x", tmp_path / "y"]
    assert audio_folders(made, tmp_path / "t.csv", most=1) == [tmp_path]


def test_what_is_no_folder_is_left_out(tmp_path):
    assert audio_folders(cuts(["cat x |", "/not/there/a.wav", "/a.wav"]), tmp_path) == []
    assert audio_folders([], Path("t.csv")) == []
