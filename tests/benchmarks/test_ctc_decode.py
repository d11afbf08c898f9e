"""The benchmark of CTC decoders: synthetic posteriors, exact scores, flashlight beside ours."""

import itertools
import math

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.ctc_decode import (
    FLASHLIGHT,
    OURS,
    Row,
    command,
    compare_with_others,
    measure,
    text_score,
)
from benchmarks.peers import FLASHLIGHT_TEXT, PYCTCDECODE
from benchmarks.synthetic import FRAMES, LABELS, Emissions, SyntheticCtcTask
from tests.optional import load_torchaudio
from toolkit.decode.ctc.search import collapse


@pytest.fixture(scope="module")
def material():
    return SyntheticCtcTask.make(words=200, utterances=2, sentences=300)


def test_emissions_without_noise_decode_to_the_labels():
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
    redrawn_material = SyntheticCtcTask.make(words=200, utterances=2, sentences=300)
    assert redrawn_material.texts == material.texts
    for redrawn, drawn in zip(redrawn_material.posteriors, material.posteriors, strict=True):
        assert np.array_equal(redrawn, drawn)
        assert redrawn.shape == (FRAMES, material.units.size)
    for text in material.texts:
        assert len(material.units.encode(text)) <= LABELS
        assert set(text.split()) <= set(material.dictionary.words)


@pytest.mark.parametrize("name", [FLASHLIGHT, FLASHLIGHT_TEXT, PYCTCDECODE])
def test_a_wide_beam_scores_at_least_as_well_as_others(material, tmp_path, name):
    if name == FLASHLIGHT:
        load_torchaudio("models.decoder")
    modes, widths = ("words", "forecast"), (32,)
    rows, missing = measure(material, modes, widths, 1, tmp_path)
    if reasons := [reason for reason in missing if reason.startswith((f"{name}:", f"{name} "))]:
        pytest.skip(reasons[0])
    by_decoder = {(row.mode, row.decoder): row for row in rows}
    for mode in modes if name != PYCTCDECODE else ("forecast",):
        assert by_decoder[mode, OURS].score >= by_decoder[mode, name].score - 1e-3
        assert by_decoder[mode, name].score > -1000  # it found words
        assert by_decoder[mode, OURS].microseconds > 0


def test_the_reference_scores_at_least_as_high_as_other_texts(material):
    for mode in ("words", "forecast"):
        for i, text in enumerate(material.texts):
            wrong = " ".join(reversed(text.split()))
            assert text_score(material, mode, i, text) > text_score(material, mode, i, wrong)
    impossible = text_score(material, "words", 0, "A" * FRAMES)
    assert impossible == -math.inf


def test_verdicts_compare_like_with_like():
    rows = [
        Row("words", OURS, 8, 1.5, -12.0, 5.0),
        Row("words", FLASHLIGHT, 8, 2.0, -11.0, 5.0),
        Row("words", OURS, 256, 1.0, -10.0, 5.0),
        Row("words", FLASHLIGHT, 256, 2.0, -12.0, 5.0),
        Row("words", PYCTCDECODE, 256, 2.0, -9.0, 5.0),
        Row("forecast", OURS, 256, 3.0, -12.0, 5.0),
    ]
    target, narrow, wide, better, missed = compare_with_others(rows)
    assert "1.00 us" in target
    assert "met" in target
    assert "0.75 of flashlight's time (scores -12.00, -11.00)" in narrow
    assert "with our width 256, 16.00" in narrow
    assert "0.50 of flashlight's time (scores -10.00, -12.00)" in wide
    assert "with our width 8, 0.02" in wide
    assert "no width of ours scores as well" in better
    assert "missed" in missed


@pytest.mark.parametrize("option", ["--words", "--utterances", "--width", "--rounds"])
def test_numbers_below_one_are_refused(option):
    result = CliRunner().invoke(command, [option, "0"])
    assert result.exit_code == 2, result.output
    assert option in result.output
