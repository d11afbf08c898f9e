"""Searches that compute what they read, against the same searches of tensors of all scores."""

import numpy as np
import pytest
import torch
from numba import njit

from toolkit.fsa.config import Beam
from toolkit.fsa.fst import load_fst
from toolkit.fsa.search import GraphMismatchError, graph_arrays, search_best_paths
from toolkit.fsa.search_kernels import frame_row, kernel_scores, num_frames
from toolkit.hmm.gmm import Gmm, LazyGmmScores

BEAMS = [Beam(1000.0, 1000.0, 1, 10**6), Beam(4.0, 4.0), Beam(3.0, 3.0, min_active=2, max_active=4)]


def demanded(seed, frames, columns):
    """Scores by mixtures of two Gaussians each, whose pdfs stand in another order."""
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(2 * columns, 5, generator=generator)
    gmm = Gmm(
        torch.arange(columns).repeat_interleave(2),
        torch.full((2 * columns,), 0.5),
        means,
        torch.full_like(means, 0.5),
    )
    x = torch.randn(frames, 5, generator=generator)
    return LazyGmmScores(gmm, x, torch.randperm(columns, generator=generator)) * 0.3


@pytest.mark.parametrize("beam", BEAMS)
@pytest.mark.parametrize("seed", range(5))
def test_a_search_that_computes_what_it_reads_finds_the_same_path(random_graph, engine, seed, beam):
    made = random_graph(seed)
    graph = load_fst(made.path)
    lazy = [demanded(seed, frames, made.labels) for frames in (9, 4, 1)]
    found = search_best_paths(lazy, [graph] * 3, beam)
    wanted = search_best_paths([scores.dense() for scores in lazy], [graph] * 3, beam)
    assert [path is None for path in found] == [path is None for path in wanted]
    for path, other in zip(found, wanted, strict=True):
        if path is not None:
            assert path.words == other.words
            assert path.pdfs.tolist() == other.pdfs.tolist()
            assert path.score == pytest.approx(other.score, abs=1e-4)


def test_columns_that_a_graph_reads_and_nobody_scores_are_named(random_graph):
    made = random_graph(0)
    with pytest.raises(GraphMismatchError):
        search_best_paths([demanded(0, 4, made.labels - 1)], [load_fst(made.path)], BEAMS[0])


@njit
def rows(scores, graph, states):
    found = np.empty((num_frames(scores) + 1, len(frame_row(scores, 0, graph, states))), np.float32)
    for t in range(len(found)):
        found[t] = frame_row(scores, t, graph, states)
    return found


def test_a_row_has_the_scores_of_the_arcs_that_leave_the_states(random_graph):
    made = random_graph(3)
    graph = graph_arrays(load_fst(made.path))
    lazy = demanded(3, 6, made.labels)
    states = np.array([0, 2], np.int32)
    given = rows(kernel_scores(lazy.dense()), graph, states)
    computed = rows(kernel_scores(lazy), graph, states)
    assert given.shape == computed.shape == (7, made.labels + 2)
    np.testing.assert_array_equal(given[:-1, 2:], lazy.dense().numpy())
    read = {
        int(label) + 1
        for state in states
        for label in graph.label[graph.first[state] : graph.first[state + 1]]
        if label > 0
    }
    others = sorted(set(range(made.labels + 2)) - read)
    assert read
    assert others
    np.testing.assert_allclose(computed[:-1, sorted(read)], given[:-1, sorted(read)], atol=1e-4)
    assert (computed[:-1, others] == -np.inf).all()
    np.testing.assert_array_equal(computed[-1], given[-1])
    assert given[-1, 0] == 0
    assert (given[-1, 1:] == -np.inf).all()
