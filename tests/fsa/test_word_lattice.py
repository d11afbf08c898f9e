"""Word lattices equal the enumeration of their paths."""

import math

import numpy as np
import pytest

from tests.fsa.word_lattices import random_lattice, word_sequences
from toolkit.fsa.word_lattice import normalise_to_weight, union

SEEDS = range(20)


@pytest.mark.parametrize("seed", SEEDS)
def test_best_path_total_and_shares(seed):
    lattice = random_lattice(seed)
    scores = lattice.scores(0.3, -0.5)
    sequences = word_sequences(lattice, scores)
    assert sum(s == 0 for s in lattice.words) < lattice.num_arcs
    words, best = max(sequences, key=lambda pair: pair[1])
    assert tuple(lattice.best_words(scores)) == words
    assert scores[lattice.best_path(scores)].sum() == pytest.approx(best)
    assert lattice.total(scores) == pytest.approx(math.log(sum(math.exp(s) for _, s in sequences)))
    shares = np.bincount(
        lattice.target, lattice.incoming_arc_posteriors(scores), lattice.num_states
    )
    assert shares[1:] == pytest.approx(np.ones(lattice.num_states - 1))


def test_weights_equal_those_of_decoding():
    lattice = random_lattice(3)
    expected = lattice.graph + 0.1 * lattice.acoustic - 2.0 * (lattice.words > 0)
    assert lattice.scores(0.1, -2.0) == pytest.approx(expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_union_has_the_paths_of_its_parts_with_their_weights(seed):
    parts = [random_lattice(3 * seed + i, states=3 + i, arcs=8) for i in range(3)]
    scores = [part.scores(0.3) for part in parts]
    weights = (0.5, 0.2, 0.3)
    joined = union(
        [normalise_to_weight(p, s, w) for p, s, w in zip(parts, scores, weights, strict=True)]
    )
    assert (np.diff(joined.source) >= 0).all()
    assert (joined.target > joined.source).all()
    assert joined.times[0] == min(part.times[0] for part in parts)
    assert joined.times[-1] == max(part.times[-1] for part in parts)
    expected, posteriors = {}, {}
    for part, score, weight in zip(parts, scores, weights, strict=True):
        total = part.total(score)
        for words, score_of_words in word_sequences(part, score):
            expected[words] = expected.get(words, 0) + weight * math.exp(score_of_words - total)
    for words, score_of_words in word_sequences(joined, joined.scores(1.0)):
        posteriors[words] = posteriors.get(words, 0) + math.exp(score_of_words)
    assert posteriors == pytest.approx(expected)
    assert sum(posteriors.values()) == pytest.approx(1.0)
