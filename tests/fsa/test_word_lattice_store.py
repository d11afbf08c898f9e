"""Word lattices on disk."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.fsa.word_lattices import random_lattice
from toolkit.fsa.lattice_store import (
    WeightsUsed,
    WordLatticeError,
    WordLatticeStore,
    WordTable,
    word_lattice_path,
    write_word_lattices,
)

SYMBOLS = ["<eps>", "ONE", "TWO", "THREE"]
DECODING = WeightsUsed(0.3, -1.0, 0.25)


@pytest.fixture
def folder(tmp_path):
    lattices = {"a": random_lattice(1), "b": None, "c": random_lattice(2, states=4, arcs=5)}
    write_word_lattices(word_lattice_path(tmp_path, 0), lattices, SYMBOLS.__getitem__, DECODING)
    write_word_lattices(word_lattice_path(tmp_path, 1), {"d": None}, SYMBOLS.__getitem__, DECODING)
    return tmp_path


def test_lattices_round_trip(folder):
    words = WordTable()
    words.id_of("THREE")  # known from another store
    store = WordLatticeStore(folder, words)
    assert list(store) == ["a", "c"]
    assert store.failed == ["b", "d"]
    for name, original in (("a", random_lattice(1)), ("c", random_lattice(2, states=4, arcs=5))):
        loaded = store[name]
        for column in ("source", "target", "graph", "acoustic", "times"):
            assert np.array_equal(getattr(loaded, column), getattr(original, column))
        spoken = [words.symbols[word] for word in loaded.words]
        assert spoken == [SYMBOLS[word] for word in original.words]
        assert store.decodings[name] == DECODING
        assert store.scores(name) == pytest.approx(original.scores(0.3, -1.0))


def test_faults_name_the_file(folder, tmp_path):
    with pytest.raises(WordLatticeError, match="no word lattices"):
        WordLatticeStore(tmp_path / "elsewhere", WordTable())
    path = word_lattice_path(folder, 0)
    good = path.read_bytes()
    path.write_bytes(good[:-5])
    with pytest.raises(WordLatticeError, match=path.name):
        WordLatticeStore(folder, WordTable())


@pytest.mark.parametrize(
    ("column", "place", "value"),
    [("target", 0, 0), ("target", 0, 99), ("words", 0, 9), ("words", 0, -9), ("arc_splits", 1, 3)],
)
def test_no_lattice_is_read_beyond_its_arrays(folder, column, place, value):
    from safetensors import safe_open

    path = word_lattice_path(folder, 0)
    with safe_open(path, "np") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    tensors[column][place] = value
    save_file(tensors, path, metadata)
    with pytest.raises(WordLatticeError, match=path.name):
        WordLatticeStore(folder, WordTable())


@pytest.mark.parametrize("columns", [("graph", "acoustic"), ("words", "arc_splits")])
def test_lattices_with_scores_that_are_no_numbers_or_too_few_are_refused(folder, columns):
    from safetensors import safe_open

    path = word_lattice_path(folder, 0)
    with safe_open(path, "np") as file:
        metadata = file.metadata()
    for column in columns:
        tensors = load_file(path)
        values = tensors[column]
        if column in ("graph", "acoustic"):
            values[0] = float("nan")
        else:
            tensors[column] = values[:-1]
        save_file(tensors, folder / "bad", metadata)
        good = path.read_bytes()
        path.write_bytes((folder / "bad").read_bytes())
        with pytest.raises(WordLatticeError, match=path.name):
            WordLatticeStore(folder, WordTable())
        path.write_bytes(good)
