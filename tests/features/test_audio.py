"""Audio files, blocks and resampling."""

import io
import math

import numpy as np
import pytest
import soundfile
import torch
from scipy.signal import firwin, resample_poly

from toolkit.features.audio import (
    MAX_DOWN_FACTOR,
    AudioError,
    Resampler,
    audio_blocks,
    decode_audio,
    load_audio,
    lowpass,
    pcm16,
    pcm_blocks,
    resample,
    resampling_factors,
)


@pytest.fixture
def tone(tmp_path):
    """Write a stereo tone of 440 Hz; the right channel is half as loud."""

    def write(name, rate=16000, seconds=1.0, subtype="PCM_16"):
        t = np.arange(round(rate * seconds)) / rate
        left = 0.5 * np.sin(2 * np.pi * 440 * t)
        soundfile.write(tmp_path / name, np.stack([left, left / 2], 1), rate, subtype=subtype)
        return tmp_path / name, left

    return write


@pytest.mark.parametrize("name", ["a.wav", "a.flac"])
def test_mixes_and_selects_channels(tone, name):
    path, left = tone(name)
    mixed = load_audio(path)
    assert mixed.dtype == torch.float32
    assert mixed.shape == (16000,)
    np.testing.assert_allclose(mixed, left * 0.75, atol=1e-4)
    np.testing.assert_allclose(load_audio(path, channel=1), left / 2, atol=1e-4)


@pytest.mark.parametrize("rate", [8000, 11025, 44100, 48000])
def test_resamples(tone, rate):
    path, _ = tone("a.wav", rate, subtype="FLOAT")
    samples = load_audio(path, 16000)
    assert samples.shape == (16000,)
    expected = 0.375 * np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    np.testing.assert_allclose(samples[500:-500], expected[500:-500], atol=2e-3)


def test_reads_a_part(tone):
    path, left = tone("a.flac")
    part = load_audio(path, offset=0.25, duration=0.5)
    np.testing.assert_allclose(part, left[4000:12000] * 0.75, atol=1e-4)
    assert len(load_audio(path, offset=0.75)) == 4000


def test_an_error_names_the_fault(tone, tmp_path):
    path, _ = tone("a.flac")
    cases = {
        "missing.wav": (None, {}, "no such audio file"),
        "empty.flac": (b"", {}, "is an empty file"),
        "text.wav": (b"hello there, no audio in here", {}, "not audio"),
        "y.M4A": (b"\0\0\0\x14ftypM4A ", {}, r"y\.M4A: truncated; fetch the file again"),
        "cut.flac": (path.read_bytes()[: path.stat().st_size // 2], {}, "truncated"),
        "short.flac": (path.read_bytes(), {"offset": 0.5, "duration": 1.0}, "ends at 1.000 s"),
        "past.flac": (path.read_bytes(), {"offset": 2.0}, "no samples"),
        "mono.flac": (path.read_bytes(), {"channel": 2}, "2 channels"),
    }
    for name, (content, arguments, message) in cases.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(AudioError, match=message) as caught:
            load_audio(tmp_path / name, **arguments)
        assert name in str(caught.value)
    soundfile.write(tmp_path / "nan.wav", np.full(100, np.nan), 16000, subtype="FLOAT")
    with pytest.raises(AudioError, match="NaN or infinite"):
        load_audio(tmp_path / "nan.wav")


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "FLOAT"])
@pytest.mark.parametrize("format", ["WAV", "FLAC"])
@pytest.mark.parametrize("channels", [1, 2])
def test_audio_in_memory_is_read_as_a_file_is(tmp_path, format, subtype, channels):
    if (format, subtype) == ("FLAC", "FLOAT"):
        pytest.skip("there is no such file")
    samples = np.random.default_rng(0).uniform(-1, 1, (800, channels))
    path = tmp_path / f"a.{format.lower()}"
    soundfile.write(path, samples, 8000, subtype=subtype)
    decoded = decode_audio(path.read_bytes(), "a", 16000)
    assert torch.equal(decoded.samples, load_audio(path, 16000))
    assert (decoded.sampling_rate, decoded.num_samples, decoded.channels) == (8000, 800, channels)
    mono, _ = soundfile.read(path, dtype="float32", always_2d=True)
    assert np.array_equal(load_audio(path, 8000).numpy(), mono.mean(axis=1))


def test_pcm16_reads_the_samples_of_a_wav_file_in_memory(tmp_path):
    samples = np.arange(-300, 300, dtype=np.int16).reshape(-1, 2)
    path = tmp_path / "a.wav"
    soundfile.write(path, samples, 16000)
    content = path.read_bytes()
    decoded, rate = pcm16(content)
    assert rate == 16000
    assert np.array_equal(decoded, samples)
    listed = content[:12] + b"LIST" + (3).to_bytes(4, "little") + b"abc\0" + content[12:]
    assert np.array_equal(pcm16(listed)[0], samples)
    assert pcm16(content[:-1]) is None
    assert pcm16(b"RIFF0000WAVE") is None
    assert pcm16(content.replace(b"WAVE", b"WAVX")) is None


def test_bytes_that_are_no_audio_are_an_error_with_their_name():
    with pytest.raises(AudioError) as error:
        decode_audio(b"nonsense", "lake/a.wav")
    assert str(error.value).startswith("lake/a.wav: ")
    assert "0x" not in str(error.value)  # an address would differ from run to run


def test_a_streamed_flac_is_read_whole_in_part_and_in_memory(audio, streamed, tmp_path):
    path = audio(tmp_path / "a.flac", seconds=3.0)
    whole, part = load_audio(path), load_audio(path, offset=1.0, duration=0.5)
    streamed(path)
    assert torch.equal(load_audio(path), whole)
    assert torch.equal(load_audio(path, offset=1.0, duration=0.5), part)
    assert torch.equal(decode_audio(path.read_bytes(), "a.flac").samples, whole)


@pytest.mark.parametrize("rate", [16000, 8000, 11025, 44100, 48000])
@pytest.mark.parametrize("seconds", [0.01, 0.37, 10.0])
def test_blocks_concatenate_to_the_whole_audio(audio, tmp_path, rate, seconds):
    path = audio(tmp_path / "a.wav", 1.234, rate, channels=2)
    for options in ({}, {"channel": 1}, {"offset": 0.1, "duration": 0.7}):
        whole = load_audio(path, 16000, **options)
        pieces = list(audio_blocks(path, 16000, seconds, **options))
        joined = torch.cat(pieces)
        assert joined.dtype == torch.float32
        assert joined.shape == whole.shape
        assert torch.allclose(joined, whole, atol=1e-6)
        assert rate != 16000 or torch.equal(joined, whole)
        assert max(map(len, pieces)) <= seconds * 16000 + 1000


def test_files_that_cannot_seek_are_read_from_their_beginning(tmp_path):
    """Telephone systems write GSM in WAV files, which libsndfile cannot seek."""
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


def test_a_block_is_returned_before_the_next_is_read(audio, tmp_path):
    path = audio(tmp_path / "a.wav", 60.0, 8000)
    first = next(audio_blocks(path, 16000, 0.1))
    assert 1500 < len(first) <= 1600


@pytest.mark.parametrize("rate", [16000, 8000])
def test_raw_samples(rate):
    samples = np.random.default_rng(0).integers(-3000, 3000, rate, dtype=np.int16)
    content = samples.astype("<i2").tobytes() + b"x"  # half a sample at the end
    decoded = torch.cat(list(pcm_blocks(io.BytesIO(content), rate, 16000, 0.03)))
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format="WAV")
    whole = decode_audio(buffer.getvalue(), "x").samples
    assert decoded.shape == whole.shape
    assert torch.allclose(decoded, whole, atol=1e-6)


def test_an_interrupt_ends_a_pipe():
    class Pipe(io.BytesIO):
        def read(self, size):
            if self.tell():
                raise KeyboardInterrupt
            return super().read(size)

    (block,) = pcm_blocks(Pipe(bytes(1000)), 16000, 16000, 0.01)
    assert len(block) == 160


def test_errors_equal_those_of_reading_the_whole(audio, truncate, tmp_path):
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
    with pytest.raises(AudioError, match="NaN or infinite"):
        list(audio_blocks(loud, 16000, 0.1))


def test_an_impossible_rate_is_refused_before_a_filter_is_designed(audio, tmp_path):
    content = bytearray(audio(tmp_path / "a.wav").read_bytes())
    content[24:28] = (1_999_999_999).to_bytes(4, "little")
    (tmp_path / "a.wav").write_bytes(content)
    for read in (load_audio, lambda path: next(audio_blocks(path, 16000, 1.0))):
        with pytest.raises(AudioError, match="1,999,999,999 Hz, but must be from 1,000 to"):
            read(tmp_path / "a.wav")
    with pytest.raises(AudioError, match="standard input: the sampling rate is 999 Hz"):
        pcm_blocks(io.BytesIO(), 999, 16000, 0.1)


@pytest.fixture
def filter_lengths(monkeypatch):
    """Record the length of each filter that the test designs."""
    lengths = []

    def count(length, *arguments, **options):
        lengths.append(length)
        return firwin(length, *arguments, **options)

    lowpass.cache_clear()
    monkeypatch.setattr("scipy.signal.firwin", count)
    monkeypatch.setattr("scipy.signal._signaltools.firwin", count)
    return lengths


@pytest.mark.parametrize("rate", [8000, 11025, 44100, 48000, 16001])
def test_resampling_equals_scipy(rate):
    samples = np.random.default_rng(rate).standard_normal(rate // 2).astype(np.float32)
    common = math.gcd(rate, 16000)
    whole = resample_poly(samples, 16000 // common, rate // common)
    resampled = resample(samples, rate, 16000)
    assert resampled.dtype == np.float32
    assert np.array_equal(resampled, whole[: len(resampled)])


def test_the_filter_of_two_rates_is_designed_once(filter_lengths):
    samples = np.random.default_rng(0).standard_normal(16001).astype(np.float32)
    for _ in range(3):
        whole = resample(samples, 16001, 16000)
    stream = Resampler(16001, 16000)
    parts = [stream.push(part) for part in np.array_split(samples, 5)]
    streamed = np.concatenate([*parts, stream.finish()])
    np.testing.assert_allclose(streamed, whole, atol=1e-5)
    assert filter_lengths == [20 * 16001 + 1]


@pytest.mark.parametrize("rate", [383_987, 1_048_701, 999_999_937])
def test_rates_that_have_little_in_common_are_approximated(rate):
    up, down = resampling_factors(rate, 16000)
    assert down <= MAX_DOWN_FACTOR
    assert up / down == pytest.approx(16000 / rate, rel=1e-7)


@pytest.mark.parametrize("rate", [1000, 7919, 8000, 44_101, 96_001])
def test_rates_of_audio_are_exact(rate):
    up, down = resampling_factors(rate, 16000)
    assert up * rate == 16000 * down
