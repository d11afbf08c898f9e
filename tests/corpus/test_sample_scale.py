import numpy as np
import pytest
import soundfile

from toolkit.corpus.check.audio_info import decode
from toolkit.features.audio import AudioError, audio_blocks, decode_audio, load_audio

SAMPLES = 0.05 * np.random.default_rng(0).standard_normal(32000)
PAUSED = np.where(np.arange(32000) % 16000 < 1000, SAMPLES, 0)
CLICK = np.where(np.arange(32000) == 4000, 900.0, SAMPLES)


@pytest.fixture
def write(tmp_path):
    def write(samples, form="WAV"):
        path = tmp_path / "a"
        soundfile.write(path, samples.astype(np.float32), 16000, format=form, subtype="FLOAT")
        return path

    return write


@pytest.mark.parametrize("samples", [32768 * SAMPLES, 32768 * PAUSED, 128 * SAMPLES])
@pytest.mark.parametrize("form", ["WAV", "AIFF", "CAF"])
@pytest.mark.parametrize("channels", [1, 2])
def test_samples_scaled_to_integers_are_refused(write, samples, form, channels):
    path = write(np.stack([samples] * channels, axis=1), form)
    message = r"float samples up to [\d.,]+, which must lie in \[-1, 1\]"
    assert decode(str(path)).bad_scale
    with pytest.raises(AudioError, match=f"{path}: {message}"):
        load_audio(path)
    with pytest.raises(AudioError, match=f"{path}: {message}"):
        list(audio_blocks(path, 16000, 0.1))
    with pytest.raises(AudioError, match=f"name: {message}"):
        decode_audio(path.read_bytes(), "name")


@pytest.mark.parametrize(
    "samples",
    [SAMPLES, 6 * SAMPLES, 20 * SAMPLES, 0 * SAMPLES, CLICK, np.sign(SAMPLES)],
    ids=["quiet", "loud", "unit variance", "silent", "click", "full scale"],
)
def test_floats_that_overshoot_are_audio(write, samples):
    path = write(samples)
    assert not decode(str(path)).bad_scale
    assert len(load_audio(path)) == 32000
    assert sum(map(len, audio_blocks(path, 16000, 0.1))) == 32000
    assert decode_audio(path.read_bytes(), "name").num_samples == 32000
