"""The benchmark of CTC decoders: synthetic posteriors, exact scores, flashlight beside ours."""

import itertools
import math

import numpy as np
import pytest

from tests.optional import load_torchaudio
from toolkit.bench.ctc.decode import (
    FLASHLIGHT,
    OURS,
    Row,
    compare_with_flashlight,
    measure,
    text_score,
)
from toolkit.bench.ctc.emissions import Emissions
from toolkit.bench.ctc.synthetic_task import FRAMES, LABELS, SyntheticCtcTask
from toolkit.decode.ctc.greedy import collapse


@pytest.fixture(scope="module")
def material():
    return SyntheticCtcTask.make(words=200, utterances=2, sentences=300)


def test_emissions_without_noise_say_the_labels():
    labels = [3, 3, 1, 2, 2, 2, 0]
    quiet = Emissions(noise=0.0, confusion=0.0, missed=0.0)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        log_probs = quiet.draw(labels, 5, 4, rng, frames=12 + 6 * seed)
        assert log_probs.shape == (12 + 6 * seed, 5)
        assert log_probs.dtype == np.float32
        assert np.exp(log_probs).sum(axis=1) == pytest.approx(1.0, abs=1e-5)
        assert collapse(log_probs.argmax(axis=1).tolist(), 4) == labels


def test_labels_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="more than 3 frames"):
        Emissions().draw([1, 1, 2], 4, 3, np.random.default_rng(0), frames=3)


def test_confusions_make_errors():
    labels = list(itertools.islice(itertools.cycle(range(20)), 400))
    log_probs = Emissions(noise=0.0).draw(labels, 30, 29, np.random.default_rng(0))
    assert collapse(log_probs.argmax(axis=1).tolist(), 29) != labels


def test_material_is_the_same_in_every_call_and_fits(material):
    again = SyntheticCtcTask.make(words=200, utterances=2, sentences=300)
    assert again.texts == material.texts
    for one, other in zip(again.posteriors, material.posteriors, strict=True):
        assert np.array_equal(one, other)
        assert one.shape == (FRAMES, material.units.size)
    for text in material.texts:
        assert len(material.units.encode(text)) <= LABELS
        assert set(text.split()) <= set(material.dictionary.words)


def test_a_wide_beam_scores_at_least_as_well_as_flashlight(material, tmp_path):
    load_torchaudio("models.decoder")
    modes, widths = ("words", "forecast"), (32,)
    rows, missing = measure(material, modes, widths, 1, tmp_path)
    if missing:
        pytest.skip(missing)
    by_decoder = {(row.mode, row.decoder): row for row in rows}
    for mode in modes:
        assert by_decoder[mode, OURS].score >= by_decoder[mode, FLASHLIGHT].score - 1e-3
        assert by_decoder[mode, OURS].microseconds > 0


def test_what_was_said_scores_at_least_as_high_as_other_texts(material):
    for mode in ("words", "forecast"):
        for i, text in enumerate(material.texts):
            wrong = " ".join(reversed(text.split()))
            assert text_score(material, mode, i, text) > text_score(material, mode, i, wrong)
    impossible = text_score(material, "words", 0, "A" * FRAMES)
    assert impossible == -math.inf


def test_verdicts_compare_like_with_like():
    rows = [
        Row("words", OURS, 256, 1.0, -10.0, 5.0),
        Row("words", FLASHLIGHT, 256, 2.0, -11.0, 5.0),
        Row("forecast", OURS, 256, 3.0, -12.0, 5.0),
    ]
    first, second, third = compare_with_flashlight(rows)
    assert "1.00 us" in first
    assert "met" in first
    assert "0.50 of flashlight's time, scores at least as good" in second
    assert "missed" in third
