import itertools
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from scipy.stats import t as student

from toolkit.score.significance import block_sums, interval_of, percent, resample

BLOCKS = np.array([[2, 5], [0, 3], [4, 9], [1, 1]])


def every_resample(blocks):
    """Return the sums of all B^B equally likely draws."""
    draws = itertools.product(range(len(blocks)), repeat=len(blocks))
    return np.array([blocks[list(draw)].sum(axis=0) for draw in draws])


def test_replicates_are_distributed_as_all_resamples():
    exact = every_resample(BLOCKS)
    drawn = resample(BLOCKS, replicates=100_000)
    assert drawn.shape == (100_000, 2)
    exact_rates, drawn_rates = percent(*exact.T), percent(*drawn.T)
    # 5 standard errors of a mean, of a variance, and of a probability
    assert abs(drawn_rates.mean() - exact_rates.mean()) < 5 * exact_rates.std() / 100_000**0.5
    assert drawn_rates.var() == pytest.approx(exact_rates.var(), rel=5 * (2 / 100_000) ** 0.5 * 2)
    for rate in np.unique(exact_rates):
        share = (exact_rates == rate).mean()
        error = (share * (1 - share) / 100_000) ** 0.5
        assert abs((np.isclose(drawn_rates, rate)).mean() - share) < 5 * error + 1e-9


def test_variance_of_a_sum_has_its_closed_form():
    drawn = resample(BLOCKS, replicates=100_000)
    variance = len(BLOCKS) * BLOCKS.var(axis=0)
    assert drawn.var(axis=0) == pytest.approx(variance, rel=0.03)
    assert drawn.mean(axis=0) == pytest.approx(BLOCKS.sum(axis=0), rel=0.01)


def test_draws_are_the_same_for_all_columns_and_any_number_of_them():
    replicates = resample(np.repeat(BLOCKS, 2, axis=1), replicates=500)
    assert (replicates[:, 0] == replicates[:, 1]).all()
    assert (replicates[:, [0, 2]] == resample(BLOCKS, replicates=500)).all()
    assert (resample(BLOCKS, 500, seed=2) != resample(BLOCKS, 500)).any()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), min_size=1), st.randoms())
def test_blocks_do_not_depend_on_the_order_of_utterances(rows, random):
    shuffled = list(rows)
    random.shuffle(shuffled)
    sums = [
        block_sums([name for name, _ in order], np.array([[n, 1] for _, n in order]))
        for order in (rows, shuffled)
    ]
    assert (sums[0] == sums[1]).all()
    names = sorted({name for name, _ in rows})
    assert sums[0][:, 0].tolist() == [sum(n for m, n in rows if m == name) for name in names]


def test_replicates_without_reference_units_are_left_out():
    assert percent(np.array([1, 1, 3]), np.array([4, 0, 3])).tolist() == [25.0, 100.0]


def test_many_units_have_plain_percentiles():
    rates = np.arange(100_001) / 1000
    interval = interval_of(rates, "utterance", 10**7)
    assert (interval.low, interval.high) == pytest.approx((2.5, 97.5), abs=1e-3)
    assert str(interval) == "95% Conf Interval [ 2.50, 97.50 ]"


def test_few_normal_units_have_students_interval():
    # The replicates of a mean of S normal values are normal with variance (S - 1) / S of s^2 / S.
    units, deviation = 9, 2.0
    spread = deviation / units**0.5 * ((units - 1) / units) ** 0.5
    rates = 50 + spread * norm.ppf((np.arange(200_000) + 0.5) / 200_000)
    interval = interval_of(rates, "speaker", units)
    half_width = student.ppf(0.975, units - 1) * deviation / units**0.5
    assert (interval.low, interval.high) == pytest.approx(
        (50 - half_width, 50 + half_width), abs=1e-2
    )


def test_blocks_cover_the_true_rate_where_single_utterances_do_not():
    """Speakers have unequal rates, so their utterances are not independent."""
    generator = np.random.default_rng(0)
    covered = {"speaker": 0, "utterance": 0}
    trials, speakers, each = 200, 30, 20
    for _ in range(trials):
        rates = generator.beta(2, 18, speakers)  # mean 10 %
        words = np.full((speakers, each), 10)
        errors = generator.binomial(words, rates[:, None])
        utterances = np.stack([errors.ravel(), words.ravel()], axis=1)
        names = [f"{n // each:02d}" for n in range(len(utterances))]
        for by, blocks in (
            ("speaker", block_sums(names, utterances)),
            ("utterance", utterances),
        ):
            replicates = percent(*resample(blocks, replicates=300).T)
            interval = interval_of(replicates, by, len(blocks))
            covered[by] += interval.low <= 10 <= interval.high
    assert covered["speaker"] >= 0.9 * trials
    assert covered["utterance"] <= 0.75 * trials


def test_ten_thousand_replicates_of_2600_utterances_take_less_than_a_second():
    blocks = np.random.default_rng(0).integers(0, 30, (2600, 3))
    times = []
    for _ in range(3):
        start = time.process_time()
        resample(blocks)
        times.append(time.process_time() - start)
    assert min(times) < 1
