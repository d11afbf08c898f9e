import numpy as np
import pytest

pytest.importorskip("espeakng_loader")

from local import espeak
from local.espeak import SpeechSynthesisError, Voice, speak

TEXT = "the weather was cold in the north."


def test_samples_and_word_starts():
    speech = speak(TEXT, Voice("en-us+f3"))
    assert speech.samples.dtype == np.int16
    assert 1.0 < len(speech.samples) / espeak.SAMPLING_RATE < 4.0
    assert np.abs(speech.samples).max() > 3000
    starts = [start for start, _ in speech.words]
    assert starts == sorted(set(starts))
    assert starts[-1] < len(speech.samples)
    assert " ".join(words for _, words in speech.words) == TEXT


def test_a_word_is_not_split_where_espeak_marks_its_middle():
    speech = speak("it is too much fog.", Voice("en-us"))
    assert [words for _, words in speech.words] == ["it", "is", "too much", "fog."]


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


def test_missing_data_is_an_error_and_no_exit(monkeypatch, tmp_path):
    import espeakng_loader

    monkeypatch.setattr(espeakng_loader, "get_data_path", lambda: tmp_path)
    with pytest.raises(SpeechSynthesisError, match="reinstall"):
        speak(TEXT, Voice("en-us"))
