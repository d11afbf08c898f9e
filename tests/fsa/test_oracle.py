"""No path of a lattice has fewer errors than the oracle path."""

import numpy as np
import pytest

from tests.fsa.word_lattices import chain, distance, random_lattice, word_sequences
from toolkit.fsa.minimum_bayes_risk import oracle_words


@pytest.mark.parametrize("seed", range(40))
def test_no_path_is_nearer_to_the_reference(seed):
    lattice = random_lattice(seed)
    generator = np.random.default_rng(seed)
    sequences = {words for words, _ in word_sequences(lattice, lattice.graph)}
    for length in range(7):
        reference = generator.integers(1, 4, length).tolist()
        oracle = tuple(oracle_words(lattice, reference))
        assert oracle in sequences
        nearest = min(distance(words, reference) for words in sequences)
        assert distance(oracle, reference) == nearest


def test_words_that_the_lattice_does_not_have():
    assert oracle_words(chain([1, 2, 0]), [-1, -1, 2]) == [1, 2]
    assert oracle_words(chain([0]), [-1]) == []
