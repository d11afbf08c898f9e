"""Alignment of transcripts that lack words of the audio, or have words that nobody spoke."""

import random
from dataclasses import replace
from types import SimpleNamespace

import torch

from tests.align.test_recording import align
from toolkit.align.config import NO_GAPS, LongConfig
from toolkit.align.recording import RecordingAlignment
from toolkit.fsa.lexicon import GAP

WINDOWS = LongConfig(window=1500, longest=4000, margin=200, gap_levels=(2.0,))
"""The spoken pdf of a synthetic frame is often the best one: a lower level than for speech."""


def frames_in_gaps(alignment):
    return set((alignment.frame_phones() == GAP).nonzero().flatten().tolist())


def starts_by_position(alignment):
    phones = dict(zip(alignment.words, alignment.word_phones, strict=True))
    return {position: alignment.phone_frames[phone] for position, phone in phones.items()}


def test_missing_and_superfluous_passages_leave_other_words_in_place(synthesise_monophones):
    words = misplaced = unspoken = found_unspoken = missing = not_in_gaps = 0
    for seed in range(12):
        rng = random.Random(seed)
        synthetic = synthesise_monophones(90, seed, chance=0.3, noise=2.0)
        ends = [*synthetic.starts[1:], len(synthetic.scores)]
        # The text lacks four to six seconds of words, and has up to 20 words that nobody spoke.
        first, count, place = rng.randint(0, 65), rng.randint(15, 25), rng.randint(0, 90)
        added = rng.choices(synthesise_monophones.names, k=rng.randint(0, 20))
        # Position in the audio, or None; word.
        kept = [(i, w) for i, w in enumerate(synthetic.words) if not first <= i < first + count]
        before = sum(i < place for i, _ in kept)
        text = [*kept[:before], *((None, word) for word in added), *kept[before:]]
        alignment, _ = align(synthesise_monophones, synthetic, WINDOWS, [word for _, word in text])
        starts = starts_by_position(alignment)
        for position, (i, _) in enumerate(text):
            if i is not None:
                words += 1
                misplaced += abs(starts.get(position, -99) - synthetic.starts[i]) > 5
            else:
                unspoken += 1
                found_unspoken += position in starts
        frames = set(range(synthetic.starts[first], ends[first + count - 1]))
        missing += len(frames)
        not_in_gaps += len(frames - frames_in_gaps(alignment))
    assert misplaced < 0.03 * words
    assert found_unspoken < 0.1 * unspoken
    # At the edges of a gap, a word of the audio may sound like the next one of the text.
    assert not_in_gaps < 0.15 * missing


def test_a_complete_transcript_has_no_gaps(synthesise):
    synthetic = synthesise(150, 4)
    alignment, _ = align(synthesise, synthetic, WINDOWS)
    assert alignment.words == list(range(150))
    assert not frames_in_gaps(alignment)


def test_more_words_than_audio_are_jumped_over(synthesise_monophones):
    synthetic = synthesise_monophones(60, 2)
    alignment, _ = align(synthesise_monophones, synthetic, WINDOWS, synthetic.words * 5)
    starts = starts_by_position(alignment)
    # Each word was found in one of the copies.
    word_starts = {position % 60: frame for position, frame in starts.items()}
    in_place = [
        abs(word_starts.get(i, -99) - start) <= 5 for i, start in enumerate(synthetic.starts)
    ]
    assert sum(in_place) >= 55
    assert len(starts) <= 64


def test_a_higher_level_is_taken_for_the_right_text_alone(synthesise_monophones):
    """The first level is so low that it finds few words of any text."""
    config = replace(WINDOWS, gap_levels=(0.05, NO_GAPS))
    synthetic = synthesise_monophones(40, 5, chance=0.5, noise=2.0)
    alignment, _ = align(synthesise_monophones, synthetic, config)
    assert alignment.words == list(range(40))
    other = synthesise_monophones(40, 6).words
    for words in (other, synthetic.words[::-1]):
        alignment, _ = align(synthesise_monophones, synthetic, config, words)
        assert len(alignment.words) < 20


def test_a_text_that_reads_alike_in_both_directions_may_take_a_higher_level(synthesise_monophones):
    config = replace(WINDOWS, gap_levels=(0.05, NO_GAPS))
    synthetic = synthesise_monophones(1, 7, noise=2.0)
    repeated = SimpleNamespace(words=synthetic.words * 20, scores=synthetic.scores.repeat(20, 1))
    alignment, _ = align(synthesise_monophones, repeated, config)
    assert alignment.words == list(range(20))


def test_a_text_with_few_of_the_words_is_not_aligned_whole():
    """Single words of another text fit by chance, so that no gap is long."""
    alignment = RecordingAlignment(
        torch.zeros(400), torch.zeros(400), torch.zeros(133), 400, [GAP, 2, GAP], [0, 140, 270]
    )
    third = replace(alignment, words=[3], word_phones=[1])
    assert not third.lacks_single_words(7)
    half = replace(alignment, words=[1, 2, 4], word_phones=[1, 1, 1])
    assert half.lacks_single_words(6)
    assert alignment.lacks_single_words(1)
    assert not replace(half, words=[0, 1, 2, 3, 4, 5]).lacks_single_words(6)


def test_speech_after_a_gap_longer_than_the_longest_window_is_found(synthesise_monophones):
    config = LongConfig(window=500, longest=1000, margin=80, gap_levels=(2.0,))
    synthetic = synthesise_monophones(300, 8)
    missing = range(40, 260)
    text = [word for i, word in enumerate(synthetic.words) if i not in missing]
    assert synthetic.starts[260] - synthetic.starts[40] > 2 * config.longest
    alignment, _ = align(synthesise_monophones, synthetic, config, text)
    starts = starts_by_position(alignment)
    expected = [start for i, start in enumerate(synthetic.starts) if i not in missing]
    misplaced = [i for i, start in enumerate(expected) if abs(starts.get(i, -99) - start) > 5]
    assert len(misplaced) <= 4


def test_a_text_much_longer_than_the_audio_is_cut(synthesise_monophones):
    synthetic = synthesise_monophones(30, 9)
    text = synthetic.words + synthesise_monophones(4000, 10).words
    alignment, _ = align(synthesise_monophones, synthetic, WINDOWS, text)
    starts = starts_by_position(alignment)
    in_place = [abs(starts.get(i, -99) - start) <= 5 for i, start in enumerate(synthetic.starts)]
    assert sum(in_place) >= 28
