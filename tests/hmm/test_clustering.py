import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from toolkit.hmm.tree_growing import agglomerate, log_likelihood, variance_floor


def sums_of(x):
    return np.concatenate([[len(x)], x.sum(0), (x * x).sum(0)])


def test_likelihood_is_that_of_the_fitted_gaussian():
    x = np.random.default_rng(0).normal(3.0, 2.0, (50, 3))
    expected = norm.logpdf(x, x.mean(0), x.std(0)).sum()
    assert log_likelihood(sums_of(x), np.full(3, 0.01)) == pytest.approx(expected, rel=1e-12)


def test_likelihood_under_a_floored_variance():
    x = np.array([[1.0], [1.0], [1.2]])
    expected = norm.logpdf(x, x.mean(), 0.5).sum()
    assert log_likelihood(sums_of(x), np.array([0.25])) == pytest.approx(expected, rel=1e-12)


def test_no_frames_have_likelihood_zero():
    assert log_likelihood(np.zeros((2, 7)), np.ones(3)).tolist() == [0, 0]


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=12), st.data())
def test_splitting_frames_never_lowers_the_likelihood(values, data):
    x = np.array(values)[:, None]
    cut = data.draw(st.integers(1, len(x) - 1))
    floor = np.array([0.1])
    parts = log_likelihood(sums_of(x[:cut]), floor) + log_likelihood(sums_of(x[cut:]), floor)
    assert parts >= log_likelihood(sums_of(x), floor) - 1e-9


def test_floor_is_a_part_of_the_variance_of_all_frames():
    x = np.random.default_rng(1).normal(size=(40, 2)) * [1.0, 30.0]
    assert variance_floor(np.stack([sums_of(x[:9]), sums_of(x[9:])])) == pytest.approx(
        0.01 * x.var(0)
    )


def brute_force(clusters, floor, threshold):
    """Cluster by merging frames; each step searches all pairs."""
    alive = dict(enumerate(clusters))
    merges = []
    while len(alive) > 1:
        losses = {
            (i, j): log_likelihood(sums_of(alive[i]), floor)
            + log_likelihood(sums_of(alive[j]), floor)
            - log_likelihood(sums_of(np.concatenate([alive[i], alive[j]])), floor)
            for i in alive
            for j in alive
            if i < j
        }
        i, j = min(losses, key=losses.get)
        if losses[i, j] >= threshold:
            break
        alive[i] = np.concatenate([alive[i], alive.pop(j)])
        merges.append((i, j))
    return merges


@pytest.mark.parametrize("threshold", [0.0, 6.0, 20.0, np.inf])
@pytest.mark.parametrize("seed", range(3))
def test_merges_equal_brute_force(seed, threshold):
    rng = np.random.default_rng(seed)
    clusters = [rng.normal(rng.normal(0, 2, 2), 1.0, (rng.integers(2, 9), 2)) for _ in range(8)]
    floor = np.full(2, 0.05)
    merges = list(agglomerate(np.stack([sums_of(x) for x in clusters]), floor, threshold))
    assert merges == brute_force(clusters, floor, threshold)
    if threshold in (0.0, np.inf):
        assert len(merges) == (7 if threshold else 0)
