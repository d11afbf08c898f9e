"""Word lattices on disk."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.fsa.word_lattices import random_lattice
from toolkit.fsa.lattice_store import (
    LatticeStore,
    LatticeStoreError,
    WeightsUsed,
    WordCodec,
    WordTable,
    write_lattices,
)

SYMBOLS = ["<eps>", "ONE", "TWO", "THREE"]
DECODING = WeightsUsed(0.3, -1.0, 0.25)


@pytest.fixture
def folder(tmp_path):
    lattices = {"a": random_lattice(1), "b": None, "c": random_lattice(2, states=4, arcs=5)}
    codec = WordCodec(symbol=SYMBOLS.__getitem__)
    write_lattices(codec.path(tmp_path, 0), lattices, codec, DECODING)
    write_lattices(codec.path(tmp_path, 1), {"d": None}, codec, DECODING)
    return tmp_path


def read_all(folder):
    store = LatticeStore(folder, WordCodec())
    return [store.load(name) for name in store.ids]


def test_lattices_round_trip(folder):
    words = WordTable()
    words.id_of("THREE")  # known from another store
    store = LatticeStore(folder, WordCodec(words))
    assert store.ids == ["a", "c"]
    assert store.failed == ["b", "d"]
    for name, original in (("a", random_lattice(1)), ("c", random_lattice(2, states=4, arcs=5))):
        loaded = store.load(name)
        for column in ("source", "target", "graph", "acoustic", "times"):
            assert np.array_equal(getattr(loaded, column), getattr(original, column))
        spoken = [words.symbols[word] for word in loaded.words]
        assert spoken == [SYMBOLS[word] for word in original.words]
        assert store.info(name) == DECODING


def test_faults_name_the_file(folder, tmp_path):
    with pytest.raises(LatticeStoreError, match="no word lattices"):
        LatticeStore(tmp_path / "elsewhere", WordCodec())
    path = WordCodec().path(folder, 0)
    good = path.read_bytes()
    path.write_bytes(good[:-5])
    with pytest.raises(LatticeStoreError, match=path.name):
        read_all(folder)


@pytest.mark.parametrize(
    ("column", "place", "value"),
    [("target", 0, 0), ("target", 0, 99), ("words", 0, 9), ("words", 0, -9), ("arc_splits", 1, 3)],
)
def test_no_lattice_is_read_beyond_its_arrays(folder, column, place, value):
    from safetensors import safe_open

    path = WordCodec().path(folder, 0)
    with safe_open(path, "np") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    tensors[column][place] = value
    save_file(tensors, path, metadata)
    with pytest.raises(LatticeStoreError, match=path.name):
        read_all(folder)


@pytest.mark.parametrize("columns", [("graph", "acoustic"), ("words", "arc_splits")])
def test_lattices_with_scores_that_are_no_numbers_or_too_few_are_refused(folder, columns):
    from safetensors import safe_open

    path = WordCodec().path(folder, 0)
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
        with pytest.raises(LatticeStoreError, match=path.name):
            read_all(folder)
        path.write_bytes(good)
