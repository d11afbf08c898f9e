"""The online search equals the offline search of all scores."""

import numpy as np
import pytest
import torch

from tests.fsa.enumeration import arcs
from toolkit.fsa.config import Beam
from toolkit.fsa.fst import FINAL, Fst, fst_from_arcs, select_words
from toolkit.fsa.lattice import best_path
from toolkit.fsa.online_search import OnlineSearch
from toolkit.fsa.search import GraphMismatchError, search_lattice

SCALE = 0.3


def advance_search(graph, beam, scores, piece):
    search = OnlineSearch(graph, beam)
    for begin in range(0, len(scores), piece):
        search.advance(scores[begin : begin + piece])
    return search


# Ones that meet the bound on the fewest states too, and a lattice wider than the search.
BEAMS = [Beam(12.0, 5.0), Beam(6.0, 8.0), Beam(2.0, 2.0, min_active=200, max_active=4000)]


def offline_and_online(language, graph, beam, seconds, piece):
    scores = language.sentence(int(10 * seconds), seconds).scores * SCALE
    return search_lattice(scores, graph, beam), advance_search(graph, beam, scores, piece).finish()


@pytest.mark.parametrize("beam", BEAMS, ids=str)
@pytest.mark.parametrize(("seconds", "piece"), [(0.2, 1), (1.0, 7), (4.0, 1), (9.0, 33)])
def test_the_online_lattice_equals_the_offline_lattice(language, graph, beam, seconds, piece):
    offline, online = offline_and_online(language, graph, beam, seconds, piece)
    assert arcs(online).keys() == arcs(offline).keys()
    assert arcs(online) == pytest.approx(arcs(offline), abs=1e-4)
    assert best_path(online).pdfs.tolist() == best_path(offline).pdfs.tolist()
    assert best_path(online).words == best_path(offline).words
    assert online.lm_scores.sum() == pytest.approx(float(offline.lm_scores.sum()), rel=1e-4)


@pytest.mark.parametrize("most", [60, 200])
def test_a_beam_limited_by_max_active_keeps_all_offline_arcs(language, graph, most):
    beam = Beam(15.0, 6.0, min_active=30, max_active=most)
    for seconds in (0.2, 0.6, 1.0, 4.0):
        offline, online = offline_and_online(language, graph, beam, seconds, 5)
        assert arcs(online).keys() >= arcs(offline).keys()
        assert len(arcs(online)) < 1.1 * len(arcs(offline))
        assert best_path(online).words == best_path(offline).words


def test_the_best_words_so_far_are_those_of_the_best_beginning(language, graph):
    """Compared with a search of the same graph with every state final."""
    inner = np.flatnonzero(graph.labels != FINAL)
    last = graph.num_states - 1
    ends = np.arange(last, dtype=np.int32)
    order = np.argsort(np.append(graph.source[inner], ends), kind="stable")
    splits, words = select_words(graph.splits, graph.words, inner)
    counts = np.append(np.diff(splits), 0 * ends)
    begins = np.append(splits[:-1], 0 * ends)
    arc_words = np.concatenate([begins[i] + np.arange(counts[i]) for i in order])

    def column(old, new):
        return np.append(old[inner], new.astype(old.dtype))[order]

    open_ended = Fst(
        source=column(graph.source, ends),
        target=column(graph.target, 0 * ends + last),
        labels=column(graph.labels, 0 * ends + FINAL),
        scores=column(graph.scores, 0 * ends),
        splits=np.append(0, np.cumsum(counts[order])).astype(np.int32),
        words=words[arc_words],
    )
    beam = Beam(20.0, 3.0)
    scores = language.sentence(3, 1.5).scores * SCALE
    search, checked = OnlineSearch(graph, beam), 0
    for end in range(1, len(scores) + 1):
        search.advance(scores[end - 1 : end])
        if end % 12 == 0:
            path = best_path(search_lattice(scores[:end], open_ended, beam))
            assert search.best_words() == path.words
            checked += len(path.words)
    assert checked > 8


def test_without_frames_there_are_no_words_and_no_lattice(graph):
    search = OnlineSearch(graph, BEAMS[0])
    assert search.best_words() == []
    assert search.finish() is None


def test_an_online_search_without_a_final_state_gives_no_lattice():
    """The word has three frames: other lengths have no path."""
    graph = fst_from_arcs([(0, 1, 1, 7, 0.0), (1, 2, 2, 0, 0.0), (2, 3, 1, 0, 0.0)], [3])
    for frames in (1, 2, 4):
        scores = torch.zeros(frames, 2)
        assert search_lattice(scores, graph, BEAMS[0]) is None
        assert advance_search(graph, BEAMS[0], scores, 1).finish() is None
    assert advance_search(graph, BEAMS[0], torch.zeros(3, 2), 2).finish() is not None
    search = OnlineSearch(graph, BEAMS[0])
    assert search.next_words() == [7]
    with pytest.raises(GraphMismatchError, match="has 2 pdfs, but the acoustic model has 1"):
        search.advance(torch.zeros(1, 1))


def test_memory_does_not_grow_with_decided_frames(language, graph):
    scores = language.sentence(5, 30.0).scores * SCALE
    search = advance_search(graph, BEAMS[0], scores, 50)
    arcs_per_frame = search.arcs_per_frame.tolist()
    assert len(arcs_per_frame) == len(scores)
    assert max(arcs_per_frame[:-60]) < max(arcs_per_frame[-10:])
    assert search.num_history_nodes < 2000  # of some hundred thousand beginnings


def test_the_caller_may_reuse_the_score_buffer(language, graph):
    scores = language.sentence(3, 1.5).scores * SCALE
    search, buffer = OnlineSearch(graph, BEAMS[0]), torch.empty(1, scores.shape[1])
    for row in scores:
        buffer[0] = row
        search.advance(buffer)
    assert arcs(search.finish()) == arcs(advance_search(graph, BEAMS[0], scores, 1).finish())
    with pytest.raises(ValueError, match="has ended"):
        search.finish()
