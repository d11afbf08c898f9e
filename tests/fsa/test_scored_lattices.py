"""Saved lattices have the same best paths."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from toolkit.fsa.config import Beam
from toolkit.fsa.grammar import grammar_acceptor
from toolkit.fsa.lattice import ScoredLattice, Weights, best_path, prune
from toolkit.fsa.lattice_store import (
    LatticeStore,
    LatticeStoreError,
    ScoredCodec,
    write_lattices,
)
from toolkit.fsa.nbest import n_best, sampled_words
from toolkit.fsa.search import search_lattice
from toolkit.lang.arpa import write_arpa
from toolkit.lang.ngram import estimate

WEIGHTS = [Weights(0.5), Weights(2.0, -1.0), Weights(0.1, 3.0)]


@pytest.fixture
def lattices(toy, tmp_path):
    """Three lattices of noise, of 5 to 7 frames."""
    (tmp_path / "words.txt").write_text("<eps> 0\nAB 1\nA 2\nB 3\n#0 4\n<s> 5\n</s> 6\n")
    write_arpa(estimate([["A", "B"], ["AB"]], ["A", "AB", "B"], 2, (1,))[0], tmp_path / "lm.arpa")
    grammar = grammar_acceptor(tmp_path / "lm.arpa", tmp_path / "words.txt")
    hmms = toy.senones("onset")
    graph, scored = toy.decoding_graph(hmms, grammar), []
    for frames in (5, 6, 7):
        generator = torch.Generator().manual_seed(frames)
        scores = torch.randn(frames, hmms.num_pdfs, generator=generator)
        lattice = search_lattice(scores, graph, Beam(1000.0, 8.0, 1, 10**6))
        scored.append(ScoredLattice.of(lattice, scores, 0.5))
    return scored


def write_all(path, lattices, **fields):
    """Write a search with one pass for each lattice, and one that found none."""
    searches = [{"utterance": f"u{n}", "beam": 8.0, "seconds": [0.1]} for n in range(len(lattices))]
    searches.append({"utterance": "silent", "beam": 0.0, "seconds": [0.1]})
    by_utterance = {f"u{n}": (lattice,) for n, lattice in enumerate(lattices)} | {"silent": None}
    write_lattices(path, by_utterance, ScoredCodec(), [search | fields for search in searches])


def read_all(path):
    store = LatticeStore(path, ScoredCodec())
    return [store.load(name)[0] for name in store.ids]


def test_every_weight_finds_the_same_path(lattices, tmp_path):
    path = tmp_path / "lattices.safetensors"
    write_all(path, lattices, note="what is known")
    loaded = read_all(path)
    header = ScoredCodec().read_header(path)
    assert header.failed == ("silent",)
    assert [search["note"] for search in header.info] == ["what is known"] * 4
    for original, restored in zip(lattices, loaded, strict=True):
        for weights in WEIGHTS:
            restored_path, original_path = restored.best_path(weights), original.best_path(weights)
            assert (restored_path.words, restored_path.score) == (
                original_path.words,
                original_path.score,
            )
            assert restored_path.pdfs.tolist() == original_path.pdfs.tolist()


def test_no_lattices_round_trip(tmp_path):
    write_lattices(tmp_path / "none", {}, ScoredCodec(), [])
    store = LatticeStore(tmp_path / "none", ScoredCodec())
    assert (store.ids, store.failed) == ([], [])


def test_a_damaged_file_is_named(lattices, tmp_path):
    path = tmp_path / "lattices.safetensors"
    write_all(path, lattices)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(LatticeStoreError, match=r"lattices\.safetensors"):
        read_all(path)


@pytest.mark.parametrize("name", ["source", "target", "word_counts"])
def test_an_arc_beyond_the_arrays_is_refused(lattices, tmp_path, name):
    path = tmp_path / "lattices.safetensors"
    write_all(path, lattices)
    tensors = load_file(path)
    tensors[name][7] += 10**6
    with safe_open(path, "np") as file:
        metadata = file.metadata()
    save_file(tensors, path, metadata)
    with pytest.raises(LatticeStoreError, match=r"lattices\.safetensors"):
        read_all(path)


def test_an_arc_that_skips_a_frame_is_refused(lattices, tmp_path):
    """The compiled state queues hold each state once and would never reach it."""
    path = tmp_path / "lattices.safetensors"
    write_all(path, lattices)
    tensors = load_file(path)
    tensors["target"][0] = lattices[0].lattice.num_states - 2
    with safe_open(path, "np") as file:
        metadata = file.metadata()
    save_file(tensors, path, metadata)
    with pytest.raises(LatticeStoreError, match="do not form a lattice"):
        read_all(path)


def test_a_lattice_without_arcs_has_no_path(lattices, tmp_path):
    whole = lattices[0]
    none = np.zeros(whole.lattice.num_arcs, dtype=bool)
    empty = ScoredLattice(whole.lattice.select_arcs(none), whole.acoustic[none], whole.graph[none])
    assert best_path(empty.lattice).words == []
    assert empty.best_words(WEIGHTS[0]) == []
    assert n_best(empty, WEIGHTS[0], 5) == []
    assert sampled_words(empty, WEIGHTS[0], 5) == []
    assert prune(empty.lattice, 5.0) is None
    path = tmp_path / "lattices.safetensors"
    write_all(path, [whole, empty])
    with pytest.raises(LatticeStoreError, match="without arcs"):
        read_all(path)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_pruning_leaves_no_empty_lattice(lattices, value):
    lattice = lattices[0].lattice
    assert prune(replace(lattice, scores=np.full_like(lattice.scores, value)), 5.0) is None


@pytest.mark.parametrize("weights", [(0.0, 0.0), (np.nan, 0.0), (np.inf, 0.0), (1.0, -np.inf)])
def test_weights_are_finite(weights):
    with pytest.raises(ValueError, match=r"must be (a number|(above 0 and )?finite)"):
        Weights(*weights)
