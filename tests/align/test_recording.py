"""Windowed alignment against the alignment of the whole, on synthetic recordings."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from toolkit.align.config import COMPLETE_TEXTS, LongConfig
from toolkit.align.recording import NoPathError, PhonePosteriors, RecordingScores, align_long

WINDOWS = LongConfig(window=500, longest=1500, margin=80)
WHOLE = LongConfig(window=10**6, longest=10**6)
COMPLETE_WHOLE = replace(COMPLETE_TEXTS, window=10**6, longest=10**6)


def align(synthesise, synthetic, config, words=None):
    sizes = []

    def features(begin, end):
        return synthetic.scores[begin:end]

    recording = RecordingScores(
        features,
        lambda rows, pdfs: rows[:, pdfs],
        len(synthetic.scores),
        PhonePosteriors(synthesise.senones, 0.5),
    )
    window = recording.window

    def record_size(begin, end, pdfs, gap_level):
        sizes.append(end - begin)
        return window(begin, end, pdfs, gap_level)

    recording.window = record_size
    alignment = align_long(recording, words or synthetic.words, synthesise.compiler, config)
    return alignment, sizes


def assert_equal(alignment, whole):
    assert alignment.phones == whole.phones
    assert alignment.phone_frames == whole.phone_frames
    assert alignment.word_phones == whole.word_phones
    assert torch.allclose(alignment.log_posteriors, whole.log_posteriors, atol=1e-5)
    # A pause that was cut begins anew: at most three frames in other states for each.
    speech = alignment.frame_phones()
    differs = alignment.states != whole.states
    assert not (differs & (speech != 1)).any()


def starts(alignment):
    return torch.tensor([alignment.phone_frames[p] for p in alignment.word_phones])


@pytest.mark.parametrize("seed", range(3))
def test_windowed_alignment_equals_whole_alignment(synthesise, seed):
    synthetic = synthesise(150, seed)
    alignment, sizes = align(synthesise, synthetic, WINDOWS)
    whole, _ = align(synthesise, synthetic, WHOLE)
    assert_equal(alignment, whole)
    assert float(alignment.log_likelihoods.sum()) == pytest.approx(
        float(whole.log_likelihoods.sum())
    )
    assert max(sizes) <= WINDOWS.window * 5 // 4 < len(synthetic.scores) // 4
    assert (starts(alignment) - torch.tensor(synthetic.starts)).abs().float().mean() < 1


@pytest.mark.parametrize(
    "pauses",
    [
        {0: 900, 30: 450, 60: 700},  # longer than a window
        {20: 4000, 21: 2500, 60: 3000},  # longer than the longest window
        {0: 2600, 60: 2600},  # nothing but silence at both ends
    ],
)
def test_long_pauses_do_not_move_words(synthesise, pauses):
    synthetic = synthesise(60, 5, pauses)
    alignment, sizes = align(synthesise, synthetic, WINDOWS)
    whole, _ = align(synthesise, synthetic, WHOLE)
    assert_equal(alignment, whole)
    assert max(sizes) <= WINDOWS.longest * 5 // 4
    assert (starts(alignment) - torch.tensor(synthetic.starts)).abs().max() < 10


def test_noise_in_a_long_pause_draws_no_word(synthesise_monophones):
    # The next word's phones sound better than silence for a moment, long before it is spoken.
    synthesise = synthesise_monophones
    synthetic = synthesise(40, 6, {20: 1200})
    word = synthetic.words[20]
    frame = synthetic.starts[20] - 1000
    for phone in synthesise.lang.pronunciation_ids(word)[0]:
        for state in range(3):
            pdf = synthesise.senones.topology.state_id(phone, state)
            synthetic.scores[frame, pdf] += 10
            frame += 1
    alignment, _ = align(synthesise, synthetic, WINDOWS)
    assert abs(int(starts(alignment)[20]) - synthetic.starts[20]) < 10


def test_speech_without_pauses_is_split_between_words(synthesise):
    synthetic = synthesise(120, 3, chance=0.0)
    alignment, sizes = align(synthesise, synthetic, WINDOWS)
    whole, _ = align(synthesise, synthetic, WHOLE)
    assert len(sizes) > 4
    assert_equal(alignment, whole)


def test_words_that_a_window_placed_wrongly_are_realigned(synthesise_monophones):
    """Without gaps, the words left do not fit into the frames left."""
    # The first quarter sounds like silence although the words need nearly all frames: the first
    # window is wrong, which shows at the end.
    synthesise = synthesise_monophones
    words = [synthesise.names[0]] * 60
    needed = synthesise.compiler.min_frames(words)
    scores = torch.randn(
        needed + 20, synthesise.senones.num_pdfs, generator=torch.Generator().manual_seed(0)
    )
    scores[:, :5] -= 2.0
    scores[: needed // 4, :5] += 4.0
    synthetic = SimpleNamespace(words=words, scores=scores)
    sizes = {"window": needed // 2, "longest": needed + 100, "margin": needed // 20}
    alignment, windows = align(synthesise, synthetic, replace(COMPLETE_TEXTS, **sizes))
    whole, _ = align(synthesise, synthetic, COMPLETE_WHOLE)
    assert len(windows) > 1
    assert alignment.words == list(range(60))
    assert_equal(alignment, whole)


def test_more_words_than_audio_is_an_error_if_texts_are_complete(synthesise_monophones):
    synthetic = synthesise_monophones(60, 2)
    words = synthetic.words * 5
    windows = replace(COMPLETE_TEXTS, window=500, longest=1500, margin=80)
    for config in (windows, COMPLETE_WHOLE):
        with pytest.raises(NoPathError, match=r"from .* s on: .* words left need at least"):
            align(synthesise_monophones, synthetic, config, words)


def test_words_end_before_pauses(synthesise_monophones):
    synthetic = synthesise_monophones(5, 8, {0: 20, 2: 30, 5: 25}, chance=0.0)
    alignment, _ = align(synthesise_monophones, synthetic, WHOLE)
    ends = [*alignment.phone_frames[1:], alignment.num_frames]
    word_ends = [ends[p - 1] for p in alignment.word_ends(1)]
    expected = [*synthetic.starts[1:], alignment.num_frames - 25]
    expected[1] -= 30
    assert word_ends == pytest.approx(expected, abs=3)


@pytest.mark.parametrize("wrong", [{"margin": 3000}, {"longest": 10}])
def test_invalid_window_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=r"must satisfy 2 \* margin"):
        LongConfig(**wrong)
