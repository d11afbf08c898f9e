import io
from pathlib import Path

import numpy as np
import pytest
import soundfile

from toolkit.corpus.audio_file import encode_audio, open_audio


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
def test_what_is_encoded_is_what_libsndfile_would_write(tmp_path, encoding):
    samples = (3000 * np.random.default_rng(1).standard_normal((5000, 2))).astype(np.int16)
    soundfile.write(tmp_path / "a", samples, 16000, format=encoding, subtype="PCM_16")
    assert encode_audio(samples, 16000, encoding) == (tmp_path / "a").read_bytes()


def test_nothing_else_writes_audio():
    """libsndfile leaves out what a full disk, or a limit on the size of files, has no room for."""
    root = Path(__file__).resolve().parents[2]
    own = {
        "toolkit/corpus/audio_file.py",
        "toolkit/doctor.py",
        "toolkit/pipeline/measure.py",
    }
    paths = [p for tree in ("toolkit", "local", "recipes") for p in (root / tree).rglob("*.py")]
    found = {
        p.relative_to(root).as_posix()
        for p in paths
        if "exp" not in p.parts and "soundfile.write(" in p.read_text(encoding="utf-8")
    }
    assert found == own
