"""Reads details of audio headers that libsndfile does not report; splices files from pieces."""

import io
import math
import os
import re
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, Literal

import soundfile

Piece = bytes | tuple[int, int]
"""Bytes, or (first byte, end) of a part of the original file."""
_BUFFER = 1 << 16  # bytes


def splice(content: BinaryIO, pieces: Sequence[Piece]) -> BinaryIO:
    """Return a seekable file that consists of pieces of another file and given bytes.

    Args:
      content: the original file; it must stay open.
      pieces: the pieces in their order.
    """
    # Buffered, because libsndfile's MP3 decoder reads headers 4 bytes at a time.
    return io.BufferedReader(_SplicedFile(content, pieces), _BUFFER)


class _SplicedFile(io.RawIOBase):
    """The unbuffered file that `splice` returns buffered."""

    def __init__(self, content: BinaryIO, pieces: Sequence[Piece]) -> None:
        self._content = content
        self._pieces = pieces
        sizes = (len(p) if isinstance(p, bytes) else p[1] - p[0] for p in pieces)
        self._ends = list(accumulate(sizes))
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read at most to the end of the current piece; return 0 at the end of the file."""
        index = bisect_right(self._ends, self._position)
        if index == len(self._ends):
            return 0
        first = self._position - (self._ends[index - 1] if index else 0)
        size = min(len(buffer), self._ends[index] - self._position)
        piece = self._pieces[index]
        if isinstance(piece, bytes):
            part = piece[first : first + size]
        else:
            self._content.seek(piece[0] + first)
            part = self._content.read(size)
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._ends[-1]}[whence]
        if base + offset < 0:
            raise ValueError(f"cannot seek to the negative position {base + offset}")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position


UNKNOWN_SIZE = 0x7F000000 - 1024
"""A size of at least this many bytes is a placeholder of a program that writes to a pipe."""
_PLAIN = (1, 3, 6, 7, 0xFFFE)
"""WAV's format tags of samples of a fixed size: integers, floats, A-law, µ-law, extensible."""
_AU_BYTES = {1: 1, 2: 1, 3: 2, 4: 3, 5: 4, 6: 4, 7: 8, 27: 1}
"""Bytes of a sample by AU's encoding."""
_VOC_MAGIC = b"Creative Voice File\x1a"
_VOC_LAYOUTS = {1: 2, 2: 0, 9: 12}
"""Bytes before the samples of a VOC block, by its type."""
SHORTEN = b"embedded-shorten"
"""Text in the header of a SPHERE file whose samples are compressed by shorten."""
SEVERAL_FILES = "it holds several files, one after the other: write each to its own file"
_SPHERE_SIZES = (b"sample_count", b"channel_count", b"sample_n_bytes")
_FLAC_BEGIN = b"fLaC\0\0\0\x22"
"""The magic, and the header of the first block, which has 34 bytes."""
_BLOCK = 1 << 20  # bytes
_BEGINS, _ENDS = 2, 4  # bits of an Ogg page's flags


def declared_samples(path: Path | str) -> int:
    """Return the number of samples per channel that the header declares.

    The formats are WAV (RF64 and W64 too), AIFF, AU, AVR and SPHERE. The number is 0 for other
    formats, compressed samples, and the placeholder sizes of programs that write to a pipe.
    """
    with open(path, "rb") as file:
        head = file.read(1024)
        try:
            if head.startswith(b"NIST_1A"):
                return _of_sphere(head)
            if head.startswith(b".snd"):
                size, encoding, _, channels = struct.unpack(">4I", head[8:24])
                return _samples(size, _AU_BYTES.get(encoding, 0) * channels)
            if head.startswith(b"2BIT"):
                return _of_avr(head)
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


def missing_share(file: BinaryIO) -> float:
    """Return the ratio of missing to present bytes of samples, according to the header.

    The formats are WAV (W64 too), AIFF, CAF and VOC, in any encoding. The ratio is 0 for other
    formats, and for the placeholder sizes of programs that write to a pipe.
    """
    for begin, size in _sample_chunks(file):
        present = file.seek(0, os.SEEK_END) - begin
        if 0 < present < size < UNKNOWN_SIZE:
            return (size - present) / present
    return 0.0


def aiff_pieces(file: BinaryIO) -> tuple[Piece, ...] | None:
    """Return the pieces of a GSM AIFF file with the number of samples corrected.

    libsndfile reads as many samples as the header says. Some programs write 0 there, or the number
    of packets, each of which has 160 samples in 33 bytes. The result is None if the number is
    right, or for other kinds of files.

    Args:
      file: the opened file, at any position.
    """
    total, place, samples, packets = file.seek(0, os.SEEK_END), 0, 0, 0
    for name, size in _chunks(file, 12, ">4sI"):
        begin = file.tell()
        if name == b"COMM":
            layout = file.read(22)
            if layout[18:] != b"GSM ":
                return None
            place, samples = begin + 2, struct.unpack(">I", layout[2:6])[0]
        elif name == b"SSND":
            is_plausible = 8 < size <= total - begin
            packets = ((size if is_plausible else total - begin) - 8) // 33
    if not place or packets <= 0 or -(-samples // 160) == packets:
        return None
    return ((0, place), struct.pack(">I", 160 * packets), (place + 4, total))


def is_followed(file: BinaryIO) -> bool:
    """Whether another file of the same format is appended to a file.

    The formats are W64, RF64, AIFF, AU, CAF, SPHERE and FLAC. libsndfile would read only the first
    file, or the header of the second as samples.
    """
    file.seek(0)
    head = file.read(1024)
    magic, end = head[:4], 0
    if magic == b"fLaC":
        return _has_later(file, _FLAC_BEGIN, 4)
    # Formats of chunks: another file follows if the magic is the name of a later chunk.
    walked = {b"riff": (40, "<4s12xQ"), b"FORM": (12, ">4sI"), b"caff": (8, ">4sQ")}
    if magic in walked:
        return any(name == magic for name, _ in _chunks(file, *walked[magic]))
    # Other formats: the end of the first file follows from sizes in its header.
    try:
        if magic == b"RF64" and head[12:16] == b"ds64":
            end = 8 + struct.unpack_from("<Q", head, 20)[0]
        elif magic == b".snd":
            end = sum(struct.unpack_from(">2I", head, 4))
        elif magic == b"NIST":
            fields = dict(re.findall(rb"(\w+) -i (\d{1,18})\n", head))
            sizes = [int(fields.get(name, b"0")) for name in _SPHERE_SIZES]
            end = 1024 + math.prod(sizes) if all(sizes) else 0
    except struct.error:
        return False
    if end <= 0 or end > file.seek(0, os.SEEK_END):
        return False
    file.seek(end)
    return file.read(4) == magic


def _has_later(file: BinaryIO, pattern: bytes, begin: int) -> bool:
    """Whether a byte string occurs in a file after position `begin`."""
    file.seek(begin)
    tail = b""
    while block := file.read(_BLOCK):
        if pattern in tail + block:
            return True
        tail = block[1 - len(pattern) :]
    return False


def is_mp3_wav(file: BinaryIO) -> bool:
    """Whether a file is a WAV file with MP3-compressed samples."""
    file.seek(0)
    if file.read(4) == b"RIFF":
        for name, _ in _chunks(file, 12, "<4sI"):
            if name == b"fmt ":
                return file.read(2) == b"\x55\x00"
    return False


def _sample_chunks(file: BinaryIO) -> Iterator[tuple[int, int]]:
    """Yield (first byte, size) of the sample chunks of a WAV, AIFF, CAF or VOC file."""
    file.seek(0)
    head = file.read(26)
    magic = head[:4]
    if head.startswith(_VOC_MAGIC) and len(head) == 26:
        yield from _voc_blocks(file, struct.unpack_from("<H", head, 20)[0])
    layouts = {
        b"RIFF": (12, "<4sI", b"data"),
        b"RIFX": (12, ">4sI", b"data"),
        b"riff": (40, "<4s12xQ", b"data"),
        b"FORM": (12, ">4sI", b"SSND"),
        b"caff": (8, ">4sQ", b"data"),
    }
    if magic in layouts:
        start, header, sound = layouts[magic]
        for name, size in _chunks(file, start, header):
            if name == sound:
                yield file.tell(), size


def _voc_blocks(file: BinaryIO, begin: int) -> Iterator[tuple[int, int]]:
    """Yield (first byte, size) of a VOC file's sample blocks, starting with the one at `begin`.

    A block is a byte with its type, three bytes with its size, and what the size counts. Type 0,
    without a size, ends the file.
    """
    total = file.seek(0, os.SEEK_END)
    while begin + 4 <= total:
        file.seek(begin)
        kind, *size_bytes = file.read(4)
        if kind == 0:
            return
        size = int.from_bytes(bytes(size_bytes), "little")
        layout = _VOC_LAYOUTS.get(kind)
        if layout is not None:
            yield begin + 4 + layout, size - layout
        begin += 4 + size


def wav_pieces(file: BinaryIO) -> tuple[Piece, ...] | None:
    """Return the pieces of a WAV file with one sample chunk of known size.

    libsndfile does not read files with several chunks, and reads no samples from a chunk of size 0.
    Programs that write to a pipe write that size; their samples last to the end of the file. The
    result is None for other WAV files, and for files that are not WAV. A sequence of WAV files
    counts as one file.

    Args:
      file: the opened file, at any position.

    Raises:
      soundfile.SoundFileRuntimeError: the chunks cannot be joined.
    """
    file.seek(0)
    head = file.read(12)
    layouts = {b"RIFF": (12, "<4sI"), b"RIFX": (12, ">4sI"), b"RF64": (12, "<4sI")}
    start, header = layouts.get(head[:4], (40, "<4s12xQ"))
    # 1. Find the formats, and the spans of samples: (first byte, size) of each chunk.
    total, formats, spans = file.seek(0, os.SEEK_END), set(), []
    unknown = False
    for name, size in _chunks(file, start, header):
        begin = file.tell()
        if name == b"fmt ":
            formats.add(file.read(min(size, 1024)))
        if name == b"data" and head[:4] == b"RF64" and size >= UNKNOWN_SIZE:
            large = _large_size(file)
            unknown = large == 0 and total > begin
            spans.append((begin, large or total - begin))
        elif name == b"data" and (unknown := _is_unknown(file, begin, size, total, header)):
            spans.append((begin, total - begin))
        elif name == b"data" and size:
            spans.append((begin, size))
        if unknown:
            break
    # 2. A single chunk needs at most its missing size.
    if len(spans) < 2:
        return _with_size(file, spans[0][0], header, total, formats) if unknown else None
    # 3. Several chunks of one format are joined, each without an incomplete frame at its end.
    layout = formats.pop() if len(formats) == 1 else b""
    kind, frame = struct.unpack("<H10xH", layout[:14]) if len(layout) >= 14 else (0, 0)
    spans = [(begin, begin + size // frame * frame) for begin, size in spans] if frame else []
    size = sum(end - begin for begin, end in spans)
    if head[:4] != b"RIFF" or kind not in _PLAIN or size >= UNKNOWN_SIZE or not size:
        raise soundfile.SoundFileRuntimeError(
            "its samples are in several chunks that cannot be joined: write each chunk to its own"
            " file, or write all samples again as one WAV file"
        )
    riff = b"WAVEfmt " + struct.pack("<I", len(layout)) + layout + b"\0" * (len(layout) % 2)
    riff += b"data" + struct.pack("<I", size)
    begin = b"RIFF" + struct.pack("<I", len(riff) + size) + riff
    return (begin, *((first, min(end, total)) for first, end in spans))


def _is_unknown(file: BinaryIO, begin: int, size: int, total: int, header: str) -> bool:
    """Whether a sample chunk of undeclared size lasts to the end of the file.

    It does if its size is 0 or a placeholder, and no chunks after it fill the file to its end.
    """
    if 0 < size < UNKNOWN_SIZE:
        return False
    position = begin + size
    if position >= total:
        return position > total
    for _, chunk_size in _chunks(file, position, header):
        position = file.tell() + chunk_size
    return position < total - 1


def _large_size(file: BinaryIO) -> int:
    """Return the size of the samples in the header of an RF64 file; -1 if there is none."""
    file.seek(12)
    name, size = file.read(4), file.read(24)[12:20]
    return struct.unpack("<Q", size)[0] if name == b"ds64" and len(size) == 8 else -1


def _with_size(
    file: BinaryIO, begin: int, header: str, total: int, formats: set[bytes]
) -> tuple[Piece, ...]:
    """Return the pieces of a WAV file that declares the size of its last chunk, the samples.

    A RIFF file of 4 GiB or more becomes an RF64, because a RIFF header cannot hold the size.
    """
    file.seek(0)
    magic = file.read(4)
    layout = next(iter(formats), b"")
    order = ">" if magic == b"RIFX" else "<"
    frame = struct.unpack(f"{order}12xH", layout[:14])[0] if len(layout) >= 14 else 0
    size = total - begin
    if magic == b"riff":
        return ((0, begin - 8), struct.pack("<Q", 24 + size), (begin, total))
    large = struct.pack("<3QI", total - 8, size, size // max(1, frame), 0)
    if magic == b"RF64":
        return ((0, 20), large[:24], (44, total))
    if total >= 1 << 32:
        chunk = b"RF64" + b"\xff" * 4 + b"WAVEds64" + struct.pack("<I", len(large)) + large
        return (chunk, (12, begin - 4), b"\xff" * 4, (begin, total))
    sizes = (struct.pack(f"{order}I", number) for number in (total - 8, size))
    return ((0, 4), next(sizes), (8, begin - 4), next(sizes), (begin, total))


def au_pieces(file: BinaryIO) -> tuple[Piece, ...] | None:
    """Return the pieces of an AU file with the missing size added; None for other files.

    A missing size is 0, or a placeholder that libsndfile does not recognise.
    """
    file.seek(0)
    head = file.read(12)
    if len(head) < 12:
        return None
    order = "<" if head.startswith(b"dns.") else ">"
    begin, size = struct.unpack(f"{order}2I", head[4:12])
    total = file.seek(0, os.SEEK_END)
    unknown = size == 0 or (size >= UNKNOWN_SIZE and size > total - begin)
    if not unknown or size == 0xFFFFFFFF or total <= begin:
        return None
    return ((0, 8), b"\xff" * 4, (12, total))


def caf_pieces(file: BinaryIO) -> tuple[Piece, ...] | None:
    """Return the pieces of a CAF file with the size of its last chunk added; None for others."""
    total, start = file.seek(0, os.SEEK_END), 8
    while True:
        file.seek(start)
        head = file.read(12)
        if len(head) < 12:
            return None
        name, size = struct.unpack(">4sq", head)
        start += 12
        if name == b"data" and size == -1:
            return ((0, start - 8), struct.pack(">q", total - start), (start, total))
        if size < 0 or size > total:
            return None
        start += size


def is_shortened(path: Path | str) -> bool:
    """Whether a file is SPHERE compressed by shorten, which libsndfile does not decode."""
    try:
        with open(path, "rb") as file:
            head = file.read(1024)
    except (OSError, ValueError):
        return False
    return head.startswith(b"NIST_1A") and SHORTEN in head


def ogg_end(file: BinaryIO) -> Literal["", "open", "chained"]:
    """Return how an Ogg file ends, according to its page flags.

    "open": its end is missing, or is not marked. "chained": other streams follow its streams, which
    libsndfile does not read. "": neither, or the file is not Ogg.
    """
    streams: set[bytes] = set()
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    while (head := file.read(27)).startswith(b"OggS") and len(head) == 27:
        # A page: 27 bytes with flags, serial number of its stream and number of segments; the
        # segments' sizes, a byte each; the segments.
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
    """Return how many frames of `frame` bytes `size` bytes hold; 0 for a placeholder size."""
    return size // frame if frame and size < UNKNOWN_SIZE else 0


def _of_sphere(head: bytes) -> int:
    """Return the number of samples that a SPHERE header declares."""
    for line in head.decode("latin-1").splitlines():
        name, _, count = line.partition(" -i ")
        if name == "sample_count" and count.strip().isdecimal() and len(count) < 20:
            return int(count)
    return 0


def _of_avr(head: bytes) -> int:
    """Return the number of samples that an AVR header declares per channel."""
    bits, samples = struct.unpack_from(">H10xI", head, 14)
    return _samples(samples * bits, bits)


def _of_aiff(file: BinaryIO) -> int:
    """Return the number of samples that an AIFF header declares."""
    for name, _ in _chunks(file, 12, ">4sI"):
        if name == b"COMM":
            layout = file.read(22)
            channels, samples, bits = struct.unpack(">HIH", layout[:8])
            if layout[18:] in (b"ima4", b"GSM "):  # some programs count packets, others samples
                return 0
            frame = channels * -(-bits // 8)
            return _samples(samples * frame, frame)
    return 0


def _of_wav(file: BinaryIO, chunks: Iterator[tuple[bytes, int]], large: int | None = None) -> int:
    """Return the number of samples that a WAV header declares; `large` is the size for RF64."""
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
    """Yield (name, content size) of each chunk, with the file positioned at its content.

    Chunks of W64 begin at multiples of 8 bytes, and their sizes include the header of 24 bytes.
    Chunks of CAF begin anywhere, those of the other formats at even bytes.
    """
    header_size = struct.calcsize(header)
    included, unit = {8: (0, 2), 12: (0, 1), 24: (header_size, 8)}[header_size]
    total = file.seek(0, os.SEEK_END)
    file.seek(start)
    while start <= total and len(head := file.read(header_size)) == header_size:
        name, size = struct.unpack(header, head)
        size -= included
        if size < 0 or not all(32 <= byte < 127 for byte in name):
            return  # not a header, but samples of a chunk whose size was not written
        if name == b"RIFF" and file.read(4) == b"WAVE":  # another file follows
            start += header_size + 4
            file.seek(start)
            continue
        file.seek(start + header_size)
        yield name, size
        start += header_size + -(-size // unit) * unit
        file.seek(min(start, total))
