"""What headers of audio files say that libsndfile does not tell: lengths, and the ends of Ogg."""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal

import soundfile

from toolkit.corpus.splice import Piece

UNKNOWN_SIZE = 0x7F000000 - 1024
"""Bytes from which on a size is taken for the placeholder of a program that writes to a pipe."""
_PLAIN = (1, 3, 6, 7, 0xFFFE)
"""WAV's formats of samples of one size: integers, floats, A-law, µ-law, and extensible ones."""
_AU_BYTES = {1: 1, 2: 1, 3: 2, 4: 3, 5: 4, 6: 4, 7: 8, 27: 1}
"""Bytes of a sample by AU's encoding."""
SHORTEN = b"embedded-shorten"
"""In the header of a SPHERE file: its samples are compressed by shorten."""
_BEGINS, _ENDS = 2, 4  # bits of an Ogg page's flags


def declared_samples(path: Path | str) -> int:
    """Return the number of samples per channel in a header.

    Of WAV (RF64 and W64 too), AIFF, AU and SPHERE; 0 for other formats, compressed samples, and the
    placeholder sizes of programs that write to a pipe.
    """
    with open(path, "rb") as file:
        head = file.read(1024)
        try:
            if head.startswith(b"NIST_1A"):
                return _of_sphere(head)
            if head.startswith(b".snd"):
                size, encoding, _, channels = struct.unpack(">4I", head[8:24])
                return _samples(size, _AU_BYTES.get(encoding, 0) * channels)
            if head.startswith(b"FORM"):
                return _of_aiff(file)
            if head.startswith(b"RF64"):
                large = struct.unpack("<Q", head[28:36])[0] if head[12:16] == b"ds64" else 0
                return _of_wav(file, _chunks(file, 12, "<4sI"), large)
            if head.startswith(b"RIFF"):
                return _of_wav(file, _chunks(file, 12, "<4sI"))
            if head.startswith(b"riff"):
                return _of_wav(file, _chunks(file, 40, "<4s12xQ"))
        except struct.error:
            return 0
    return 0


def wav_pieces(file: BinaryIO) -> tuple[Piece, ...] | None:
    """Return the pieces of a WAV file with several chunks of samples, as a file with one.

    libsndfile does not read such files. None: there is at most one such chunk, or it is no WAV
    file. WAV files that follow one another in a file count as one.

    Args:
      file: the opened file, at any position.

    Raises:
      soundfile.SoundFileRuntimeError: the chunks cannot be put together.
    """
    file.seek(0)
    head = file.read(12)
    layouts = {b"RIFF": (12, "<4sI"), b"RIFX": (12, ">4sI"), b"RF64": (12, "<4sI")}
    start, header = layouts.get(head[:4], (40, "<4s12xQ"))
    total, formats, spans = file.seek(0, os.SEEK_END), set(), []
    for name, size in _chunks(file, start, header):
        begin = file.tell()
        if name == b"fmt ":
            formats.add(file.read(min(size, 1024)))
        if name == b"data" and size and size < UNKNOWN_SIZE:
            spans.append((begin, size))
    if len(spans) < 2:
        return None
    layout = formats.pop() if len(formats) == 1 else b""
    kind, frame = struct.unpack("<H10xH", layout[:14]) if len(layout) >= 14 else (0, 0)
    spans = [(begin, begin + size // frame * frame) for begin, size in spans] if frame else []
    size = sum(end - begin for begin, end in spans)
    if head[:4] != b"RIFF" or kind not in _PLAIN or size >= UNKNOWN_SIZE or not size:
        raise soundfile.SoundFileRuntimeError(
            "its samples are in several chunks that cannot be put together: write each to its own"
            " file, or the whole again as one WAV file"
        )
    riff = b"WAVEfmt " + struct.pack("<I", len(layout)) + layout + b"\0" * (len(layout) % 2)
    riff += b"data" + struct.pack("<I", size)
    begin = b"RIFF" + struct.pack("<I", len(riff) + size) + riff
    return (begin, *((first, min(end, total)) for first, end in spans))


def is_shortened(path: Path | str) -> bool:
    """Whether a file is a SPHERE file compressed by shorten, which libsndfile does not decode."""
    try:
        with open(path, "rb") as file:
            head = file.read(1024)
    except (OSError, ValueError):
        return False
    return head.startswith(b"NIST_1A") and SHORTEN in head


def ogg_end(path: Path | str) -> Literal["", "open", "chained"]:
    """Return how an Ogg file ends, by the flags of its pages.

    "open": its end is missing, or is not marked. "chained": after the end of its streams others
    begin, which libsndfile does not read. Empty: neither, or it is no Ogg file.
    """
    streams: set[bytes] = set()
    size = os.stat(path).st_size
    with open(path, "rb") as file:
        while (head := file.read(27)).startswith(b"OggS") and len(head) == 27:
            flags, serial = head[5], head[14:18]
            if flags & _BEGINS:
                if not streams and file.tell() > 27:
                    return "chained"
                streams.add(serial)
            if flags & _ENDS:
                streams.discard(serial)
            file.seek(sum(file.read(head[26])), os.SEEK_CUR)
            if file.tell() > size:
                return "open"
    return "open" if streams else ""


def _samples(size: int, frame: int) -> int:
    return size // frame if frame and size < UNKNOWN_SIZE else 0


def _of_sphere(head: bytes) -> int:
    for line in head.decode("latin-1").splitlines():
        name, _, count = line.partition(" -i ")
        if name == "sample_count" and count.strip().isdecimal() and len(count) < 20:
            return int(count)
    return 0


def _of_aiff(file: BinaryIO) -> int:
    for name, _ in _chunks(file, 12, ">4sI"):
        if name == b"COMM":
            channels, samples, bits = struct.unpack(">HIH", file.read(8))
            frame = channels * -(-bits // 8)
            return _samples(samples * frame, frame)
    return 0


def _of_wav(file: BinaryIO, chunks: Iterator[tuple[bytes, int]], large: int | None = None) -> int:
    """Of a WAV file; `large` is the size of the data in the header of an RF64."""
    frame = samples = 0
    for name, size in chunks:
        if name == b"fmt ":
            kind, _, _, _, frame = struct.unpack("<HHIIH", file.read(14))
            frame = frame if kind in _PLAIN else 0
        if name == b"data":
            if large is not None:
                return large // max(1, frame)
            samples += _samples(size, frame)
    return samples


def _chunks(file: BinaryIO, start: int, header: str) -> Iterator[tuple[bytes, int]]:
    """Yield (name, size of the content) of chunks, the file at the content of each.

    W64's sizes include the header, of 24 bytes, and its chunks begin at multiples of 8 bytes, those
    of the others at even ones.
    """
    own = struct.calcsize(header)
    included, unit = (own, 8) if own > 8 else (0, 2)
    file.seek(start)
    while len(head := file.read(own)) == own:
        name, size = struct.unpack(header, head)
        size -= included
        if size < 0 or not all(32 <= byte < 127 for byte in name):
            return  # samples, where a program has not written their size
        if name == b"RIFF" and file.read(4) == b"WAVE":  # another file follows
            start += own + 4
            file.seek(start)
            continue
        file.seek(start + own)
        yield name, size
        start += own + -(-size // unit) * unit
        file.seek(start)
