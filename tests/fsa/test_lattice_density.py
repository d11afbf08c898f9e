"""Pruning to a density equals the enumeration of all paths of a small graph."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from toolkit.fsa.config import Beam
from toolkit.fsa.fst import Fst, dump_fst, load_fst
from toolkit.fsa.lattice import prune_to_density
from toolkit.fsa.search import search_lattice

FRAMES = 5
WIDE = Beam(1000.0, 1000.0, 1, 10**6)


def random_scores(seed, frames=FRAMES):
    return 2 * torch.randn(frames, 4, generator=torch.Generator().manual_seed(seed))


def losses_of(graph, scores):
    """By (frame, arc): the score of the best path minus that of the best path through the arc."""
    best = {}
    for path in graph.paths(len(scores)):
        score = graph.score(path, scores)
        for place in enumerate(path):
            best[place] = max(best.get(place, -math.inf), score)
    top = max(best.values())
    return {place: top - score for place, score in best.items()}


def places(lattice):
    return set(zip(lattice.frame.tolist(), lattice.arc.tolist(), strict=True))


def full_lattice(graph, scores, beam=WIDE):
    return search_lattice(scores, load_fst(graph.path), beam)


@pytest.mark.parametrize("density", [1.0, 2.0, 3.3, 6.0, 100.0])
@pytest.mark.parametrize("seed", range(4))
def test_keeps_the_arcs_of_the_best_paths_up_to_the_density(random_graph, seed, density):
    graph, scores = random_graph(seed), random_scores(seed)
    losses = losses_of(graph, scores)
    pruned = prune_to_density(full_lattice(graph, scores), FRAMES, density, beam=500.0)
    kept_places = places(pruned)
    most = int(density * FRAMES)
    emitting = sorted(loss for (frame, _), loss in losses.items() if frame < FRAMES)
    assert pruned.num_emitting <= most
    assert kept_places <= set(losses)
    worst_kept = max(losses[place] for place in kept_places)
    best_dropped = min(
        (loss for p, loss in losses.items() if p not in kept_places), default=math.inf
    )
    assert worst_kept < best_dropped
    if len(kept_places) < len(losses):  # one more path would be too much
        assert sum(loss <= best_dropped + 1e-5 for loss in emitting) > most
    assert pruned.frames == FRAMES
    assert np.array_equal(np.lexsort((pruned.arc, pruned.frame)), np.arange(len(pruned.arc)))


@pytest.mark.parametrize("beam", [0.5, 2.0, 4.0])
def test_the_beam_limits_arcs_that_the_density_allows(random_graph, beam):
    graph, scores = random_graph(1), random_scores(1)
    losses = losses_of(graph, scores)
    expected = {place for place, loss in losses.items() if loss < beam}
    assert 0 < len(expected) < len(losses)
    # What a search returns beyond its output beam makes no difference.
    for output in (beam, 30.0):
        lattice = full_lattice(graph, scores, Beam(1000.0, output, 1, 10**6))
        assert places(prune_to_density(lattice, FRAMES, 100.0, beam)) == expected


def test_the_beam_also_limits_final_arcs():
    """Even where the density and the beam allow all other arcs."""
    two_ends = Fst(
        source=np.array([0, 1, 1], np.int32),
        target=np.array([1, 2, 2], np.int32),
        labels=np.array([1, -1, -1], np.int32),
        scores=np.array([0, 0, -9], np.float32),
        splits=np.zeros(4, np.int32),
        words=np.zeros(0, np.int32),
    )
    lattice = search_lattice(torch.zeros(1, 1), two_ends, WIDE)
    assert places(prune_to_density(lattice, 1, 100.0, beam=10.0)) == {(0, 0), (1, 1), (1, 2)}
    assert places(prune_to_density(lattice, 1, 100.0, beam=8.0)) == {(0, 0), (1, 1)}


def test_paths_of_equal_score_are_kept_together(random_graph):
    graph = random_graph(2)
    graph.fst = replace(graph.fst, scores=np.zeros_like(graph.fst.scores))
    graph.path.write_bytes(dump_fst(graph.fst))
    scores = torch.zeros(FRAMES, 4)
    everything = set(losses_of(graph, scores))
    pruned = prune_to_density(full_lattice(graph, scores), FRAMES, 2.0, beam=8.0)
    assert places(pruned) == everything  # more than asked for: none is better than another
