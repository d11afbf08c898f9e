"""Headers of audio files, and concatenated files."""

import io
import os
import re
import struct

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st

from toolkit.corpus.audio import open_audio, unread_end
from toolkit.corpus.audio_headers import declared_samples, ogg_end, splice
from toolkit.corpus.check import decode
from toolkit.corpus.manifest import probe_recording
from toolkit.features.audio import AudioError, audio_blocks, decode_audio, load_audio

FORMS = [
    *[("WAV", kind) for kind in ("PCM_16", "PCM_24", "FLOAT", "DOUBLE", "ULAW")],
    *[("WAVEX", "PCM_16"), ("RF64", "PCM_16"), ("W64", "PCM_16"), ("W64", "FLOAT")],
    *[("AIFF", kind) for kind in ("PCM_16", "PCM_24", "FLOAT", "ULAW")],
    *[("AU", kind) for kind in ("PCM_16", "FLOAT", "ULAW")],
    *[("AVR", kind) for kind in ("PCM_16", "PCM_U8")],
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


def end_of_ogg(path):
    with path.open("rb") as file:
        return ogg_end(file)


def end_warning(path):
    with open_audio(path) as file:
        return unread_end(path, file)


@pytest.mark.parametrize(("form", "subtype"), FORMS)
@pytest.mark.parametrize("channels", [1, 2])
def test_a_truncated_file_declares_its_full_length(write, truncate, form, subtype, channels):
    path = write(form, subtype, channels)
    assert declared_samples(path) == SAMPLES
    assert end_warning(path) == ""
    assert declared_samples(truncate(path)) == SAMPLES
    assert end_warning(path).startswith("truncated: its last 1.0")


COMPRESSED = [
    *[("WAV", kind) for kind in ("IMA_ADPCM", "MS_ADPCM", "GSM610")],
    *[("AIFF", kind) for kind in ("IMA_ADPCM", "GSM610")],
    *[("VOC", kind) for kind in ("PCM_16", "ULAW")],
]


@pytest.mark.parametrize(("form", "subtype"), COMPRESSED)
def test_truncation_of_compressed_samples_is_detected_by_their_bytes(
    write, truncate, form, subtype
):
    path = write(form, subtype)
    assert end_warning(path) == ""
    length = decode(str(path)).decoded
    assert re.match(r"truncated: its last (0.9|1.0)\d s are missing", end_warning(truncate(path)))
    info = decode(str(path))
    assert info.decoded < info.declared
    assert abs(info.declared - length) < 2400


@pytest.mark.parametrize(("form", "subtype"), [("CAF", "PCM_16"), ("CAF", "ALAC_16")])
def test_caf_without_its_end_is_refused(write, truncate, form, subtype):
    path = truncate(write(form, subtype))
    with pytest.raises(AudioError, match="malformed"):
        load_audio(path)
    assert decode(str(path)).error


@pytest.mark.parametrize("frames", [0, 16000, 0xFFFFFFFF])
@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "FLOAT", "ALAW", "IMA_ADPCM", "GSM610"])
def test_aiff_is_as_long_as_its_samples_whatever_its_count_says(write, subtype, frames):
    path = write("AIFF", subtype)
    whole = load_audio(path)
    assert len(whole) == SAMPLES
    content = bytearray(path.read_bytes())
    place = content.index(b"COMM") + 10
    content[place : place + 4] = frames.to_bytes(4, "big")
    path.write_bytes(content)
    assert torch.equal(load_audio(path), whole)
    assert torch.equal(load_audio(path, offset=0.5, duration=0.25), whole[8000:12000])
    assert torch.equal(torch.cat(list(audio_blocks(path, 16000, 0.3))), whole)
    assert torch.equal(decode_audio(path.read_bytes(), "x").samples, whole)
    info = decode(str(path))
    assert (info.decoded, info.declared, info.error) == (SAMPLES, SAMPLES, None)


@pytest.mark.parametrize(
    "form", [("AIFF", "PCM_16"), ("AU", "PCM_16"), ("CAF", "PCM_16"), ("NIST", "PCM_16"),
             ("RF64", "PCM_16"), ("W64", "FLOAT"), ("FLAC", "PCM_16")],
)  # fmt: skip
def test_files_that_follow_one_another_are_refused(write, form):
    path = write(*form)
    path.write_bytes(path.read_bytes() + path.read_bytes())
    message = "it holds several files, one after the other: write each to its own file"
    with pytest.raises(AudioError, match=f"a: {message}"):
        load_audio(path)
    with pytest.raises(AudioError, match=message):
        decode_audio(path.read_bytes(), "a")
    assert decode(str(path)).error == message
    assert message in probe_recording(path, "a")[1]


@pytest.mark.parametrize("name", ["a.au", "a.snd", "a.gsm", "a.vox", "a.raw", "a.mp3"])
def test_text_is_refused_as_audio_whatever_its_suffix(tmp_path, name, capfd):
    path = tmp_path / name
    path.write_text("GOOD MORNING to all of you\n" * 200)
    for read in (load_audio, lambda path: list(audio_blocks(path, 16000, 1.0))):
        with pytest.raises(AudioError, match=rf"{name}: (not audio|no MP3 frame)"):
            read(path)
    assert decode(str(path)).error
    assert probe_recording(path, "a")[1]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("size", [0, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFF - 36, 0x7F000000])
def test_placeholder_sizes_of_pipes_are_ignored(write, size):
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
def test_a_truncated_header_declares_no_wrong_length(write, length):
    for form in ("WAV", "RF64", "W64", "AIFF", "AU", "NIST"):
        path = write(form, "PCM_16")
        path.write_bytes(path.read_bytes()[:length])
        assert declared_samples(path) in (0, SAMPLES)


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_the_end_of_ogg_files(write, subtype):
    path = write("OGG", subtype, samples=5 * SAMPLES)
    whole = path.read_bytes()
    assert (end_of_ogg(path), end_warning(path)) == ("", "")
    last = whole.rindex(b"OggS")
    for size in (len(whole) // 2, last, last + 9, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert end_of_ogg(path) == "open"
        assert "may be truncated" in end_warning(path)
    path.write_bytes(whole + whole)
    assert end_of_ogg(path) == "chained"
    assert "only the first is read" in end_warning(path)
    path.write_bytes(whole + b"TAG of another program")
    assert end_of_ogg(path) == ""


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
    assert probe_recording(path, "a")[0].num_samples == 40000
    assert np.array_equal(load_audio(path), samples)
    assert np.array_equal(load_audio(path, offset=1.8, duration=0.2), samples[28800:32000])
    assert np.array_equal(np.concatenate(list(audio_blocks(path, 16000, 0.3))), samples)
    assert np.array_equal(decode_audio(content, "a.wav").samples, samples)
    path.write_bytes(content[:-2000])  # at least 900 samples
    assert end_warning(path).startswith("truncated: its last 0.0")
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
    message = r"a\.wav: its samples are in several chunks that cannot be joined: write"
    for read in (load_audio, lambda path: list(audio_blocks(path, 16000, 1.0))):
        with pytest.raises(AudioError, match=message):
            read(path)
    with pytest.raises(AudioError, match=message):
        decode_audio(content, "a.wav")
    assert "several chunks" in decode(str(path)).error
    assert "several chunks" in probe_recording(path, "a")[1]


STREAMS = [
    *[
        (form, kind)
        for form in ("WAV", "WAVEX", "RF64", "W64", "AU", "CAF")
        for kind in ("PCM_16", "PCM_24", "FLOAT", "ULAW", "ALAW")
    ],
    *[("WAV", kind) for kind in ("PCM_U8", "IMA_ADPCM", "GSM610")],
]


def without_size(form, data, size):
    """Return a file as a program writes it to a pipe, where it cannot go back to its header."""
    data, place = bytearray(data), data.find(b"data")
    if form in ("WAV", "WAVEX"):
        data[4:8] = data[place + 4 : place + 8] = size.to_bytes(4, "little")
    elif form == "RF64":
        place = data.find(b"ds64")
        data[place + 8 : place + 32] = bytes(24)
    elif form == "W64":
        data[place + 16 : place + 24] = bytes(8) if size == 0 else b"\xff" * 8
    elif form == "AU":
        data[8:12] = size.to_bytes(4, "big")
    else:
        data[place + 4 : place + 12] = b"\xff" * 8
    return bytes(data)


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 0x7FFFFFFF])
@pytest.mark.parametrize(("form", "subtype"), STREAMS)
def test_streams_are_read_to_the_end_of_the_file_everywhere(write, tmp_path, form, subtype, size):
    path = write(form, subtype, 1 if subtype == "GSM610" else 2)
    whole = load_audio(path)
    stream = tmp_path / f"stream.{form.lower()}"
    stream.write_bytes(without_size(form, path.read_bytes(), size))
    assert torch.equal(load_audio(stream), whole)
    assert torch.equal(load_audio(stream, offset=0.5, duration=0.25), whole[8000:12000])
    assert torch.equal(torch.cat(list(audio_blocks(stream, 16000, 0.3))), whole)
    assert torch.equal(decode_audio(stream.read_bytes(), "x").samples, whole)
    recording, fault = probe_recording(stream, "s")
    assert (recording.num_samples, fault) == (len(whole), None)
    info = decode(str(stream))
    assert (info.declared, info.decoded, info.error) == (len(whole), len(whole), None)
    assert end_warning(stream) == ""


def test_a_stream_of_big_endian_samples(write, tmp_path):
    data = write("WAV", "PCM_16").read_bytes()
    header = struct.pack(
        ">4sI4s4sIHHIIHH", b"RIFX", 0, b"WAVE", b"fmt ", 16, 1, 1, 16000, 32000, 2, 16
    )
    samples = np.frombuffer(data[44:], "<i2").astype(">i2").tobytes()
    (tmp_path / "x.wav").write_bytes(header + b"data" + bytes(4) + samples)
    assert torch.equal(load_audio(tmp_path / "x.wav"), load_audio(tmp_path / "a"))


@pytest.mark.parametrize("behind", [b"", b"LIST\x04\x00\x00\x00INFO"])
def test_a_file_without_samples_is_no_stream(write, behind):
    path = write("WAV", "PCM_16", samples=0)
    path.write_bytes(path.read_bytes() + behind)
    assert decode(str(path)).decoded == 0
    with pytest.raises(AudioError, match="no samples"):
        load_audio(path)


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 0x7FFFF000])
def test_a_stream_of_more_than_four_gigabytes(write, size):
    path = write("WAV", "PCM_16", channels=2, samples=10)
    content = without_size("WAV", path.read_bytes()[:44], size)
    path.write_bytes(content)
    os.truncate(path, 5 << 30)  # a file with a hole
    with open_audio(path) as file:
        assert file.frames == ((5 << 30) - 44) // 4
    path.unlink()


CONTENT = bytes(range(256))
PIECES = st.lists(
    st.binary(max_size=9)
    | st.tuples(st.integers(0, 256), st.integers(0, 256)).map(lambda pair: tuple(sorted(pair))),
    min_size=1,
    max_size=5,
)


@given(PIECES, st.lists(st.tuples(st.integers(0, 600), st.integers(0, 300)), max_size=5))
def test_any_part_is_that_of_the_joined_pieces(pieces, reads):
    joined = b"".join(p if isinstance(p, bytes) else CONTENT[p[0] : p[1]] for p in pieces)
    file = splice(io.BytesIO(CONTENT), pieces)
    assert file.read() == joined
    for position, size in reads:
        assert file.seek(position) == file.tell() == position
        assert file.read(size) == joined[position : position + size]
    assert file.seek(0, os.SEEK_END) == len(joined)
