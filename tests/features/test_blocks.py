"""Audio in pieces against audio read whole."""

import io

import numpy as np
import pytest
import soundfile
import torch

from toolkit.features.audio import AudioError, decode_audio, load_audio
from toolkit.features.blocks import audio_blocks, pcm_blocks


@pytest.mark.parametrize("rate", [16000, 8000, 11025, 44100, 48000])
@pytest.mark.parametrize("seconds", [0.01, 0.37, 10.0])
def test_pieces_make_up_the_whole(audio, tmp_path, rate, seconds):
    path = audio(tmp_path / "a.wav", 1.234, rate, channels=2)
    for options in ({}, {"channel": 1}, {"offset": 0.1, "duration": 0.7}):
        whole = load_audio(path, 16000, **options)
        pieces = list(audio_blocks(path, 16000, seconds, **options))
        found = torch.cat(pieces)
        assert found.dtype == torch.float32
        assert found.shape == whole.shape
        assert torch.allclose(found, whole, atol=1e-6)
        assert rate != 16000 or torch.equal(found, whole)
        assert max(map(len, pieces)) <= seconds * 16000 + 1000


def test_files_that_cannot_seek_are_read_from_their_beginning(tmp_path):
    """GSM in WAV files, of telephone systems."""
    samples = np.random.default_rng(0).integers(-9000, 9000, 320 * 120, dtype=np.int16)
    soundfile.write(tmp_path / "a.wav", samples, 8000, subtype="GSM610")
    whole = torch.from_numpy(soundfile.read(tmp_path / "a.wav", dtype="float32")[0])
    for options, part in (
        ({}, slice(None)),
        ({"offset": 0.5, "duration": 1.25}, slice(4000, 14000)),
    ):
        assert torch.equal(load_audio(tmp_path / "a.wav", 8000, **options), whole[part])
        pieces = audio_blocks(tmp_path / "a.wav", 8000, 0.3, **options)
        assert torch.equal(torch.cat(list(pieces)), whole[part])


def test_a_piece_comes_before_the_next_is_read(audio, tmp_path):
    path = audio(tmp_path / "a.wav", 60.0, 8000)
    first = next(audio_blocks(path, 16000, 0.1))
    assert 1500 < len(first) <= 1600


@pytest.mark.parametrize("rate", [16000, 8000])
def test_raw_samples(rate):
    samples = np.random.default_rng(0).integers(-3000, 3000, rate, dtype=np.int16)
    content = samples.astype("<i2").tobytes() + b"x"  # half a sample at the end
    found = torch.cat(list(pcm_blocks(io.BytesIO(content), rate, 16000, 0.03)))
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format="WAV")
    whole = decode_audio(buffer.getvalue(), "x").samples
    assert found.shape == whole.shape
    assert torch.allclose(found, whole, atol=1e-6)


def test_an_interrupt_ends_a_pipe():
    class Pipe(io.BytesIO):
        def read(self, size):
            if self.tell():
                raise KeyboardInterrupt
            return super().read(size)

    (found,) = pcm_blocks(Pipe(bytes(1000)), 16000, 16000, 0.01)
    assert len(found) == 160


def test_faults_are_those_of_reading_the_whole(audio, truncate, tmp_path):
    good = audio(tmp_path / "good.wav", 1.0)
    (tmp_path / "text.flac").write_text("no audio at all")
    (tmp_path / "samples.raw").write_bytes(b"1234")
    flac = tmp_path / "cut.flac"
    soundfile.write(flac, np.random.default_rng(0).uniform(-0.5, 0.5, 160_000), 16000)
    truncate(flac)
    cases = [
        (tmp_path / "none.wav", {}, "no such audio file"),
        (tmp_path / "text.flac", {}, "not audio"),
        (tmp_path / "samples.raw", {}, "raw samples without a header"),
        (flac, {}, "truncated"),
        (good, {"channel": 1}, "1 channels"),
        (good, {"offset": 2.0}, "no samples"),
        (good, {"offset": 0.5, "duration": 1.0}, "ends at 1.000 s"),
    ]
    for path, options, reason in cases:
        with pytest.raises(AudioError, match=reason) as error:
            list(audio_blocks(path, 16000, 0.1, **options))
        assert str(path) in str(error.value)
    loud = tmp_path / "nan.wav"
    soundfile.write(loud, np.array([0.1, np.nan]), 16000, subtype="FLOAT")
    with pytest.raises(AudioError, match="not numbers"):
        list(audio_blocks(loud, 16000, 0.1))


def test_a_rate_that_is_no_audios_is_refused_before_a_filter_is_made_for_it(audio, tmp_path):
    content = bytearray(audio(tmp_path / "a.wav").read_bytes())
    content[24:28] = (1_999_999_999).to_bytes(4, "little")
    (tmp_path / "a.wav").write_bytes(content)
    for read in (load_audio, lambda path: next(audio_blocks(path, 16000, 1.0))):
        with pytest.raises(AudioError, match="1,999,999,999 Hz, which is not from 1,000 to"):
            read(tmp_path / "a.wav")
    with pytest.raises(AudioError, match="standard input: a sampling rate of 999 Hz"):
        pcm_blocks(io.BytesIO(), 999, 16000, 0.1)
