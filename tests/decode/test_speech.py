"""The speech detector, alone and in bundles."""

import logging
import math

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.robustness import without_speech
from toolkit.decode import speech
from toolkit.decode.recogniser import NetworkRecogniser
from toolkit.decode.sources import Inputs
from toolkit.decode.speech import (
    DETECTOR,
    FIRST_WINDOW,
    LEAST_FRAMES,
    STEP,
    WINDOW,
    SpeechDetector,
    SpeechDetectorError,
    SpeechStream,
    train_speech_detector,
)
from toolkit.decode.transcribe import transcribe
from toolkit.features.config import FrontendConfig
from toolkit.features.frontend import Frontend
from toolkit.features.nonspeech import SOURCES, synthetic_sound

FRONTEND = FrontendConfig(num_mel_bins=8)
ZEROS = -15.9
"""Log-mel energy of digital silence."""


def random_detector(seed=0, threshold=0.0):
    torch.manual_seed(seed)
    detector = SpeechDetector(FRONTEND).eval()
    detector.threshold.fill_(threshold)
    return detector


def scores_of_windows(detector, features):
    """Score every window as the module describes them, one by one."""
    frames = features[(features > -5).any(dim=1)]
    ends = [*range(FIRST_WINDOW, len(frames) + 1, STEP), len(frames)]
    ends = [end for end in ends if end >= LEAST_FRAMES]
    with torch.no_grad():
        return [float(detector(frames[max(0, end - WINDOW) : end][None])) for end in ends]


@given(
    st.integers(0, 400), st.lists(st.integers(1, 90), max_size=8), st.booleans(), st.integers(0, 99)
)
@settings(deadline=None, max_examples=60)
def test_a_stream_scores_the_windows_of_the_whole(frames, sizes, has_zeros, seed):
    generator = torch.Generator().manual_seed(seed)
    features = 8 + 4 * torch.randn(frames, 8, generator=generator)
    if has_zeros:
        features[frames // 3 : frames // 2] = ZEROS
    detector = random_detector(seed)
    expected = max(scores_of_windows(detector, features), default=-math.inf)
    assert detector.score(features) == pytest.approx(expected, abs=1e-5)
    stream = SpeechStream(detector, threshold=math.inf)
    begin = 0
    for size in [*sizes, frames]:
        stream.push(features[begin : begin + size])
        begin += size
    stream.finish()
    assert stream.score == pytest.approx(expected, abs=1e-5)
    for threshold in (expected - 0.1, expected + 0.1):
        if math.isfinite(expected):
            detector.threshold.fill_(threshold)
            assert detector.has_speech(features) == (expected > threshold)


def test_level_and_channel_do_not_matter():
    detector, features = random_detector(), 8 + torch.randn(120, 8)
    channel = torch.linspace(-2, 3, 8)
    assert detector.score(features + channel) == pytest.approx(detector.score(features), abs=1e-4)


@pytest.fixture(scope="module")
def trained():
    """A detector of babble, which stands for speech, trained in a few seconds."""
    from tests.decode.conftest import make_babble

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speech, "STEPS", 200)
        patch.setattr(speech, "SOUNDS", 120)
        utterances = [make_babble(seed, 2.0).numpy() for seed in range(40)]
        return train_speech_detector(utterances, FRONTEND)


def test_speech_is_told_from_other_sounds(trained):
    from tests.decode.conftest import make_babble

    detector, headline = trained
    frontend = Frontend(FRONTEND)
    assert headline["percent of held-out speech detected"] >= 90
    assert headline["percent of held-out sounds detected"] <= 40
    babble = [frontend(make_babble(seed, 2.0)) for seed in range(100, 120)]
    assert sum(map(detector.has_speech, babble)) >= 19
    sounds = [frontend(torch.from_numpy(x)) for _, x in without_speech(66)]
    assert sum(map(detector.has_speech, sounds)) <= 6


def test_a_stored_detector_is_the_same(trained, tmp_path):
    detector, _ = trained
    detector.save(tmp_path / DETECTOR)
    loaded = SpeechDetector.load(tmp_path / DETECTOR, FRONTEND)
    features = torch.randn(150, 8)
    assert loaded.score(features) == detector.score(features)
    assert loaded.threshold == detector.threshold


@pytest.mark.parametrize("damage", ["cut", "front end", "scale"])
def test_a_damaged_detector_is_refused(trained, tmp_path, damage):
    detector, path = random_detector(), tmp_path / DETECTOR
    if damage == "scale":
        detector.scale[3] = -1
    detector.save(path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-10])
    frontend = FrontendConfig(num_mel_bins=9) if damage == "front end" else FRONTEND
    with pytest.raises(SpeechDetectorError, match=DETECTOR):
        SpeechDetector.load(path, frontend)


def test_too_little_speech_is_an_error():
    # The first could be long enough, but not at a higher speed; the last has no frame.
    short = [np.ones(size, np.float32) for size in (3700, 1600, 400, 399, 1, 0)]
    with pytest.raises(SpeechDetectorError, match=r"5 utterances of at least 0\.2 s, .* only 0"):
        train_speech_detector(short, FRONTEND)


@pytest.mark.parametrize("is_speech", [True, False])
@pytest.mark.parametrize("kind", ["lstm", "tdnnf"])
def test_an_utterance_without_speech_has_no_words(
    bundle, babble, kind, is_speech, tmp_path, caplog
):
    folder = bundle(kind=kind)
    samples = babble(3, 2.0)
    expected = NetworkRecogniser(folder).recognise(samples)
    assert expected
    frontend = NetworkRecogniser(folder).frontend_config
    detector = SpeechDetector(frontend)
    detector.threshold.fill_(-1e6 if is_speech else 1e6)
    detector.save(folder / DETECTOR)
    recogniser = NetworkRecogniser(folder)
    assert recogniser.recognise(samples) == (expected if is_speech else "")
    stream = recogniser.stream(details=True)
    texts = {stream.push(piece).text for piece in samples.split(1600)}
    final = stream.finish()
    assert stream.has_speech == is_speech
    assert final.text == (expected if is_speech else "")
    assert is_speech or (texts, final.final.words) == ({""}, ())
    soundfile.write(tmp_path / "a.wav", samples.numpy(), 16000)
    sources = Inputs().sources([str(tmp_path / "a.wav")], None, tmp_path)
    with caplog.at_level(logging.WARNING):
        (transcript,) = transcribe(folder, sources)
    assert bool(transcript.text) == is_speech
    assert ("a.wav: no speech was found" in caplog.text) != is_speech


def test_sounds_are_varied_and_repeatable():
    for rate in (8000, 16000):
        sounds = [synthetic_sound(np.random.default_rng(n), rate, rate) for n in range(40)]
        again = synthetic_sound(np.random.default_rng(7), rate, rate)
        assert np.array_equal(sounds[7], again)
        for samples in sounds:
            assert samples.shape == (rate,)
            assert samples.dtype == np.float32
            assert 0 < np.abs(samples).max() < 0.71
        levels = [np.abs(samples).max() for samples in sounds]
        assert max(levels) > 100 * min(levels)


@pytest.mark.parametrize("source", sorted(SOURCES))
@pytest.mark.parametrize("size", [1, 100, 30_001])
def test_every_source_has_the_length_that_is_asked_for(source, size):
    for seed in range(10):
        samples = SOURCES[source](np.random.default_rng(seed), size, 16000)
        assert samples.shape == (size,)
        assert np.isfinite(samples).all()
