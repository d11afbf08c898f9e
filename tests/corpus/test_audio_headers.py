"""Lengths in headers against libsndfile, of whole files and of their first halves."""

import struct

import numpy as np
import pytest
import soundfile

from toolkit.corpus.audio_file import open_audio, unread_end
from toolkit.corpus.audio_headers import declared_samples, ogg_end
from toolkit.corpus.check.audio_info import decode
from toolkit.corpus.manifest import recording_or_fault
from toolkit.features.audio import AudioError, decode_audio, load_audio
from toolkit.features.blocks import audio_blocks

FORMS = [
    *[("WAV", kind) for kind in ("PCM_16", "PCM_24", "FLOAT", "DOUBLE", "ULAW")],
    *[("WAVEX", "PCM_16"), ("RF64", "PCM_16"), ("W64", "PCM_16"), ("W64", "FLOAT")],
    *[("AIFF", kind) for kind in ("PCM_16", "PCM_24", "FLOAT", "ULAW")],
    *[("AU", kind) for kind in ("PCM_16", "FLOAT", "ULAW")],
    ("NIST", "PCM_16"),
]
SAMPLES = 32000


@pytest.fixture
def write(tmp_path):
    def write(form, subtype, channels=1, samples=SAMPLES):
        path = tmp_path / "a"
        drawn = np.random.default_rng(0).uniform(-0.3, 0.3, (samples, channels))
        soundfile.write(path, drawn, 16000, format=form, subtype=subtype)
        return path

    return write


def told(path):
    with open_audio(path) as file:
        return unread_end(path, file)


@pytest.mark.parametrize(("form", "subtype"), FORMS)
@pytest.mark.parametrize("channels", [1, 3])
def test_the_length_of_a_cut_file_is_that_of_the_whole(write, truncate, form, subtype, channels):
    path = write(form, subtype, channels)
    assert declared_samples(path) == SAMPLES
    assert told(path) == ""
    assert declared_samples(truncate(path)) == SAMPLES
    assert told(path).startswith("truncated, its last 1.0")


@pytest.mark.parametrize("subtype", ["IMA_ADPCM", "GSM610"])
def test_of_compressed_samples_nothing_is_said(write, truncate, subtype):
    assert declared_samples(truncate(write("WAV", subtype))) == 0


@pytest.mark.parametrize("size", [0, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFF - 36, 0x7F000000])
def test_sizes_that_pipes_write_are_no_lengths(write, size):
    content = bytearray(write("WAV", "PCM_16").read_bytes())
    content[40:44] = size.to_bytes(4, "little")
    path = write("AU", "PCM_16")
    path.write_bytes(content)
    assert declared_samples(path) == 0
    content = bytearray(write("AU", "PCM_16").read_bytes())
    content[8:12] = size.to_bytes(4, "big")
    path.write_bytes(content)
    assert declared_samples(path) == 0


@pytest.mark.parametrize("length", range(0, 64, 3))
def test_a_header_that_ends_says_nothing(write, length):
    for form in ("WAV", "RF64", "W64", "AIFF", "AU", "NIST"):
        path = write(form, "PCM_16")
        path.write_bytes(path.read_bytes()[:length])
        assert declared_samples(path) in (0, SAMPLES)


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_the_end_of_ogg_files(write, subtype):
    path = write("OGG", subtype, samples=5 * SAMPLES)
    whole = path.read_bytes()
    assert (ogg_end(path), told(path)) == ("", "")
    last = whole.rindex(b"OggS")
    for size in (len(whole) // 2, last, last + 9, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert ogg_end(path) == "open"
        assert "may be truncated" in told(path)
    path.write_bytes(whole + whole)
    assert ogg_end(path) == "chained"
    assert "the first alone is read" in told(path)
    path.write_bytes(whole + b"TAG of another program")
    assert ogg_end(path) == ""


def chunk(name, content):
    return name + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)


def riff(*chunks, name=b"RIFF"):
    content = b"WAVE" + b"".join(chunks)
    return name + struct.pack("<I", len(content)) + content


FORMAT = chunk(b"fmt ", struct.pack("<HHIIHH", 1, 1, 16000, 32000, 2, 16))
STEREO = chunk(b"fmt ", struct.pack("<HHIIHH", 1, 2, 16000, 64000, 4, 16))
VALUES = np.random.default_rng(0).integers(-9999, 9999, 40000).astype("<i2")
FIRST, SECOND = chunk(b"data", VALUES[:30000].tobytes()), chunk(b"data", VALUES[30000:].tobytes())
LIST = chunk(b"LIST", b"INFOISFT\x05\0\0\0abcd\0")


@pytest.mark.parametrize(
    "content",
    [
        riff(FORMAT, FIRST, SECOND),
        riff(LIST, FORMAT, FIRST, LIST, SECOND, LIST),
        riff(FORMAT, FIRST) + riff(LIST, FORMAT, SECOND),
        riff(FORMAT, FIRST, chunk(b"data", b""), SECOND),
    ],
    ids=["two chunks", "others between", "two files", "an empty one"],
)
def test_all_chunks_of_samples_are_read(tmp_path, content):
    path = tmp_path / "a.wav"
    path.write_bytes(content)
    samples = VALUES.astype(np.float32) / 32768
    info = decode(str(path))
    assert (info.error, info.declared, info.decoded) == (None, 40000, 40000)
    assert recording_or_fault(path, "a")[0].num_samples == 40000
    assert np.array_equal(load_audio(path), samples)
    assert np.array_equal(load_audio(path, offset=1.8, duration=0.2), samples[28800:32000])
    assert np.array_equal(np.concatenate(list(audio_blocks(path, 16000, 0.3))), samples)
    assert np.array_equal(decode_audio(content, "a.wav").samples, samples)
    path.write_bytes(content[:-2000])  # at least 900 samples
    assert told(path).startswith("truncated, its last 0.0")
    assert decode(str(path)).decoded < decode(str(path)).declared == 40000


@pytest.mark.parametrize(
    "content",
    [
        riff(FORMAT, FIRST) + riff(STEREO, SECOND),
        riff(FORMAT, FIRST, SECOND, name=b"RF64"),
        riff(SECOND, FIRST),
    ],
    ids=["two formats", "RF64", "no format"],
)
def test_chunks_of_samples_that_do_not_fit_together_are_an_error(tmp_path, content):
    path = tmp_path / "a.wav"
    path.write_bytes(content)
    message = r"a\.wav: its samples are in several chunks that cannot be put together: write"
    for read in (load_audio, lambda path: list(audio_blocks(path, 16000, 1.0))):
        with pytest.raises(AudioError, match=message):
            read(path)
    with pytest.raises(AudioError, match=message):
        decode_audio(content, "a.wav")
    assert "several chunks" in decode(str(path)).error
    assert "several chunks" in recording_or_fault(path, "a")[1]
