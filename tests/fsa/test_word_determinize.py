"""Determinised lattices equal the enumeration of the search's paths."""

import math

import numpy as np
import pytest
import torch

from tests.fsa.lattices import lattice_from_arcs
from tests.fsa.word_lattices import paths, word_sequences
from toolkit.fsa.config import Beam
from toolkit.fsa.grammar import grammar_acceptor
from toolkit.fsa.lattice import ScoredLattice
from toolkit.fsa.search import search_lattice
from toolkit.fsa.word_lattice import word_lattice
from toolkit.lang.arpa import write_arpa
from toolkit.lang.ngram import estimate

WORDS = "<eps> 0\nAB 1\nA 2\nB 3\n#0 4\n<s> 5\n</s> 6\n"
TEXT = [["A", "B"], ["AB"], ["A", "B", "AB"], ["B", "B"], ["A"], ["AB", "A", "B"]]
SCALE = 0.5


@pytest.fixture(params=range(4))
def scored(request, toy, tmp_path):
    """An unpruned lattice of 5 or 6 frames of noise."""
    (tmp_path / "words.txt").write_text(WORDS)
    write_arpa(estimate(TEXT, ["A", "AB", "B"], 2, (1,))[0], tmp_path / "lm.arpa")
    grammar = grammar_acceptor(tmp_path / "lm.arpa", tmp_path / "words.txt")
    hmms = toy.senones("onset")
    generator = torch.Generator().manual_seed(request.param)
    frames = 5 + request.param % 2
    scores = torch.randn(frames, hmms.num_pdfs, generator=generator) * 3 * SCALE
    wide = Beam(1000.0, 1000.0, 1, 10**6)
    return ScoredLattice.of(
        search_lattice(scores, toy.decoding_graph(hmms, grammar), wide), scores, SCALE
    )


def enumerate_words(scored, scale):
    """(score, graph, acoustic) of the best path by words, and the earliest frame by prefix."""
    fst = scored.lattice
    best, earliest = {}, {}
    stack = [(0, 0.0, 0.0, (), {(): 0})]
    while stack:
        state, graph, acoustic, spoken, frames = stack.pop()
        if state == fst.num_states - 1:
            total = graph + scale * acoustic
            best[spoken] = max(best.get(spoken, (-math.inf,)), (total, graph, acoustic))
            for prefix, frame in frames.items():
                earliest[prefix] = min(frame, earliest.get(prefix, math.inf))
            continue
        for a in range(fst.first[state], fst.first[state + 1]):
            read, word_frames = spoken, dict(frames)
            for word in fst.words[fst.splits[a] : fst.splits[a + 1]].tolist():
                read = (*read, word)
                # A chain's inner states stand where the arc leads.
                word_frames[read] = min(int(fst.frame[a]) + 1, int(fst.frame[-1]))
            entry = float(scored.graph[a]), float(scored.acoustic[a])
            stack.append(
                (int(fst.target[a]), graph + entry[0], acoustic + entry[1], read, word_frames)
            )
    return best, earliest


@pytest.mark.parametrize("scale", [SCALE, 0.1])
def test_every_word_sequence_has_one_path_with_its_best_scores(scored, scale):
    best, earliest = enumerate_words(scored, scale)
    assert len(best) > 5
    lattice = word_lattice(scored, scale, math.inf, frame_shift=1.0)
    word_paths = paths(lattice)
    spoken = [tuple(w for w in lattice.words[list(p)].tolist() if w) for p in word_paths]
    assert len(set(spoken)) == len(spoken)
    assert set(spoken) == set(best)
    for path, words in zip(word_paths, spoken, strict=True):
        columns = lattice.graph[list(path)].sum(), lattice.acoustic[list(path)].sum()
        score, *expected = best[words]
        assert columns[0] + scale * columns[1] == pytest.approx(score, abs=4e-3)
        assert columns == pytest.approx(expected, abs=2e-2)
        for place, arc in enumerate(path):
            said_here = lattice.words[list(path[: place + 1])]
            if lattice.words[arc]:
                prefix = tuple(w for w in said_here.tolist() if w)
                assert lattice.times[lattice.target[arc]] <= earliest[prefix]
    frames = int(scored.lattice.frame[-1])
    assert lattice.times[0] == 0.0
    assert lattice.times[-1] == frames
    assert (lattice.times[lattice.target] >= lattice.times[lattice.source]).all()
    for state in range(lattice.num_states):
        words = lattice.words[lattice.source == state].tolist()
        assert len(words) == len(set(words))


def test_states_are_at_the_frame_where_their_first_alignment_ends(scored):
    """A state with one word sequence is at the frame where its first alignment ends."""
    _, earliest = enumerate_words(scored, SCALE)
    lattice = word_lattice(scored, SCALE, math.inf, frame_shift=1.0)
    prefixes = [set() for _ in range(lattice.num_states)]
    for path in paths(lattice):
        for place, arc in enumerate(path):
            words = lattice.words[list(path[: place + 1])].tolist()
            prefixes[lattice.target[arc]].add(tuple(w for w in words if w))
    checked = 0
    for state, prefixes_of_state in enumerate(prefixes[:-1]):
        if len(prefixes_of_state) == 1:
            checked += 1
            assert lattice.times[state] == earliest[prefixes_of_state.pop()]
    assert checked > 3


@pytest.mark.parametrize("beam", [0.5, 2.0, 5.0])
def test_a_beam_keeps_the_word_sequences_within_it(scored, beam):
    best, _ = enumerate_words(scored, SCALE)
    top = max(best.values())[0]
    lattice = word_lattice(scored, SCALE, beam, frame_shift=0.03)
    spoken = dict(word_sequences(lattice, lattice.scores(SCALE)))
    for words, (score, *_) in best.items():
        if score >= top - beam + 0.01:
            assert spoken[words] == pytest.approx(score, abs=4e-3)
    assert set(spoken) <= set(best)
    assert lattice.num_arcs < word_lattice(scored, SCALE, math.inf, 0.03).num_arcs
    assert lattice.best_words(lattice.scores(SCALE)) == list(max(best, key=best.get))


def test_the_worst_arcs_are_pruned_from_large_lattices(scored, monkeypatch):
    full = word_lattice(scored, SCALE, math.inf, 0.03)
    monkeypatch.setattr("toolkit.fsa.word_lattice.MAX_ARCS", full.num_arcs // 2)
    part = word_lattice(scored, SCALE, math.inf, 0.03)
    assert part.num_arcs < full.num_arcs
    best = full.best_words(full.scores(SCALE))
    assert part.best_words(part.scores(SCALE)) == best
    assert {w for w, _ in word_sequences(part, part.graph)} < {
        w for w, _ in word_sequences(full, full.graph)
    }


def test_the_best_path_survives_any_limit_of_arcs(scored, monkeypatch):
    full = word_lattice(scored, SCALE, math.inf, 0.03)
    monkeypatch.setattr("toolkit.fsa.word_lattice.MAX_ARCS", 1)
    part = word_lattice(scored, SCALE, math.inf, 0.03)
    assert part.num_arcs < full.num_arcs
    best = full.best_words(full.scores(SCALE))
    assert part.best_words(part.scores(SCALE)) == best


def test_arcs_of_several_words_and_words_at_the_end():
    arcs = [(0, 1, 1, 2, -1.0), (1, 2, 1, 0, -0.5), (0, 2, 2, 3, -2.0)]
    lattice = lattice_from_arcs(arcs, [2], [0, 1, 2, 2])
    lattice = lattice.select_arcs(np.arange(lattice.num_arcs))
    fields = vars(lattice) | {
        "splits": np.int32([0, 2, 3, 3, 4]),
        "words": np.int32([2, 5, 3, 7]),
    }
    names = ("source", "target", "labels", "scores", "splits", "words", "frame", "graph_arc")
    lattice = type(lattice)(**{name: fields[name] for name in names})
    scored = ScoredLattice.of(lattice, torch.zeros(2, 2), 1.0)
    determinized = word_lattice(scored, 1.0, math.inf, 0.01)
    spoken = dict(word_sequences(determinized, determinized.scores(1.0)))
    assert spoken == pytest.approx({(2, 5, 7): -1.5, (3, 7): -2.0})


def test_words_before_the_end_hide_no_other_path():
    """A with B on the final arc scores better than A B before it."""
    arcs = [(0, 1, 1, 2, 0.0), (0, 2, 2, 2, -5.0), (1, 3, 1, 3, 0.0), (2, 3, 1, 0, 0.0)]
    lattice = lattice_from_arcs(arcs, [3], [0, 1, 1, 2])
    lattice = lattice.select_arcs(np.arange(lattice.num_arcs))
    final = np.flatnonzero(lattice.target == lattice.num_states - 1)
    assert len(final) == 1
    fields = vars(lattice) | {
        "splits": np.int32([0, 1, 3, 3, 3, 4]),
        "words": np.int32([2, 2, 3, 3]),
    }
    names = ("source", "target", "labels", "scores", "splits", "words", "frame", "graph_arc")
    lattice = type(lattice)(**{name: fields[name] for name in names})
    scored = ScoredLattice.of(lattice, torch.zeros(2, 2), 1.0)
    determinized = word_lattice(scored, 1.0, math.inf, 0.01)
    assert dict(word_sequences(determinized, determinized.scores(1.0))) == pytest.approx(
        {(2, 3): 0.0, (2, 3, 3): -5.0}
    )
