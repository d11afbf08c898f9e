"""MP3 files without a tag that tells their length, in all readers."""

import io
import struct

import numpy as np
import pytest
import soundfile

from toolkit.corpus.audio import open_audio
from toolkit.corpus.check import decode
from toolkit.corpus.manifest import probe_recording
from toolkit.features.audio import AudioError, audio_blocks, decode_audio, load_audio
from toolkit.features.cut_audio import LOCAL_FILES

RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}
"""Hz by the bits of the version and of the rate."""
ID3 = b"ID3\x04\x00\x00\x00\x00\x20\x00" + bytes(4096)
"""A tag of 4096 bytes, as players want it."""


def encode(rate=16000, channels=1, seconds=10.0):
    """Loud noise, then silence: the first frames have the highest bit rate."""
    loud = 0.3 * np.random.default_rng(0).standard_normal((2 * rate, channels))
    samples = np.concatenate([loud, np.zeros((round((seconds - 2) * rate), channels))])
    content = io.BytesIO()
    soundfile.write(content, samples, rate, format="MP3", bitrate_mode="VARIABLE")
    return content.getvalue()


def without_tag(content):
    """Remove the first frame, which has the tag; return the rest and the tag's count of frames."""
    tag = content.index(b"Xing")
    version = content[1] >> 3 & 3
    rate = RATES[version][content[2] >> 2 & 3]
    kbits = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
    kbits = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160) if version == 3 else kbits
    size = (144000 if version == 3 else 72000) * kbits[content[2] >> 4] // rate
    return content[size:], int.from_bytes(content[tag + 8 : tag + 12], "big")


def lengths(path):
    """Samples per channel by each reader: check, manifest, whole, blocks, and in memory.

    In memory, without a name, a file must begin as MP3 files do.
    """
    info = decode(str(path))
    recording, fault = probe_recording(path, "a")
    assert (info.error, info.decoded, fault) == (None, info.declared, None)
    rate, content = info.sampling_rate, path.read_bytes()
    in_memory = set()
    if content.startswith((b"ID3", b"\xff")):
        in_memory.add(decode_audio(content, "a", rate).num_samples)
    return in_memory | {
        info.decoded,
        recording.num_samples,
        len(load_audio(path, rate)),
        sum(map(len, audio_blocks(path, rate, 0.7))),
    }


@pytest.mark.parametrize(("rate", "channels"), [(16000, 1), (8000, 1), (44100, 2), (48000, 1)])
@pytest.mark.parametrize("prefix", [b"", ID3, ID3 + ID3, b"\x00" * 300])
@pytest.mark.parametrize("suffix", [b"", b"TAG".ljust(128, b"\x00")])
def test_the_length_is_that_of_all_frames(tmp_path, rate, channels, prefix, suffix):
    content, frames = without_tag(encode(rate, channels))
    path = tmp_path / "a.mp3"
    path.write_bytes(prefix + content + suffix)
    assert lengths(path) == {frames * (1152 if rate > 24000 else 576)}


def test_samples_are_those_of_the_file_with_the_tag(tmp_path):
    """Which lack the delay of the encoder and decoder at the beginning, and padding at the end."""
    tagged, path = tmp_path / "b.mp3", tmp_path / "a.mp3"
    tagged.write_bytes(encode())
    path.write_bytes(ID3 + without_tag(tagged.read_bytes())[0])
    expected, samples = load_audio(tagged).numpy(), load_audio(path).numpy()
    (delay,) = {
        d for d in range(576, 1729) if np.allclose(samples[d:][:9], expected[:9], atol=1e-4)
    }
    assert np.allclose(samples[delay:][: len(expected)], expected, atol=1e-4)
    with open_audio(path) as file:
        file.seek(30000)
        assert np.allclose(file.read(100), samples[30000:30100], atol=0.05)


def test_a_file_that_begins_in_the_middle_of_a_frame(tmp_path):
    content, frames = without_tag(encode())
    path = tmp_path / "a.mp3"
    path.write_bytes(content[100:])
    assert lengths(path) == {(frames - 1) * 576}


def test_a_last_frame_that_is_not_whole_is_left_out(tmp_path):
    content, frames = without_tag(encode())
    path = tmp_path / "a.mp3"
    path.write_bytes(content[:-1])
    assert lengths(path) == {(frames - 1) * 576}


@pytest.mark.parametrize("between", [b"", b"TAG".ljust(128, b"\x00"), ID3, bytes(5000)])
@pytest.mark.parametrize("tagged", [True, False])
def test_files_that_follow_one_another_are_read_to_the_end(tmp_path, tagged, between):
    content, frames = without_tag(encode())
    whole = encode() if tagged else content
    path = tmp_path / "a.mp3"
    path.write_bytes(whole + between + whole)
    assert lengths(path) == {2 * frames * 576}


@pytest.mark.parametrize("tagged", [True, False])
@pytest.mark.parametrize(("rate", "channels"), [(16000, 1), (44100, 2)])
def test_mp3_in_a_wav_file_is_read_to_its_end(tmp_path, rate, channels, tagged):
    content, frames = without_tag(encode(rate, channels))
    layout = struct.pack("<HHIIHHH", 0x55, channels, rate, 16000, 1, 0, 12) + bytes(12)
    data = encode(rate, channels) if tagged else content
    chunks = [(b"fmt ", layout), (b"data", data), (b"LIST", b"INFO")]
    body = b"".join(n + struct.pack("<I", len(c)) + c + b"\0" * (len(c) % 2) for n, c in chunks)
    path = tmp_path / "a.wav"
    path.write_bytes(b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body)
    info = decode(str(path))
    length = frames * (1152 if rate > 24000 else 576)
    assert (info.error, info.declared, info.decoded) == (None, length, length)
    whole = load_audio(path, rate)
    assert len(whole) == length == len(decode_audio(path.read_bytes(), "a", rate).samples)
    for start in (0.2, 3.0, 4.321):
        expected = whole[round(start * rate) :][: round(0.4 * rate)]
        assert load_audio(path, rate, start, 0.4).equal(expected)


def test_files_of_different_rates_do_not_follow_one_another(tmp_path):
    path = tmp_path / "a.mp3"
    path.write_bytes(encode(16000) + encode(44100, 2))
    message = "a.mp3: it holds MP3 streams of different sampling rates or channels"
    with pytest.raises(AudioError, match=message):
        load_audio(path)
    with pytest.raises(AudioError, match=message):
        list(audio_blocks(path, 16000, 1.0))
    assert "MP3 streams of different" in decode(str(path)).error
    assert "MP3 streams of different" in probe_recording(path, "a")[1]


@pytest.mark.parametrize("prefix", [b"", ID3])
def test_a_file_shorter_than_its_tag_says_is_truncated(tmp_path, truncate, prefix):
    path = tmp_path / "a.mp3"
    path.write_bytes(prefix + encode())
    assert lengths(path) == {160000}
    truncate(path)
    info = decode(str(path))
    assert info.declared == 160000
    assert info.decoded < 160000
    with pytest.raises(AudioError, match=r"a\.mp3: truncated"):
        load_audio(path)
    with pytest.raises(AudioError, match=r"a\.mp3: truncated"):
        list(audio_blocks(path, 16000, 1.0))


@pytest.mark.parametrize("junk", [(1 << 16) - 1, 1 << 16, (1 << 16) + 1])
def test_frames_are_found_behind_junk_that_ends_where_a_block_of_the_search_does(tmp_path, junk):
    content, frames = without_tag(encode())
    path = tmp_path / "a.mp3"
    path.write_bytes(content + b"\xff" * junk + content)
    assert lengths(path) == {2 * frames * 576}


def speech_like(rate, channels, seconds):
    """Tones that come and go, and a pause: frames of all sizes."""
    time = np.arange(round(seconds * rate)) / rate
    swept = np.sin(2 * np.pi * (200 * time + 300 * np.sin(time))) * np.abs(np.sin(3 * time))
    noise = 0.05 * np.random.default_rng(0).standard_normal(len(time))
    samples = 0.3 * swept + noise * (np.sin(5 * time) > 0)
    samples[len(time) // 2 : len(time) * 5 // 8] = 0
    return np.stack([samples, samples[::-1]][:channels], axis=1)


def delayed(content, delay):
    """Return a file whose tag tells another delay of the encoder."""
    place = content.index(b"LAME") + 21
    old = int.from_bytes(content[place : place + 3], "big")
    return content[:place] + (delay << 12 | old & 4095).to_bytes(3, "big") + content[place + 3 :]


@pytest.mark.parametrize(("rate", "channels"), [(8000, 1), (16000, 1), (22050, 2), (44100, 2)])
@pytest.mark.parametrize("mode", ["VARIABLE", "CONSTANT", "delayed", "untagged", "middle", "twice"])
def test_pieces_are_slices_of_the_whole(tmp_path, capfd, rate, channels, mode):
    content, path = io.BytesIO(), tmp_path / "a.mp3"
    bits = mode if mode == "CONSTANT" else "VARIABLE"
    samples = speech_like(rate, channels, 12.0)
    soundfile.write(content, samples, rate, format="MP3", bitrate_mode=bits, compression_level=0.6)
    data = content.getvalue()
    if mode == "delayed":
        data = delayed(data, 3500)
    elif mode == "untagged":
        data, _ = without_tag(data)
    elif mode == "middle":
        data = data[len(data) // 3 :]
    elif mode == "twice":
        data = data + without_tag(data)[0][1000:] + data
    path.write_bytes(data)
    whole = load_audio(path, rate)
    seconds = len(whole) / rate
    for start in (0.01, 0.2, 0.9, 1.7, 3.0, 4.321, seconds / 2, seconds * 2 / 3, seconds - 0.5):
        expected = whole[round(start * rate) :][: round(0.4 * rate)]
        assert load_audio(path, rate, start, 0.4).equal(expected), start
        assert next(iter(audio_blocks(path, rate, 0.4, start))).equal(expected), start
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS", "FLAC", "GSM610", "IMA_ADPCM", "MPEG"])
def test_pieces_are_slices_through_lhotse_too(tmp_path, subtype):
    form = {"FLAC": "FLAC", "VORBIS": "OGG", "OPUS": "OGG", "MPEG": "MP3"}.get(subtype, "WAV")
    kind = {"FLAC": "PCM_16", "MPEG": "MPEG_LAYER_III"}.get(subtype, subtype)
    path = tmp_path / f"a.{form.lower()}"
    soundfile.write(path, speech_like(16000, 1, 6.0), 16000, format=form, subtype=kind)
    whole = load_audio(path)
    recording, _ = probe_recording(path, "a")
    for start in (0.0, 0.5, 2.75, 5.2):
        expected = whole[round(start * 16000) :][:8000]
        assert load_audio(path, 16000, start, 0.5).equal(expected)
        samples, _ = LOCAL_FILES.read_audio(path, start, 0.5)
        assert np.array_equal(samples[0], expected.numpy())
    assert recording.num_samples == len(whole)
