"""Averaging keeps the mean of the models and contracts their distance as the matrices say."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from toolkit.parallel.adpsgd import Learner, consensus_distance, is_active, partner, partners

SIZES = st.integers(2, 9)


def pair_matrix(learners, pairs):
    """Average within disjoint pairs, others stay: [K, K] float64."""
    matrix = torch.eye(learners, dtype=torch.float64)
    for a, b in pairs:
        matrix[[a, a, b, b], [a, b, a, b]] = 0.5
    return matrix


def second_eigenvalue(matrix):
    """Second largest modulus of a symmetric matrix's eigenvalues.

    For a pair drawn at random, pass the mean of the pairs' matrices: the expected square of the
    consensus distance contracts by it.
    """
    return float(torch.linalg.eigvalsh(matrix).abs().sort().values[-2])


def edges(learners, pattern):
    """List all pairs (active, passive) that can average."""
    active = filter(is_active, range(learners))
    return [(rank, passive) for rank in active for passive in partners(rank, learners, pattern)]


def drawn(learners, size=5, seed=0):
    return torch.randn(
        learners, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


@given(SIZES)
def test_matrices_are_symmetric_and_doubly_stochastic(learners):
    matrices = [pair_matrix(learners, [edge]) for edge in edges(learners, "fixed")]
    for matrix in matrices:
        assert torch.equal(matrix, matrix.T)
        assert matrix.min() >= 0
        assert torch.allclose(matrix.sum(dim=0), torch.ones(learners, dtype=torch.float64))


@pytest.mark.parametrize("pattern", ["fixed", "random"])
@given(learners=SIZES, seed=st.integers(0, 99))
def test_random_pairs_contract_the_expected_square_like_their_mean_matrix(pattern, learners, seed):
    models = drawn(learners, seed=seed)
    matrices = [pair_matrix(learners, [edge]) for edge in edges(learners, pattern)]
    squares = [consensus_distance(matrix @ models) ** 2 for matrix in matrices]
    bound = second_eigenvalue(sum(matrices) / len(matrices)) * consensus_distance(models) ** 2
    assert sum(squares) / len(squares) <= bound + 1e-12


@pytest.mark.parametrize("pattern", ["fixed", "random", "shuffled"])
@given(learners=SIZES)
def test_pairs_join_active_with_passive_and_connect_all(pattern, learners):
    pairs = edges(learners, pattern)
    assert all(is_active(a) and not is_active(b) for a, b in pairs)
    for rank in range(learners):
        neighbours = [b if a == rank else a for a, b in pairs if rank in (a, b)]
        assert sorted(neighbours) == sorted(partners(rank, learners, pattern))
    reached = {0}
    for _ in range(learners):
        reached |= {x for pair in pairs if reached & set(pair) for x in pair}
    assert reached == set(range(learners))


@given(learners=SIZES, seed=st.integers(0, 9))
def test_neighbours_take_turns_and_random_partners_differ(learners, seed):
    for rank in range(0, learners, 2):
        fixed = [partner(rank, learners, "fixed", n) for n in range(4)]
        assert set(fixed) == set(partners(rank, learners, "fixed"))
        random = [partner(rank, learners, "random", n, seed) for n in range(60)]
        assert random == [partner(rank, learners, "random", n, seed) for n in range(60)]
        assert set(random) == set(partners(rank, learners, "random"))


def test_a_first_round_on_a_fixed_ring_pairs_everybody():
    for learners in (2, 4, 6, 8):
        chosen = [partner(rank, learners, "fixed", 0) for rank in range(0, learners, 2)]
        assert sorted(chosen) == list(range(1, learners, 2))


@given(st.integers(1, 8), st.integers(0, 99))
def test_a_shuffled_ring_pairs_everybody_each_time_anew(pairs, number):
    learners = 2 * pairs
    chosen = [partner(rank, learners, "shuffled", number) for rank in range(0, learners, 2)]
    assert sorted(chosen) == list(range(1, learners, 2))
    rounds = {partner(0, learners, "shuffled", n) for n in range(60)}
    assert rounds == set(range(1, learners, 2))


@given(SIZES, st.integers(0, 99))
def test_learners_average_like_the_matrices(learners, seed):
    models = drawn(learners, seed=seed)
    group = [Learner(model) for model in models]
    for number in range(6):
        for rank in range(0, learners, 2):
            neighbour = partner(rank, learners, "random", number, seed)
            group[rank].apply_correction(group[neighbour].average_with(group[rank].weights()))
            models = pair_matrix(learners, [(rank, neighbour)]) @ models
    weights = torch.stack([learner.weights() for learner in group])
    assert torch.allclose(weights, models)
    assert (
        consensus_distance(weights) < consensus_distance(drawn(learners, seed=seed))
        or learners == 1
    )


def test_pair_matrix_by_hand():
    assert pair_matrix(3, [(0, 2)]).tolist() == [[0.5, 0, 0.5], [0, 1, 0], [0.5, 0, 0.5]]
    for a, b in itertools.combinations(range(4), 2):
        assert pair_matrix(4, [(a, b)]).diagonal().sum() == 3
