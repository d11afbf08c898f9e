import numpy as np
import pytest

pytest.importorskip("espeakng_loader")

from local.synthetic import espeak
from local.synthetic.espeak import SpeechSynthesisError, Voice, speak

TEXT = "the weather was cold in the north."


def loud(samples):
    """Whether each sample is within 2 ms of one at most 46 dB below the peak."""
    level = np.abs(samples.astype(np.float64))
    return np.convolve(level > level.max() / 200, np.ones(89), "same") > 0


def test_samples_and_words():
    speech = speak(TEXT, Voice("en-us+f3"))
    assert speech.samples.dtype == np.int16
    assert 1.0 < len(speech.samples) / espeak.SAMPLING_RATE < 4.0
    assert np.abs(speech.samples).max() > 3000
    assert " ".join(word.text for word in speech.words) == TEXT
    for word, next_word in zip(speech.words, speech.words[1:], strict=False):
        assert word.start < word.end <= next_word.start
    assert speech.words[-1].end <= len(speech.samples)


@pytest.mark.parametrize("variant", ["f1", "m1", "linda", "max"])
@pytest.mark.parametrize("text", ["two cats, and some eggs.", "plums, peaches, and better butter."])
def test_sound_is_where_the_words_are_and_pauses_are_silent(text, variant):
    speech = speak(text, Voice(f"en-us+{variant}"))
    is_loud = loud(speech.samples)
    first, last = speech.words[0], speech.words[-1]
    assert abs(np.argmax(is_loud) - first.start) < 0.004 * espeak.SAMPLING_RATE
    assert abs(len(is_loud) - np.argmax(is_loud[::-1]) - last.end) < 0.015 * espeak.SAMPLING_RATE
    pauses = [
        (word.end, next_word.start)
        for word, next_word in zip(speech.words, speech.words[1:], strict=False)
        if word.text.endswith(",")
    ]
    for start, end in pauses:
        assert end - start > 0.05 * espeak.SAMPLING_RATE
        assert not np.any(is_loud[start + 220 : end - 110])
        assert np.all(is_loud[[start - 330, end + 110]])


def test_hissing_starts_and_ends_with_its_word():
    speech = speak("we see a glass on it.", Voice("en-us+m1"))
    spectrum = np.abs(np.fft.rfft(np.lib.stride_tricks.sliding_window_view(
        speech.samples.astype(np.float64), 220)[::22], axis=1))  # fmt: skip
    treble = np.sum(spectrum[:, 45:] ** 2, axis=1)  # above 4.5 kHz, every ms
    times = {word.text: (word.start // 22, word.end // 22) for word in speech.words}
    middle = 5  # ms, of the window
    see, glass = times["see"][0], times["glass"][1]
    assert treble[see + 30] > 100 * treble[see - 20]
    assert treble[glass - 30] > 100 * treble[glass + 20]
    threshold = np.sqrt(treble[see + 30] * treble[see - 20])
    assert abs(see - 20 + np.argmax(treble[see - 20 :] > threshold) + middle - see) < 20


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("he lives in the north.", "the"),
        ("it is too much fog.", "much"),
        ("colder than a winter.", "a"),
        ("we walked for a mile.", "a"),
        ("at a quarter to ten.", "a"),
        ("there was an apple.", "was"),
    ],
)
def test_words_spoken_as_one_have_their_own_times(text, word):
    speech = speak(text, Voice("en-us"))
    assert [spoken.text for spoken in speech.words] == text.split()
    lengths = [spoken.end - spoken.start for spoken in speech.words]
    number = text.split().index(word)
    assert speech.words[number - 1].end == speech.words[number].start
    assert all(0.03 < length / espeak.SAMPLING_RATE < 0.8 for length in lengths)


def test_a_vowel_begins_after_the_nasal_of_the_word_before():
    voice = Voice("en-us+m1")
    words = speak("rain in an apple.", voice).words
    starts = [word.start / espeak.SAMPLING_RATE for word in words]
    # Looked up in a spectrogram: where the formants above 1 kHz rise after each N.
    np.testing.assert_allclose(starts[1:], [0.242, 0.320, 0.410], atol=0.02)


@pytest.mark.parametrize("variant", ["f1", "m1", "steph", "Annie"])
def test_nothing_spoken_before_changes_the_samples(variant):
    voice = Voice(f"en-us+{variant}", pitch=45, rate=170)
    first = speak(TEXT, voice).samples
    speak("something else entirely", Voice("en-us+m3", pitch=90, pitch_range=90, rate=250))
    np.testing.assert_array_equal(speak(TEXT, voice).samples, first)


def test_settings_change_the_speech():
    base = speak(TEXT, Voice("en-us+f3")).samples
    fast = speak(TEXT, Voice("en-us+f3", rate=250)).samples
    high = speak(TEXT, Voice("en-us+f3", pitch=80)).samples
    assert len(fast) < 0.8 * len(base)
    assert not np.array_equal(high[: len(base)], base[: len(high)])


def test_an_unknown_voice_is_named():
    with pytest.raises(SpeechSynthesisError, match="xx-nowhere"):
        speak(TEXT, Voice("xx-nowhere"))


def test_data_under_a_very_long_path(monkeypatch, tmp_path):
    import espeakng_loader

    expected = speak(TEXT, Voice("en-us+f3")).samples
    folder = tmp_path / ("x" * 120) / ("y" * 120)
    folder.mkdir(parents=True)
    (folder / "espeak-ng-data").symlink_to(espeakng_loader.get_data_path())
    monkeypatch.setattr(espeakng_loader, "get_data_path", lambda: folder / "espeak-ng-data")
    np.testing.assert_array_equal(speak(TEXT, Voice("en-us+f3")).samples, expected)


def test_missing_data_is_an_error_instead_of_an_exit(monkeypatch, tmp_path):
    import espeakng_loader

    monkeypatch.setattr(espeakng_loader, "get_data_path", lambda: tmp_path)
    with pytest.raises(SpeechSynthesisError, match="reinstall"):
        speak(TEXT, Voice("en-us"))
