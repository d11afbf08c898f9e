"""Searches with lazy scores equal searches with dense scores."""

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


def lazy_scores(seed, frames, columns):
    """Lazy scores of mixtures of two Gaussians, with permuted pdfs."""
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
    reference_graph = random_graph(seed)
    graph = load_fst(reference_graph.path)
    lazy = [lazy_scores(seed, frames, reference_graph.labels) for frames in (9, 4, 1)]
    lazy_paths = search_best_paths(lazy, [graph] * 3, beam)
    dense_paths = search_best_paths([scores.dense() for scores in lazy], [graph] * 3, beam)
    assert [path is None for path in lazy_paths] == [path is None for path in dense_paths]
    for lazy_path, dense_path in zip(lazy_paths, dense_paths, strict=True):
        if lazy_path is not None:
            assert lazy_path.words == dense_path.words
            assert lazy_path.pdfs.tolist() == dense_path.pdfs.tolist()
            assert lazy_path.score == pytest.approx(dense_path.score, abs=1e-4)


def test_columns_that_a_graph_reads_and_nothing_scores_are_an_error(random_graph):
    reference_graph = random_graph(0)
    with pytest.raises(GraphMismatchError):
        search_best_paths(
            [lazy_scores(0, 4, reference_graph.labels - 1)],
            [load_fst(reference_graph.path)],
            BEAMS[0],
        )


@njit
def rows(scores, graph, states):
    table = np.empty((num_frames(scores) + 1, len(frame_row(scores, 0, graph, states))), np.float32)
    for t in range(len(table)):
        table[t] = frame_row(scores, t, graph, states)
    return table


def test_a_row_has_the_scores_of_the_arcs_that_leave_the_states(random_graph):
    reference_graph = random_graph(3)
    graph = graph_arrays(load_fst(reference_graph.path))
    lazy = lazy_scores(3, 6, reference_graph.labels)
    states = np.array([0, 2], np.int32)
    dense_rows = rows(kernel_scores(lazy.dense()), graph, states)
    lazy_rows = rows(kernel_scores(lazy), graph, states)
    assert dense_rows.shape == lazy_rows.shape == (7, reference_graph.labels + 2)
    np.testing.assert_array_equal(dense_rows[:-1, 2:], lazy.dense().numpy())
    read = {
        int(label) + 1
        for state in states
        for label in graph.label[graph.first[state] : graph.first[state + 1]]
        if label > 0
    }
    unread = sorted(set(range(reference_graph.labels + 2)) - read)
    assert read
    assert unread
    np.testing.assert_allclose(
        lazy_rows[:-1, sorted(read)], dense_rows[:-1, sorted(read)], atol=1e-4
    )
    assert (lazy_rows[:-1, unread] == -np.inf).all()
    np.testing.assert_array_equal(lazy_rows[-1], dense_rows[-1])
    assert dense_rows[-1, 0] == 0
    assert (dense_rows[-1, 1:] == -np.inf).all()
