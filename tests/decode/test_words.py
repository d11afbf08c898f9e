"""Confidences: agreement counted by hand, calibration against a fine grid."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from toolkit.decode.words import (
    Calibration,
    calibration_error,
    cross_entropy_gain,
    word_confidences,
)


def test_confidence_is_the_share_of_samples_that_agree():
    samples = [(1, 2, 3)] * 5 + [(1, 3)] * 3 + [(1, 4, 3), (2, 3)]
    expected = [(9 + 0.5) / 11, (6 + 0.5) / 11, (10 + 0.5) / 11]
    assert word_confidences([1, 2, 3], samples) == pytest.approx(expected)


def test_a_repeated_word_is_not_matched_with_its_repetition():
    samples = [(7, 7)] * 6 + [(7,)] * 4
    confidences = word_confidences([7, 7], samples)
    assert sum(confidences) == pytest.approx((6 + 10 + 1) / 11)
    assert word_confidences([], samples) == []


def draw_confidences(seed, offset, slope, count=4000):
    rng = np.random.default_rng(seed)
    raw = rng.beta(3, 1, count).clip(0.01, 0.99)
    odds = offset + slope * np.log(raw / (1 - raw))
    return raw, rng.random(count) < 1 / (1 + np.exp(-odds))


def test_calibration_recovers_the_drawn_line_and_beats_a_grid():
    raw, correct = draw_confidences(0, -1.0, 0.5)
    calibration = Calibration.fit(raw, correct)
    assert calibration.offset == pytest.approx(-1.0, abs=0.2)
    assert calibration.slope == pytest.approx(0.5, abs=0.1)
    gain = cross_entropy_gain(calibration(raw), correct)
    for offset in calibration.offset + np.linspace(-0.2, 0.2, 9):
        for slope in calibration.slope + np.linspace(-0.1, 0.1, 9):
            assert cross_entropy_gain(Calibration(offset, slope)(raw), correct) <= gain + 1e-4
    assert calibration_error(calibration(raw), correct) < 0.03 < calibration_error(raw, correct)


@pytest.mark.parametrize("correct", [[], [True] * 5, [False] * 5, [True, False]])
def test_calibration_of_little_data_stays_finite(correct):
    raw = [0.995, 0.9, 0.995, 0.9, 0.8][: len(correct)]
    calibration = Calibration.fit(raw, correct)
    assert all(0 < p < 1 for p in calibration([0.01, 0.5, 0.99]))
    assert math.isfinite(calibration.offset)
    assert math.isfinite(calibration.slope)


@pytest.mark.parametrize("seed", range(5))
def test_calibration_is_the_maximum_of_the_posterior(seed):
    """Against scipy, on so few words that the prior counts."""
    rng = np.random.default_rng(seed)
    confidences = rng.uniform(0.05, 0.95, 12)
    correct = rng.random(12) < 0.3
    log_odds = np.log(confidences / (1 - confidences))

    def negative_log_posterior(line):
        logits = line[0] + line[1] * log_odds
        log_likelihood = np.sum(correct * logits - np.logaddexp(0, logits))
        return -log_likelihood + 0.5 * (line[0] ** 2 + (line[1] - 1) ** 2)

    expected = minimize(negative_log_posterior, [0.0, 1.0], method="BFGS", tol=1e-10).x
    fit = Calibration.fit(confidences.tolist(), correct.tolist())
    assert (fit.offset, fit.slope) == pytest.approx(tuple(expected), abs=1e-5)


def test_calibration_error_of_two_bins():
    # 0.95, 0.95 (one right) and 0.15 (wrong): gaps of 0.9 and 0.15 over three words
    assert calibration_error([0.95, 0.95, 0.15], [True, False, False]) == pytest.approx(1.05 / 3)
    assert calibration_error([1.0], [True]) == 0.0


def test_cross_entropy_gain_is_zero_for_the_error_rate_and_one_for_certainty():
    correct = [True, True, True, False]
    assert cross_entropy_gain([0.75] * 4, correct) == pytest.approx(0.0)
    assert cross_entropy_gain([1 - 1e-9] * 3 + [1e-9], correct) == pytest.approx(1.0, abs=1e-6)
    assert cross_entropy_gain([0.1, 0.1, 0.1, 0.9], correct) < -1
    assert math.isnan(cross_entropy_gain([0.9], [True]))


def test_calibration_files_round_trip(tmp_path):
    line = Calibration(0.25, 0.75)
    line.save(tmp_path / "calibration.json")
    assert Calibration.load(tmp_path / "calibration.json") == line
