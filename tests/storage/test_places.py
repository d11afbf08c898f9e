"""File names that stay valid after a move."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.storage.paths import (
    PLACES,
    PathAliases,
    PathAliasesError,
    folder_of,
    places_of,
    places_text,
)

PATHS = st.lists(st.sampled_from(["a", "b", "ab", "c d"]), min_size=1, max_size=4).map(
    lambda parts: "/" + "/".join(parts)
)
HERE = PathAliases({"run": "/a/b", "corpus.root": "/a", "other.root": "/c d/a"})
THERE = PathAliases({"run": "/x", "corpus.root": "/y/z", "other.root": "/v w"})


@given(PATHS)
def test_a_name_stands_for_its_path(path):
    assert HERE.path(HERE.name(path)) == path


@given(PATHS)
def test_a_message_is_as_before_where_nothing_was_moved(path):
    text = f"no such file: {path}/x; see `{path}` and {path}"
    assert HERE.resolve_in(HERE.relativize_in(text)) == text


@pytest.mark.parametrize(
    ("path", "name", "moved"),
    [
        ("/a/b/data/x", "{run}/data/x", "/x/data/x"),
        ("/a/b", "{run}", "/x"),
        ("/a/bc/x", "{corpus.root}/bc/x", "/y/z/bc/x"),
        ("/c d/a/x", "{other.root}/x", "/v w/x"),
        ("/c d/x", "/c d/x", "/c d/x"),
    ],
)
def test_names_follow_the_deepest_place(path, name, moved):
    assert HERE.name(path) == name
    assert THERE.path(name) == moved


@pytest.mark.parametrize("name", ["/abs/x", "x | touch y |", "{unknown}/x", "{corpus.root}x", ""])
def test_a_name_of_no_place_stays(name):
    assert HERE.path(name) == name


def test_only_whole_paths_in_messages_become_names():
    text = "no such file: /a/x.wav; also `/a/b/y.wav`, not /q/a/x or /ab/x"
    named = "no such file: {corpus.root}/x.wav; also `{run}/y.wav`, not /q/a/x or /ab/x"
    assert HERE.relativize_in(text) == named


def test_the_places_are_those_of_the_run_directory_around_a_file(tmp_path):
    exp = tmp_path / "exp"
    assert places_of(exp / "data" / "train.jsonl") is None
    (exp / "stages").mkdir(parents=True)
    (exp / PLACES).write_text(places_text({"corpus.root": "/speech"}))
    expected = PathAliases({"corpus.root": "/speech", "run": str(exp)})
    assert places_of(exp / "data" / "train.jsonl") == expected
    assert places_of(exp / ".partial" / "02" / "data" / "train.jsonl") == expected
    assert places_of(tmp_path / "train.jsonl") is None
    (exp / PLACES).write_text("{")
    with pytest.raises(PathAliasesError, match=r"places\.json.*command again"):
        places_of(exp / "data" / "train.jsonl")


def test_the_folder_of_a_table_is_a_place(tmp_path):
    (tmp_path / "table.csv").touch()
    assert folder_of(str(tmp_path / "table.csv")) == folder_of(str(tmp_path)) == str(tmp_path)
