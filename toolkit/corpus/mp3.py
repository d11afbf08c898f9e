"""Counts the frames of MP3 files whose headers do not declare their length.

An MP3 file is a sequence of frames of 576 or 1152 samples. A Xing, Info or LAME tag in the first
frame may hold their number. Without it, libsndfile estimates the length from the bit rate of the
first frame and the size of the file, in which tags of players count as audio. It reads no further
than this length.
"""

import os
import re
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import soundfile

from toolkit.corpus.audio_headers import Piece

_BIT_RATES = {
    True: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0),
    False: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0),
}
"""kbit/s of layer III by the header's index, for MPEG-1 (True) and for MPEG-2 and 2.5 (False)."""
_RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}
"""Hz by the header's version (MPEG-1, 2, 2.5) and index."""
_ENOUGH = 3
"""Smallest number of consecutive frames that count as audio, as other bytes may look like a header.
"""
_JUNK = 1 << 16
"""Bytes before the first frame that mpg123, the decoder of libsndfile, skips."""
_DECODER_DELAY = 529
"""Samples that mpg123 removes from the beginning of a file with a LAME tag, in addition to the
delay in the tag."""
_RESERVOIR = 511
"""Largest size of the bit reservoir: bytes before a frame on which its samples may depend."""
_OVERLAP = 3
"""Largest number of frames on whose spectra the samples of a frame may depend."""
_CYCLE = 8
"""Number of frames after which the decoder's ring buffer is at the same position again. Sums are
taken in its order, so decoding that begins a multiple of 8 frames later has the same rounding."""
_BEFORE = 4
"""Largest number of frames that mpg123 decodes before the first frame that it returns."""
_TAG_SIZE = 200
"""Smallest size in bytes of a frame that can hold a LAME tag."""
_BLOCK = 1 << 16  # bytes
_HEADER_BEGIN = re.compile(rb"\xff(?=[\xe2\xe3\xf2\xf3\xfa\xfb])")
"""The first byte of a layer III header, followed by a possible second byte. Without the second
byte, runs of 0xFF, such as padding, would take 0.4 s per MB."""


@dataclass(frozen=True)
class _Header:
    """The fields of a frame's 4-byte header."""

    version: int
    """3: MPEG-1, 2: MPEG-2, 0: MPEG-2.5."""
    rate: int
    """Hz."""
    mono: bool
    size: int
    """Bytes of the frame, its header included."""

    @property
    def audio_format(self) -> tuple[int, int, bool]:
        """Version, rate and mono flag, which are the same in all frames of a stream."""
        return self.version, self.rate, self.mono

    @property
    def samples(self) -> int:
        """Number of samples per channel in the frame."""
        return 1152 if self.version == 3 else 576

    @property
    def tag_offset(self) -> int:
        """Offset of a Xing or Info tag in the frame: after header and side information."""
        if self.version == 3:
            return 4 + (17 if self.mono else 32)
        return 4 + (9 if self.mono else 17)


@dataclass(frozen=True)
class _Run:
    """Consecutive MP3 frames of one format."""

    begins: "array[int]"
    """Offset of each frame in the file."""
    begin: int
    """Offset of the first frame."""
    end: int
    """Offset after the last frame."""
    first: _Header
    """Header of the first frame."""

    @property
    def frames(self) -> int:
        """Number of frames."""
        return len(self.begins)


class _FrameSizes(dict[bytes, int]):
    """Frame size in bytes by header bytes; 0 for bytes that are not a header of this format."""

    def __init__(self, audio_format: tuple[int, int, bool]) -> None:
        self._format = audio_format

    def __missing__(self, head: bytes) -> int:
        header = _parse(head)
        size = header.size if header and header.audio_format == self._format else 0
        self[head] = size
        return size


def mp3_pieces(file: BinaryIO, trusts_tag: bool = True) -> tuple[Piece, ...] | None:
    """Return the pieces of an MP3 file, preceded by a header with the number of frames.

    The result is None if the file's own tag has the number, or it is not an MP3 file. In a sequence
    of several files all frames are counted. Only headers are read: about 0.1 s per hour of audio.

    Args:
      file: the opened file, at any position.
      trusts_tag: do not count the frames if a tag has their number.

    Raises:
      soundfile.SoundFileRuntimeError: the file holds streams of different rates or channels.
    """
    begin = skip_id3(file)
    first = _first_header(file, begin)
    if first is None:
        return None
    start, header = first
    # A tag is trusted unless another stream follows its bytes.
    tag_frames, tag_bytes = _read_tag(file, start, header) if trusts_tag else (0, 0)
    if tag_frames and tag_bytes and _next_run(file, start + tag_bytes) is None:
        return None
    runs = list(_runs(file, start))
    frames = sum(run.frames for run in runs)
    # The tag is right if the file has at most one frame more than it says.
    if not runs or (tag_frames and frames <= tag_frames + 1):
        return None
    for run in runs:
        if run.first.audio_format != runs[0].first.audio_format:
            raise soundfile.SoundFileRuntimeError(
                "it holds MP3 streams of different sampling rates or channels: write each to its"
                " own file"
            )
    pieces = [piece for run in runs for piece in _run_pieces(file, run)]
    return (_frames_header(file, runs[0], frames), *pieces)


def _run_pieces(file: BinaryIO, run: _Run, first: int = 0) -> list[Piece]:
    """Return the pieces of a run; frames that need data from before the run are silenced.

    The decoder would report such a frame on standard error, and might or might not drop it.

    Args:
      first: index, in the run, of the frame with which the pieces begin.
    """
    pieces: list[Piece] = []
    filled = 0
    begin = run.begins[first]
    for position in run.begins:
        # From here on no frame can reach back before the run's first frame.
        if filled >= _RESERVOIR:
            break
        frame = _read_frame(file, position)
        # The frame's main data begin before what the run holds: replace it by a silent one.
        if position >= begin and _reach(frame, run.first) > filled:
            pieces += [(begin, position)] if position > begin else []
            pieces.append(_silent(frame, run.first, filled))
            begin = position + len(frame)
        filled += len(frame) - _side_end(frame, run.first)
    return [*pieces, (begin, run.end)] if begin < run.end else pieces


def _read_frame(file: BinaryIO, position: int) -> bytes:
    """Return the bytes of the frame at a file position."""
    file.seek(position)
    head = file.read(4)
    header = _parse(head)
    assert header is not None
    return head + file.read(header.size - 4)


@dataclass(frozen=True)
class Mp3Frames:
    """The frames of an MP3 file, to decode it from any frame on."""

    runs: tuple[_Run, ...]
    """The frames, in their order."""
    delay: int
    """Number of samples at the beginning of the frames that are not part of the audio."""
    phase: int
    """Decoding may begin at frames whose index modulo `_CYCLE` equals this."""

    def pieces_before(self, file: BinaryIO, sample: int) -> tuple[tuple[Piece, ...], int] | None:
        """Return pieces that decode to the same samples from `sample` on as the whole file.

        The pieces begin with silenced frames, which fill the bit reservoir.

        Args:
          file: the opened file.
          sample: index of the sample in the file.

        Returns:
          The pieces, and the number of samples that they have before `sample`; None if the sample
          is near the beginning of the file.
        """
        header = self.runs[0].first
        # starts[i]: index in the file of the first frame of run i
        starts = [0]
        for run in self.runs:
            starts.append(starts[-1] + run.frames)
        # The frame that holds the sample.
        target = min((sample + self.delay) // header.samples, starts[-1] - 1)
        first = target - _OVERLAP
        filled = 0
        # Go back until the frames between fill the bit reservoir.
        while first > 0 and filled < _RESERVOIR:
            first -= 1
            filled += self._main_data(file, first, starts)
        # Back to a frame at which the decoder's ring buffer is in the same place.
        first -= (first - self.phase) % _CYCLE
        if first <= 0:
            return None
        silent: list[Piece] = []
        filled = 0
        number = first
        # Silent frames pass their main data on and add no sound of their own.
        while filled < _RESERVOIR and number < target - _OVERLAP:
            frame = self._frame(file, number, starts)
            silent.append(_silent(frame, header, filled))
            filled += len(frame) - _side_end(frame, header)
            number += 1
        index = bisect_right(starts, number) - 1
        run = self.runs[index]
        decoded = _run_pieces(file, run, number - starts[index])
        for later in self.runs[index + 1 :]:
            decoded += _run_pieces(file, later)
        head = _frames_header(file, self.runs[0], starts[-1] - first)
        return (head, *silent, *decoded), sample + self.delay - first * header.samples

    def _frame(self, file: BinaryIO, number: int, starts: list[int]) -> bytes:
        """Return the bytes of frame `number`."""
        index = bisect_right(starts, number) - 1
        run = self.runs[index]
        return _read_frame(file, run.begins[number - starts[index]])

    def _main_data(self, file: BinaryIO, number: int, starts: list[int]) -> int:
        """Return the number of bytes of main data in frame `number`."""
        frame = self._frame(file, number, starts)
        return len(frame) - _side_end(frame, self.runs[0].first)


def _side_end(frame: bytes, header: _Header) -> int:
    """Return the offset of a frame's main data, after header, checksum and side information."""
    return header.tag_offset + (0 if frame[1] & 1 else 2)


def _reach(frame: bytes, header: _Header) -> int:
    """Return how many bytes before the frame its main data begin (main_data_begin)."""
    begin = 4 if frame[1] & 1 else 6
    first, second = frame[begin : begin + 2]
    # main_data_begin: 9 bits in MPEG-1, 8 bits in MPEG-2 and 2.5.
    return first << 1 | second >> 7 if header.version == 3 else first


def _silent(frame: bytes, header: _Header, available: int) -> bytes:
    """Return a frame with a silent spectrum that still carries main data for later frames.

    Args:
      available: number of bytes of main data before the frame, in which its own data may begin.
    """
    reach, begin, end = min(_reach(frame, header), available), 4, _side_end(frame, header)
    # Side information of zeros means no spectrum; only main_data_begin is set.
    side = bytearray(end - begin)
    place = 0 if frame[1] & 1 else 2
    side[place : place + 2] = (reach << (7 if header.version == 3 else 8)).to_bytes(2, "big")
    return frame[:begin] + side + frame[end:]


def mp3_frames(file: BinaryIO, counted: bool) -> Mp3Frames | None:
    """Find the frames of an MP3 file; None if it has no layer III frames.

    Args:
      file: the opened file, at any position.
      counted: whether the file is read as the pieces of `mp3_pieces`.
    """
    first = _first_header(file, skip_id3(file))
    if first is None:
        return None
    runs = tuple(_runs(file, first[0]))
    if not runs or any(run.first.audio_format != runs[0].first.audio_format for run in runs):
        return None
    if counted:  # `mp3_pieces` puts a silent frame before the first, as `pieces_before` does
        return Mp3Frames(runs, 0, 0)
    delay = _tag_delay(file, *first)
    # Whole frames of the delay that mpg123 skips shift the phase of its ring buffer.
    undecoded = max(0, delay // first[1].samples - _BEFORE)
    return Mp3Frames(runs, delay, (1 + undecoded) % _CYCLE)


def has_mp3_frames(file: BinaryIO) -> bool:
    """Whether a file begins with layer III frames, after tags and up to 64 KiB of other bytes."""
    return _first_header(file, skip_id3(file)) is not None


def _tag_delay(file: BinaryIO, start: int, header: _Header) -> int:
    """Return the number of initial samples that mpg123 drops because of a LAME tag."""
    file.seek(start + header.tag_offset)
    tag = file.read(160)
    if tag[:4] not in (b"Xing", b"Info") or len(tag) < 160:
        return 0
    flags = struct.unpack(">I", tag[4:8])[0]
    # Fields that precede the LAME tag: frames and bytes (4 each), table (100), quality (4).
    lame = 8 + 4 * (flags & 1) + 2 * (flags & 2) + 25 * (flags & 4) + (flags & 8) // 2
    if not tag[lame]:
        return 0
    # The encoder's delay is in the upper 12 of the 24 bits.
    return (int.from_bytes(tag[lame + 21 : lame + 24], "big") >> 12) + _DECODER_DELAY


def _parse(head: bytes) -> _Header | None:
    """Parse a frame header; None if it is not a layer III header with a bit rate."""
    # 11 bits of sync, 2 of version, 2 of layer (01: III), 1 of protection.
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE6 != 0xE2:
        return None
    version, index = head[1] >> 3 & 3, head[2] >> 2 & 3
    # Version 1 and rate index 3 are reserved.
    if version == 1 or index == 3:
        return None
    # Bit rate index 0 is the free format, 15 is invalid: both are 0 in the table.
    kbits, rate = _BIT_RATES[version == 3][head[2] >> 4], _RATES[version][index]
    if not kbits:
        return None
    # Samples / 8 * bit rate / sampling rate bytes, and one byte of padding.
    size = (144000 if version == 3 else 72000) * kbits // rate + (head[2] >> 1 & 1)
    return _Header(version, rate, head[3] >> 6 == 3, size)


def skip_id3(file: BinaryIO) -> int:
    """Return the offset after the ID3 tags at the beginning of a file."""
    position = 0
    while True:
        file.seek(position)
        head = file.read(10)
        if not head.startswith(b"ID3") or len(head) < 10:
            return position
        a, b, c, d = head[6:10]  # 7 bits each
        position += 10 + (a << 21 | b << 14 | c << 7 | d) + (10 if head[5] & 0x10 else 0)


def _first_header(file: BinaryIO, begin: int) -> tuple[int, _Header] | None:
    """Find the first frame; return its position and header, or None without a frame."""
    file.seek(begin)
    if header := _parse(file.read(4)):
        return begin, header
    run = _next_run(file, begin, begin + _JUNK)
    return None if run is None else (run.begin, run.first)


def _read_tag(file: BinaryIO, start: int, header: _Header) -> tuple[int, int]:
    """Return the numbers of frames and bytes in a frame's Xing or Info tag; 0 where missing."""
    file.seek(start + header.tag_offset)
    tag = file.read(16)
    if tag[:4] not in (b"Xing", b"Info") or len(tag) < 16:
        return 0, 0
    # Bit 0 of the flags: the number of frames follows; bit 1: then the number of bytes.
    flags, first, second = struct.unpack(">3I", tag[4:])
    if not flags & 1:
        return 0, first if flags & 2 else 0
    return first, second if flags & 2 else 0


def _is_tag(file: BinaryIO, start: int, header: _Header) -> bool:
    """Whether a frame holds a Xing or Info tag instead of audio."""
    file.seek(start + header.tag_offset)
    if file.read(4) in (b"Xing", b"Info"):
        return True
    file.seek(start + 36)
    return file.read(4) == b"VBRI"


def _runs(file: BinaryIO, start: int) -> Iterator[_Run]:
    """Yield all runs of frames, starting from a given frame."""
    file.seek(start)
    header = _parse(file.read(4))
    run = _follow(file, start, header) if header else None
    while run is not None:
        if run.frames:
            yield run
        run = _next_run(file, run.end)


def _next_run(file: BinaryIO, begin: int, last: int | None = None) -> _Run | None:
    """Find the next run of frames that begins between the bytes `begin` and `last`, inclusive."""
    for position in _possible_headers(file, begin, last):
        file.seek(position)
        if header := _parse(file.read(4)):
            run = _follow(file, position, header)
            if run.frames >= _ENOUGH:
                return run
    return None


def _possible_headers(file: BinaryIO, begin: int, last: int | None) -> Iterator[int]:
    """Yield the positions where a header may begin, by its first two bytes."""
    while last is None or begin <= last:
        file.seek(begin)
        block = file.read(_BLOCK + 1)  # with the second byte of a header at its end
        for match in _HEADER_BEGIN.finditer(block):
            yield begin + match.start()
        if len(block) <= _BLOCK:
            return
        begin += _BLOCK


def _follow(file: BinaryIO, begin: int, header: _Header) -> _Run:
    """Follow the frames from `begin` to the end of the file, or to the end that a tag gives.

    A frame that holds a tag is not part of the run, nor is an incomplete frame at the end.
    """
    total = file.seek(0, os.SEEK_END)
    _, tag_bytes = _read_tag(file, begin, header)
    position = begin + header.size if _is_tag(file, begin, header) else begin
    end = begin + tag_bytes if tag_bytes else total
    sizes, first, begins = _FrameSizes(header.audio_format), position, array("q")
    file.seek(position)
    # Frame sizes are cached by header bytes: a stream has few different headers.
    while position < end and (size := sizes[file.read(4)]) and position + size <= total:
        begins.append(position)
        position += size
        file.seek(position)
    return _Run(begins, first, position, header)


def _frames_header(file: BinaryIO, run: _Run, frames: int) -> bytes:
    """Return a frame with a LAME tag that declares the number of frames, and a silent frame.

    mpg123 removes the decoder's delay from a file with such a tag. The silent frame provides the
    samples to remove: the decoder's delay, and the rest, which the tag declares as the encoder's
    delay. So the remaining samples are those that mpg123 decodes without a tag.
    """
    file.seek(run.begin)
    first, second, third, fourth = file.read(4)
    # The smallest bit rate whose frames have room for the tag
    for index in range(1, 15):
        # Like the first frame, but without checksum and padding.
        head = bytes([first, second | 1, index << 4 | third & 0x0D, fourth])
        header = _parse(head)
        if header is not None and header.size >= _TAG_SIZE:
            break
    assert header is not None
    tag = b"Info" + struct.pack(">2I", 1, frames + 1)
    delays = (header.samples - _DECODER_DELAY) << 12 | _DECODER_DELAY  # 12 bits each
    lame = b"LAME3.100" + bytes(12) + delays.to_bytes(3, "big")
    tagged = head + bytes(header.tag_offset - 4) + tag + lame
    return tagged.ljust(header.size, b"\0") + head.ljust(header.size, b"\0")
