"""Names of inputs that are settings or lie in a setting's folder."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from toolkit.stages.plan import InputNames, same_setting


@dataclass(frozen=True)
class Corpus:
    root: Path
    map_paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class Config:
    corpus: Corpus
    options: dict = field(default_factory=dict)


@pytest.mark.parametrize("inside", ["", "/wav"])
def test_a_table_and_the_folder_that_it_lies_in_are_two_inputs(tmp_path, inside):
    """This holds after both have moved, too."""
    table = tmp_path / "table.csv"
    table.touch()
    folder = f"{tmp_path}{inside}"
    names = InputNames(tmp_path / "exp", Config(Corpus(table)))
    [first] = names.names(str(table), ["corpus"])
    [second] = names.names(folder, ["corpus"])
    assert (first, second) == ("{corpus.root}", f"{{corpus.root}}{inside or '/'}")
    assert [names.path(name) for name in (first, second)] == [table, Path(folder)]
    (tmp_path / "moved").mkdir()
    moved = tmp_path / "moved/table.csv"
    table.rename(moved)
    names = InputNames(tmp_path / "exp", Config(Corpus(moved)))
    paths = [names.path(name) for name in (first, second)]
    assert paths == [moved, Path(f"{tmp_path}/moved{inside}")]


def test_a_folder_is_called_after_its_setting(tmp_path):
    names = InputNames(tmp_path / "exp", Config(Corpus(tmp_path)))
    assert names.names(str(tmp_path), ["corpus"]) == ["{corpus.root}"]
    assert names.names(f"{tmp_path}/wav", ["corpus"]) == ["{corpus.root}/wav"]
    assert names.names(str(tmp_path), []) == [str(tmp_path)]
    assert names.path("{corpus.root}") == tmp_path


def test_the_target_of_a_path_map_is_a_place(tmp_path):
    names = InputNames(tmp_path / "exp", Config(Corpus(tmp_path / "a", ("/old=/new", "/x=/y/"))))
    assert names.folders["corpus.map_paths.1"] == "/y"
    assert names.names("/new/wav", ["corpus"]) == ["{corpus.map_paths.0}/wav"]
    assert not names.is_gone("{corpus.map_paths.0}/wav")
    moved = InputNames(tmp_path / "exp", Config(Corpus(tmp_path / "a", ("/old=/moved", "/x=/y"))))
    assert moved.path("{corpus.map_paths.0}/wav") == Path("/moved/wav")


@pytest.mark.parametrize(
    ("new", "same"),
    [
        (["/old=/moved"], True),
        (["/other=/moved"], False),
        (["/old=/moved", "/x=/y"], False),
        ([], False),
    ],
)
def test_contents_decide_where_mapped_paths_have_moved(new, same):
    inputs = {"{corpus.map_paths.0}/wav": None}
    assert same_setting("corpus.map_paths", ["/old=/new"], new, inputs) == same
    assert not same_setting("corpus.map_paths", ["/old=/new"], ["/old=/moved"], {})
