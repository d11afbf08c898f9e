"""Both search engines equal the enumeration of a graph's paths and each other."""

import sys

import numpy as np
import pytest
import torch

from tests.fsa.enumeration import arcs
from toolkit.engines import SEARCH_VARIABLE, EngineError, search_engine
from toolkit.fsa import search as module
from toolkit.fsa.config import Beam
from toolkit.fsa.fst import fst_from_arcs, load_fst
from toolkit.fsa.lattice import best_path
from toolkit.fsa.online_search import OnlineSearch
from toolkit.fsa.search import (
    GraphMismatchError,
    NativeEngine,
    graph_arrays,
    rows_of,
    search_best_paths,
    search_lattice,
    searching_with,
)
from toolkit.fsa.search_kernels import FINAL_FRAMES, advance_frame, empty_trellis

WIDE = Beam(1000.0, 1000.0, 1, 10**6)
# Ones that meet the bounds on the states too, and a lattice wider than the search.
BEAMS = [
    Beam(12.0, 5.0),
    Beam(6.0, 8.0),
    Beam(2.0, 2.0, min_active=200, max_active=4000),
    Beam(15.0, 6.0, min_active=30, max_active=60),
]


def random_scores(seed, frames, labels):
    return 3 * torch.randn(frames, labels, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("frames", [1, 4])
def test_without_a_beam_the_lattice_holds_every_path(random_graph, engine, seed, frames):
    reference_graph = random_graph(seed)
    graph, scores = (
        load_fst(reference_graph.path),
        random_scores(seed, frames, reference_graph.labels),
    )
    expected = {(t, arc) for path in reference_graph.paths(frames) for t, arc in enumerate(path)}
    lattice = search_lattice(scores, graph, WIDE)
    if not expected:
        assert lattice is None
        return
    assert arcs(lattice).keys() == expected
    for (t, arc), score in arcs(lattice).items():
        acoustic = scores[t, graph.labels[arc] - 1] if t < frames else 0.0
        assert score == pytest.approx(float(graph.scores[arc] + acoustic), abs=1e-4)
    assert lattice.words.tolist() == [
        word
        for arc in lattice.graph_arc
        for word in graph.words[graph.splits[arc] : graph.splits[arc + 1]]
    ]
    assert (lattice.lm_scores == graph.lm_scores[lattice.graph_arc]).all()


@pytest.mark.parametrize("seed", range(6))
def test_the_best_path_equals_enumeration(random_graph, engine, seed):
    reference_graph = random_graph(seed)
    graph, scores = load_fst(reference_graph.path), random_scores(seed, 5, reference_graph.labels)
    best = max(reference_graph.score(path, scores) for path in reference_graph.paths(5))
    [searched] = search_best_paths([scores], [graph], WIDE)
    assert searched.score == pytest.approx(best, abs=1e-4)
    from_lattice = best_path(search_lattice(scores, graph, WIDE))
    assert from_lattice.score == pytest.approx(best, abs=1e-4)
    assert (searched.words, searched.word_frames) == (from_lattice.words, from_lattice.word_frames)
    assert searched.pdfs.tolist() == from_lattice.pdfs.tolist()


def test_several_utterances_are_each_searched_in_their_graph(random_graph, engine):
    reference_graphs = [random_graph(seed) for seed in range(3)]
    graphs = [load_fst(x.path) for x in reference_graphs]
    scores = [random_scores(n, 7 - n, reference_graphs[n].labels) for n in range(3)]
    batch = search_best_paths(scores, graphs, WIDE)
    for n, path in enumerate(batch):
        [single] = search_best_paths([scores[n]], [graphs[n]], WIDE)
        assert (path.score, path.words) == (pytest.approx(single.score, abs=1e-5), single.words)
        assert path.pdfs.tolist() == single.pdfs.tolist()


def test_a_search_without_a_final_state_gives_no_lattice(engine):
    """The word has three frames: other lengths have no path."""
    graph = fst_from_arcs([(0, 1, 1, 7, 0.0), (1, 2, 2, 0, 0.0), (2, 3, 1, 0, 0.0)], [3])
    for frames in (1, 2, 3, 4):
        scores = torch.zeros(frames, 2)
        [path] = search_best_paths([scores], [graph], WIDE)
        assert (path is None) == (search_lattice(scores, graph, WIDE) is None) == (frames != 3)
    assert search_lattice(torch.zeros(0, 2), graph, WIDE) is None
    with pytest.raises(GraphMismatchError, match="has 2 pdfs, but the acoustic model has 1"):
        search_lattice(torch.zeros(3, 1), graph, WIDE)
    with pytest.raises(GraphMismatchError, match="has 2 pdfs, but the acoustic model has 1"):
        search_best_paths([torch.zeros(3, 1)], [graph], WIDE)


def test_a_graph_without_arcs_has_no_paths(engine):
    empty = fst_from_arcs([], finals=[0]).select_arcs(np.zeros(1, bool))
    assert search_lattice(torch.zeros(3, 2), empty, WIDE) is None
    assert search_best_paths([torch.zeros(3, 2)], [empty], WIDE) == [None]
    with pytest.raises(GraphMismatchError, match="no arcs"):
        OnlineSearch(empty, WIDE)


@pytest.mark.parametrize("frames", [3, 19, 20, 21, 40, 45])
def test_a_search_that_loses_all_states_gives_no_lattice(engine, frames):
    """The graph has two frames: no state is active after them."""
    graph = fst_from_arcs([(0, 1, 1, 7, 0.0), (1, 2, 1, 0, 0.0)], [2])
    assert search_lattice(torch.zeros(frames, 1), graph, WIDE) is None


@pytest.mark.parametrize("beam", BEAMS, ids=str)
@pytest.mark.parametrize("seconds", [0.6, 4.0, 9.0])
def test_both_engines_keep_the_same_arcs(language, graph, beam, seconds):
    pytest.importorskip("k2")
    for seed in range(3):
        scores = language.sentence(seed, seconds).scores * 0.3
        with searching_with("native"):
            native_lattice = search_lattice(scores, graph, beam)
            [path] = search_best_paths([scores], [graph], beam)
        with searching_with("k2"):
            k2_lattice = search_lattice(scores, graph, beam)
        native_arcs, k2_arcs = arcs(native_lattice), arcs(k2_lattice)
        # Both add in float32, in another order: arcs at the edge of a beam may differ.
        assert len(native_arcs.keys() ^ k2_arcs.keys()) <= 0.002 * len(k2_arcs)
        common_arcs = native_arcs.keys() & k2_arcs.keys()
        assert max(abs(native_arcs[place] - k2_arcs[place]) for place in common_arcs) < 1e-4
        assert best_path(native_lattice).words == best_path(k2_lattice).words == path.words
        assert best_path(native_lattice).pdfs.tolist() == best_path(k2_lattice).pdfs.tolist()


@pytest.mark.parametrize("beam", BEAMS, ids=str)
def test_a_frame_keeps_all_arcs_into_states_within_the_beam(language, graph, beam):
    """Arcs that lie further than the output beam behind the best into their state may go."""
    arrays, limits = graph_arrays(graph), (beam.search, beam.min_active, beam.max_active)
    rows = rows_of(language.sentence(0, 1.0).scores * 0.3)
    place = np.full(graph.num_states, -1, np.int32)
    trellis, below = empty_trellis(beam.search), 0
    for t, row in enumerate(rows):
        begin, end = trellis.states_at[t : t + 2]
        states, forward = trellis.state[begin:end], trellis.forward[begin:end]
        left = len(rows) - 1 - t
        trellis = advance_frame(trellis, arrays, row, left, limits, beam.output, place)
        frame_arcs = slice(*trellis.arcs_at[t : t + 2])
        source, arc = trellis.source[frame_arcs], trellis.arc[frame_arcs]
        assert (place == -1).all()

        leaving = np.concatenate([np.arange(*graph.first[state : state + 2]) for state in states])
        origin = np.repeat(np.arange(len(states)), np.diff(graph.first)[states])
        emits = graph.labels[leaving] > 0
        leaving, origin = leaving[emits], origin[emits]
        score = graph.scores[leaving] + row[graph.labels[leaving] - 1]
        total = forward[origin] + score
        cutoff = total.max() - trellis.beam[t + 1] * 1.25 ** max(0, FINAL_FRAMES - left)
        best = np.full(graph.num_states, -np.inf)
        np.maximum.at(best, graph.target[leaving], total)
        behind = best[graph.target[leaving]] - total
        within_beam = (best[graph.target[leaving]] > cutoff) & (behind <= beam.output)
        pairs = set(zip(origin[within_beam], leaving[within_beam], strict=True))
        assert pairs <= set(zip(source, arc, strict=True))
        below += int((within_beam & (total <= cutoff)).sum())
    assert below


def test_the_engine_is_chosen_by_a_variable(monkeypatch):
    monkeypatch.delenv(SEARCH_VARIABLE, raising=False)
    module.load_engine.cache_clear()
    assert search_engine() == "native"
    assert isinstance(module.engine(), NativeEngine)
    with searching_with("openfst"), pytest.raises(EngineError, match="must be one of native, k2"):
        module.engine()
    monkeypatch.setitem(sys.modules, "k2", None)
    with searching_with("k2"), pytest.raises(EngineError, match="'k2', which is not installed"):
        module.engine()
    # Installed, and broken.
    monkeypatch.setattr(module, "search_engine", lambda: "k2")
    monkeypatch.delitem(sys.modules, "toolkit.fsa.k2_engine", raising=False)
    with pytest.raises(EngineError, match="'k2', which cannot be imported"):
        module.engine()
    monkeypatch.undo()
    assert isinstance(module.engine(), NativeEngine)
