"""Opening audio files; float samples that are scaled to integers."""

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile

from toolkit.corpus.audio import encode_audio, open_audio
from toolkit.corpus.check import decode
from toolkit.features.audio import AudioError, audio_blocks, decode_audio, load_audio


@pytest.fixture
def pair(audio, streamed, tmp_path):
    """The samples of a file of 5 s with two channels, and the file without its length."""
    path = audio(tmp_path / "a.flac", seconds=5.0, channels=2)
    return soundfile.read(path, dtype="int16")[0], streamed(path)


@pytest.mark.parametrize("kind", [Path, str, lambda path: io.BytesIO(path.read_bytes())])
def test_any_part_of_a_streamed_file_can_be_read(pair, kind):
    samples, path = pair
    with open_audio(kind(path)) as file:
        assert (file.frames, file.samplerate, file.channels) == (80000, 16000, 2)
        for start in (70000, 0, 12345):
            file.seek(start)
            assert np.array_equal(file.read(5000, dtype="int16"), samples[start : start + 5000])
        file.seek(100)
        assert np.array_equal(file.read(dtype="int16"), samples[100:])


def test_tags_may_precede_the_header(pair):
    samples, path = pair
    tag = b"ID3\x04\x00\x00\x00\x00\x01\x00" + bytes(128)
    path.write_bytes(tag + path.read_bytes())
    with open_audio(path) as file:
        assert np.array_equal(file.read(dtype="int16"), samples)


def test_a_file_that_changes_is_measured_again(pair, audio, streamed):
    _, path = pair
    with open_audio(path) as file:
        assert file.frames == 80000
    streamed(audio(path, seconds=3.0, channels=2))
    with open_audio(path) as file:
        assert file.frames == 48000


def test_a_streamed_file_whose_end_is_missing_is_refused(pair, truncate):
    _, path = pair
    with pytest.raises(soundfile.SoundFileError), open_audio(truncate(path)):
        pass


@pytest.mark.parametrize("encoding", ["FLAC", "WAV"])
def test_encoded_bytes_equal_those_of_libsndfile(tmp_path, encoding):
    samples = (3000 * np.random.default_rng(1).standard_normal((5000, 2))).astype(np.int16)
    soundfile.write(tmp_path / "a", samples, 16000, format=encoding, subtype="PCM_16")
    assert encode_audio(samples, 16000, encoding) == (tmp_path / "a").read_bytes()


def test_only_listed_modules_write_audio():
    """libsndfile leaves out what a full disk, or a limit on the size of files, has no room for."""
    root = Path(__file__).resolve().parents[2]
    allowed = {
        "toolkit/corpus/audio.py",
        "toolkit/doctor.py",
    }
    paths = [p for tree in ("toolkit", "local", "recipes") for p in (root / tree).rglob("*.py")]
    writers = {
        p.relative_to(root).as_posix()
        for p in paths
        if "exp" not in p.parts and "soundfile.write(" in p.read_text(encoding="utf-8")
    }
    assert writers == allowed


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
    message = r"float samples up to [\d.,]+, but the limits are -1 and 1"
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
