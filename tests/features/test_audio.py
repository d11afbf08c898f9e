import numpy as np
import pytest
import soundfile
import torch

from toolkit.features.audio import AudioError, decode_audio, load_audio, pcm16


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
    got = load_audio(path, 16000)
    assert got.shape == (16000,)
    expected = 0.375 * np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    np.testing.assert_allclose(got[500:-500], expected[500:-500], atol=2e-3)


def test_reads_a_part(tone):
    path, left = tone("a.flac")
    part = load_audio(path, offset=0.25, duration=0.5)
    np.testing.assert_allclose(part, left[4000:12000] * 0.75, atol=1e-4)
    assert len(load_audio(path, offset=0.75)) == 4000


def test_names_every_fault(tone, tmp_path):
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
    with pytest.raises(AudioError, match="not numbers"):
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


def test_a_plain_wav_file_is_taken_as_it_lies_in_memory(tmp_path):
    samples = np.arange(-300, 300, dtype=np.int16).reshape(-1, 2)
    path = tmp_path / "a.wav"
    soundfile.write(path, samples, 16000)
    content = path.read_bytes()
    found, rate = pcm16(content)
    assert rate == 16000
    assert np.array_equal(found, samples)
    listed = content[:12] + b"LIST" + (3).to_bytes(4, "little") + b"abc\0" + content[12:]
    assert np.array_equal(pcm16(listed)[0], samples)
    assert pcm16(content[:-1]) is None
    assert pcm16(b"RIFF0000WAVE") is None
    assert pcm16(content.replace(b"WAVE", b"WAVX")) is None


def test_what_is_no_audio_in_memory_is_named_and_nothing_else():
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
