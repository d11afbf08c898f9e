"""Reads the audio of media files that libsndfile does not read (M4A, WebM, WMA, AMR), by PyAV.

PyAV, the extra `media`, brings FFmpeg's demuxers and decoders. A file is decoded in order from its
beginning, as by `ffmpeg -i`, so that a piece of it is a slice of the whole. Samples that the
encoder has added before the first sample are removed. Samples that it has added after the last, up
to a frame, are removed only by FFmpeg 9 and later (PyAV 19).
"""

import os
import struct
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO, NoReturn

import numpy as np
import soundfile

from toolkit.corpus.audio_headers import SEVERAL_FILES, missing_share, ogg_end

MEDIA_SUFFIXES = frozenset(
    f".{name}"
    for name in (
        *("m4a", "m4b", "m4v", "mp4", "mov", "3gp", "3g2", "aac", "amr", "awb", "wma", "wmv"),
        *("asf", "webm", "mka", "mkv", "avi", "wv"),
    )
)
"""Suffixes of files that PyAV reads, in lower case."""
_MOV_BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")
_ASF = bytes.fromhex("3026b2758e66cf11")
_CODECS = (
    *("aac", "aac_latm", "ac3", "alac", "amrnb", "amrwb", "eac3", "flac", "g722", "g723_1", "g726"),
    *("g726le", "g729", "gsm", "gsm_ms", "ilbc", "mp2", "mp2float", "mp3", "mp3float", "opus"),
    *("libopus", "qdm2", "qdmc", "speex", "libspeex", "truehd", "vorbis", "wavpack", "wmalossless"),
    *("wmapro", "wmav1", "wmav2", "wmavoice", "adpcm_ima_qt", "adpcm_ima_wav", "adpcm_ms"),
    *("adpcm_swf", "adpcm_yamaha", "mace3", "mace6", "pcm_alaw", "pcm_bluray", "pcm_dvd"),
    *(
        f"pcm_{kind}{order}"
        for kind in ("f32", "f64", "s16", "s24", "s32")
        for order in ("be", "le")
    ),
    *("pcm_mulaw", "pcm_s8", "pcm_u8"),
)
"""FFmpeg's decoders that are allowed: speech and music, not pictures, games or devices."""
_AMR_BYTES = (13, 14, 16, 18, 20, 21, 27, 32, 6, 0, 0, 0, 0, 0, 0, 1)
_AMR_WB_BYTES = (18, 24, 33, 37, 41, 47, 51, 59, 61, 6, 0, 0, 0, 0, 1, 1)
"""Bytes of a frame of AMR, and of its wide band, by the mode (RFC 4867); 0: an invalid mode."""
_TRUNCATED = "truncated; fetch the file again"
_NO_MORE, _DAMAGED = 0, -1
"""Sentinels in place of an element's size: no more elements follow, or the element is invalid."""
_HISTORY = 1 << 20
"""Samples per channel that a decoder keeps before its position, so that reads may overlap."""
_IDLE = 4
"""Number of files whose decoders stay open between two reads."""


def media_container(head: bytes) -> str:
    """Return FFmpeg's name for a file's container; "" if PyAV is not needed.

    Args:
      head: at least the first 12 bytes of the file.
    """
    if head[4:8] in _MOV_BOXES and head[:1] == b"\0":
        return "mov"
    if head.startswith(b"\x1aE\xdf\xa3"):
        return "matroska"
    if head.startswith(_ASF):
        return "asf"
    if head.startswith(b"#!AMR"):
        return "amr"
    if head.startswith(b"wvpk"):
        return "wv"
    if head.startswith(b"RIFF") and head[8:12] == b"AVI ":
        return "avi"
    if len(head) > 1 and head[0] == 0xFF and head[1] & 0xF6 == 0xF0:  # ADTS
        return "aac"
    return ""


def compressed_container(head: bytes) -> str:
    """Return FFmpeg's name for a container of which libsndfile reads some codecs; "" for others.

    Args:
      head: the first 12 bytes of the file.
    """
    if head.startswith(b"FORM"):
        return "aiff" if head[8:12] in (b"AIFC", b"AIFF") else ""
    if head.startswith(b"RIFF"):
        return "wav" if head[8:12] == b"WAVE" else ""
    return {b"caff": "caf", b"OggS": "ogg"}.get(head[:4], "")


@dataclass(frozen=True)
class _Properties:
    """Properties of a file that has been decoded to its end."""

    frames: int
    """Samples per channel."""
    samplerate: int
    channels: int
    subtype: str
    """libsndfile's name for 16 bits and floats; otherwise the name of the codec."""


class MediaFile:
    """The audio of a media file, with the interface of `soundfile.SoundFile`."""

    def __init__(
        self,
        container: str,
        properties: _Properties,
        open_decoder: "Callable[[], _Decoder]",
        decoder: "_Decoder | None",
    ) -> None:
        self.format = container.upper()
        self.subtype = properties.subtype
        self.frames = properties.frames
        self.samplerate = properties.samplerate
        self.channels = properties.channels
        self._open_decoder = open_decoder
        self.decoder = decoder
        self._position = 0

    def seekable(self) -> bool:
        """Whether `seek` works: always true."""
        return True

    def seek(self, frame: int) -> int:
        """Go to a sample, counted from the beginning of the file."""
        self._position = frame
        return frame

    def read(self, frames: int = -1, dtype: str = "float64", always_2d: bool = False) -> np.ndarray:
        """Read samples [S, channels], or [S] for one channel unless `always_2d` is set.

        Args:
          frames: largest number of samples per channel; below 0: all that follow.
          dtype: "int16", "float32" or "float64".
          always_2d: return two dimensions even for one channel.

        Raises:
          soundfile.SoundFileRuntimeError: the file is damaged.
        """
        count = max(0, self.frames - self._position)
        count = count if frames < 0 else min(count, frames)
        # A decoder only moves forwards: for samples that it has dropped, start a new one.
        if self.decoder is None or not self.decoder.holds(self._position):
            if self.decoder is not None:
                self.decoder.close()
                self.decoder = None
            self.decoder = self._open_decoder()
        samples = self.decoder.read(self._position, count, self.channels)
        self._position += len(samples)
        samples = _converted(samples, np.dtype(dtype))
        return samples if always_2d or self.channels > 1 else samples[:, 0]


@contextmanager
def open_media(
    source: str | BinaryIO, container: str, version: tuple[str, int, int] | None
) -> Iterator[MediaFile]:
    """Open a media file, after decoding it once to count its samples.

    Args:
      source: the path of a file, or an opened file, which can seek.
      container: see `media_container`; or the name of another FFmpeg demuxer.
      version: path, size and modification time of a file that is given by its path.

    Raises:
      soundfile.SoundFileRuntimeError: PyAV is not installed; the file is damaged or truncated; it
        has no sound, or several streams of it.
    """
    if version is None:
        decoder = _Decoder(source, container)
        try:
            yield MediaFile(
                container, decoder.measure(), lambda: _Decoder(source, container), decoder
            )
        finally:
            decoder.close()
        return
    # By its path: the properties are cached, and a decoder may be left from an earlier read.
    properties = _properties_of_file(*version, container)
    key = (*version, container)
    file = MediaFile(
        container, properties, lambda: _decoder_of_file(version[0], container), _idle.take(key)
    )
    try:
        yield file
    finally:
        if file.decoder is not None:
            _idle.put(key, file.decoder)


class _Decoder:
    """Decodes a file's audio in order, and keeps the most recently decoded samples."""

    def __init__(self, content: BinaryIO, container: str, owns_content: bool = False) -> None:
        self._content = content
        self._owns_content = owns_content
        self._name = container
        self._blocks: deque[np.ndarray] = deque()  # each [S, channels]
        self._begin = self._end = 0  # indices of the first sample of `_blocks`, and after the last
        self._rate = self._channels = 0
        self._container: Any = None
        self._stream: Any = None
        self._arrays: Iterator[np.ndarray] = iter(())
        try:
            size = content.seek(0, os.SEEK_END)
            if fault := _structure_fault(content, container, size):
                _refuse(fault)
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        """Open the container and its only audio stream."""
        av = _pyav()
        self._content.seek(0)
        # Allow only known decoders, and no other files: a file may name playlists or other tracks.
        options = {
            "codec_whitelist": ",".join(_CODECS),
            "format_whitelist": self._name,
            "protocol_whitelist": "none",
            "err_detect": "crccheck",
        }
        errors = {"metadata_errors": "replace"} if int(av.__version__.split(".")[0]) < 19 else {}
        try:
            self._container = av.open(
                _Content(self._content),
                format=self._name,
                container_options=options,
                io_open=_open_nothing,
                **errors,
            )
            streams = self._container.streams.audio
        except (av.FFmpegError, ValueError, RuntimeError, MemoryError) as error:
            _refuse(
                f"unreadable {self._name.upper()} file ({_reason(error)}); fetch the file again"
            )
        if not streams:
            _refuse("has no audio stream")
        if len(streams) > 1:
            languages = ", ".join(s.metadata.get("language", "unnamed") for s in streams)
            _refuse(
                f"has {len(streams)} audio streams ({languages}): write the right one to its"
                " own file, for example by `ffmpeg -i y.mkv -map 0:a:0 y.wav`"
            )
        self._stream = streams[0]
        codec = self._stream.codec_context
        if codec is None or codec.name not in _CODECS:
            codec_name = codec.name if codec else "an unknown codec, or encrypted"
            _refuse(
                f"its audio cannot be decoded ({codec_name}): convert it by `ffmpeg -i y z.wav`"
            )
        codec.thread_count = 1
        codec.options = {"err_detect": "crccheck"}
        for stream in self._container.streams:
            if stream is not self._stream:
                stream.discard = av.stream.Discard.all
        self._arrays = self._decoded()

    def measure(self) -> _Properties:
        """Decode to the end and return the file's properties."""
        while self._advance():
            pass
        if not self._end:
            _refuse("no samples")
        subtype = {"i": "PCM_16"}.get(self._blocks[-1].dtype.kind)
        name = self._stream.codec_context.name
        if subtype is None:
            subtype = "FLOAT" if name.startswith("pcm_f") else name.upper()
        return _Properties(self._end, self._rate, self._channels, subtype)

    def holds(self, start: int) -> bool:
        """Whether sample `start` is still in memory or not decoded yet."""
        return self._container is not None and start >= self._begin

    def read(self, start: int, count: int, channels: int) -> np.ndarray:
        """Return samples [S, channels] from `start`, int16 or float; fewer at the file's end."""
        samples: np.ndarray | None = None
        done = 0
        for block in self._following(start) if count else ():
            if samples is None:
                samples = np.empty((count, channels), block.dtype)
            part = block[: count - done]
            samples[done : done + len(part)] = part
            done += len(part)
            if done == count:
                break
        return np.zeros((0, channels), np.float32) if samples is None else samples[:done]

    def close(self) -> None:
        """Close the file; the decoder cannot be used afterwards."""
        self._arrays = iter(())
        if self._container is not None:
            self._container.close()
            self._container = None
        if self._owns_content:
            self._content.close()

    def _following(self, start: int) -> Iterator[np.ndarray]:
        """Yield the samples from `start`, block by block."""
        position = self._begin
        for block in tuple(self._blocks):
            if position + len(block) > start:
                yield block[max(0, start - position) :]
            position += len(block)
        while self._advance():
            block = self._blocks[-1]
            if position + len(block) > start:
                yield block[max(0, start - position) :]
            position += len(block)

    def _advance(self) -> bool:
        """Decode the next block; return False at the end."""
        block = next(self._arrays, None)
        if block is None:
            return False
        self._blocks.append(block)
        self._end += len(block)
        # Drop the oldest blocks, as long as at least `_HISTORY` samples stay.
        while self._end - self._begin - len(self._blocks[0]) >= _HISTORY:
            self._begin += len(self._blocks.popleft())
        return True

    def _decoded(self) -> Iterator[np.ndarray]:
        """Yield the samples [S, channels] of each decoded frame."""
        av = _pyav()
        try:
            for packet in self._container.demux(self._stream):
                if packet.is_corrupt:
                    self._refuse_damage("a packet is incomplete")
                for frame in packet.decode():
                    if frame.is_corrupt:
                        self._refuse_damage("a frame is damaged")
                    yield self._samples(frame)
        except (av.FFmpegError, MemoryError) as error:
            self._refuse_damage(_reason(error))

    def _samples(self, frame: Any) -> np.ndarray:
        """Convert a decoded frame to samples [S, channels]."""
        channels = frame.layout.nb_channels
        if (frame.sample_rate, channels) != (self._rate, self._channels):
            if self._rate:
                _refuse(
                    "it holds streams of different sampling rates or channels: write each to its"
                    " own file"
                )
            self._rate, self._channels = frame.sample_rate, channels
        # Planar formats are [channels, S], others interleaved: both become [S, channels].
        values = frame.to_ndarray()
        values = values.T if frame.format.is_planar else values.reshape(-1, channels)
        if values.dtype == np.int16 or values.dtype == np.float32:
            return np.ascontiguousarray(values)
        # Other integers become floats in [-1, 1): 8 bits are unsigned, with 128 as zero.
        if values.dtype == np.uint8:
            return (values.astype(np.float32) - 128) / np.float32(128)
        if values.dtype.kind == "i":
            return (values / float(1 << (8 * values.itemsize - 1))).astype(np.float32)
        return values.astype(np.float32)

    def _refuse_damage(self, reason: str) -> NoReturn:
        """Raise an error that says up to where the file could be decoded."""
        place = f" after {self._end / self._rate:.2f} s" if self._rate else ""
        _refuse(f"truncated or damaged{place} ({reason}); fetch the file again")


class _Content:
    """An open file whose name is hidden, so that no demuxer looks for neighbouring files."""

    def __init__(self, content: BinaryIO) -> None:
        self.read, self.seek, self.tell = content.read, content.seek, content.tell


class _IdleDecoders:
    """Decoders kept open, so that consecutive pieces of a file are decoded in one pass."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Drop all decoders in a forked process, which shares file positions with its parent."""
        self._lock = threading.Lock()
        self._decoders: OrderedDict[tuple, _Decoder] = OrderedDict()

    def take(self, key: tuple) -> _Decoder | None:
        """Remove and return the decoder of a file; no other caller gets it until `put`."""
        with self._lock:
            return self._decoders.pop(key, None)

    def put(self, key: tuple, decoder: _Decoder) -> None:
        """Keep a decoder for the next caller; close the least recently used ones."""
        with self._lock:
            closed = [self._decoders.pop(key, None)]
            self._decoders[key] = decoder
            while len(self._decoders) > _IDLE:
                closed.append(self._decoders.popitem(last=False)[1])
        for evicted in closed:
            if evicted is not None:
                evicted.close()


_idle = _IdleDecoders()
os.register_at_fork(after_in_child=_idle.forget)


@lru_cache(maxsize=1024)
def _properties_of_file(path: str, size: int, modified: int, container: str) -> _Properties:
    """Decode a file to its end; cached by size and modification time."""
    decoder = _decoder_of_file(path, container)
    try:
        properties = decoder.measure()
    except BaseException:
        decoder.close()
        raise
    _idle.put((path, size, modified, container), decoder)
    return properties


def _decoder_of_file(path: str, container: str) -> _Decoder:
    """Open a decoder at the beginning of a file."""
    return _Decoder(open(path, "rb"), container, owns_content=True)


def _converted(samples: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Convert int16 or float samples to another type."""
    if samples.dtype == dtype:
        return samples
    if samples.dtype == np.int16:
        return samples.astype(dtype) / dtype.type(32768)
    if dtype == np.int16:
        scaled = np.rint(np.nan_to_num(samples) * np.float32(32768))
        return scaled.clip(-32768, 32767).astype(np.int16)
    return samples.astype(dtype)


def _structure_fault(content: BinaryIO, container: str, size: int) -> str:
    """Return what is wrong with the sequence of a container's elements; "" if nothing.

    FFmpeg does not report these faults: it reads a truncated file as a shorter one, may read only
    the first of several files in one, and skips invalid bytes between elements.

    Args:
      content: the file.
      container: see `media_container`.
      size: size of the file, in bytes.
    """
    if container not in _ELEMENT_LENGTHS:
        if end := ogg_end(content):
            return _TRUNCATED if end == "open" else SEVERAL_FILES
        return _TRUNCATED if missing_share(content) else ""
    content.seek(0)
    wide_band = content.read(9) == b"#!AMR-WB\n"
    position = (9 if wide_band else 6) if container == "amr" else 0
    length_of = _amr_wb_length if wide_band else _ELEMENT_LENGTHS[container]
    names: set[bytes] = set()
    # Walk from element to element; the last one must end where the file ends.
    while position < size:
        content.seek(position)
        head = content.read(32)
        if name := _name_of_one(head, container):
            if name in names:
                return SEVERAL_FILES
            names.add(name)
        try:
            length = length_of(head)
        except (struct.error, IndexError):  # the file ends within the element's header
            length = size
        if length == _DAMAGED:
            return f"damaged at byte {position:,}; fetch the file again"
        if length == _NO_MORE:
            return ""
        position += length
    return _TRUNCATED if position > size else ""


def _name_of_one(head: bytes, container: str) -> bytes:
    """Return the name of an element that occurs once per file; empty for other elements."""
    if container == "mov":
        return head[4:8] if head[4:8] in (b"ftyp", b"moov") else b""
    if container == "wv" and len(head) == 32:  # the first block of the first samples
        index, samples, flags = struct.unpack_from("<16x3I", head)
        return b"wv" if index == 0 and samples and flags & 0x800 else b""
    begins = container in ("matroska", "asf", "avi") and media_container(head) == container
    return container.encode() if begins else b""


def _mov_length(head: bytes) -> int:
    """Return the length of an MP4 box from its header: size, name and maybe a 64-bit size."""
    length = struct.unpack_from(">I", head)[0]
    if length == 1:
        length = struct.unpack_from(">Q", head, 8)[0]
    return length if length >= 8 else _NO_MORE


def _ebml_length(head: bytes) -> int:
    """Return the length of an EBML element, or of its header if its size is unknown.

    Live recordings have elements of unknown size.
    """
    # In both the id and the size, the first byte has as many leading zero bits as bytes follow it.
    id_size = 9 - head[0].bit_length()
    first = head[id_size] if id_size <= 4 else 0
    if not first:
        return _NO_MORE
    width = 9 - first.bit_length()
    number = head[id_size : id_size + width]
    if len(number) < width:
        raise IndexError("the size is not whole")
    largest = (1 << 7 * width) - 1
    value = int.from_bytes(number, "big") & largest
    return id_size + width + (0 if value == largest else value)


def _asf_length(head: bytes) -> int:
    """Return the length of an ASF object from its header: 16-byte id and size."""
    length = struct.unpack_from("<16xQ", head)[0]
    return length if length >= 24 else _NO_MORE


def _riff_length(head: bytes) -> int:
    """Return the length of a RIFF chunk: header, content and padding to even bytes."""
    length = struct.unpack_from("<4xI", head)[0]
    return 8 + length + length % 2 if length else _NO_MORE


def _wavpack_length(head: bytes) -> int:
    """Return the length of a WavPack block, or of tags."""
    if head.startswith(b"wvpk"):
        return 8 + struct.unpack_from("<4xI", head)[0]
    return _tag_length(head)


def _adts_length(head: bytes) -> int:
    """Return the length of an ADTS frame, from 13 bits of its header, or of tags."""
    if head[0] != 0xFF or head[1] & 0xF6 != 0xF0:
        return _tag_length(head)
    length = (head[3] & 3) << 11 | head[4] << 3 | head[5] >> 5
    return length if length >= 7 else _DAMAGED


def _tag_length(head: bytes) -> int:
    """Return the length of the ID3v2, ID3v1 or APE tag that a file's part begins with."""
    if head.startswith(b"ID3"):
        a, b, c, d = head[6:10]  # 7 bits each
        return 10 + (a << 21 | b << 14 | c << 7 | d) + (10 if head[5] & 0x10 else 0)
    if head.startswith(b"APETAGEX"):
        length, _, flags = struct.unpack_from("<12x3I", head)
        return 32 + length if flags & 1 << 29 else _NO_MORE  # a footer, without its header
    return 128 if head.startswith(b"TAG") else _DAMAGED


def _amr_length(head: bytes, sizes: tuple[int, ...] = _AMR_BYTES) -> int:
    """Return the length of an AMR frame, by the mode in its first byte."""
    size = sizes[head[0] >> 3 & 15] if not head[0] & 0x83 else 0
    return size or _DAMAGED


def _amr_wb_length(head: bytes) -> int:
    """Return the length of a wide-band AMR frame."""
    return _amr_length(head, _AMR_WB_BYTES)


_ELEMENT_LENGTHS: dict[str, Callable[[bytes], int]] = {
    "mov": _mov_length,
    "matroska": _ebml_length,
    "asf": _asf_length,
    "avi": _riff_length,
    "wv": _wavpack_length,
    "aac": _adts_length,
    "amr": _amr_length,
}
"""By container, the function from an element's first 32 bytes to its length in bytes, `_NO_MORE` or
`_DAMAGED`."""


def _open_nothing(url: str, flags: int, options: dict[str, str]) -> NoReturn:
    """Refuse to open other files that a media file names."""
    raise PermissionError(f"{url} was not opened: a media file must not refer to other files")


def _pyav() -> Any:
    """Import PyAV.

    Raises:
      soundfile.SoundFileRuntimeError: it is not installed.
    """
    try:
        import av
    except ImportError:
        _refuse(
            "its format is read by PyAV, which is not installed: `pip install av`, or convert it by"
            " `ffmpeg -i y z.wav`"
        )
    return av


def _reason(error: Exception) -> str:
    """Return the message of an FFmpeg error."""
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def _refuse(reason: str) -> NoReturn:
    """Raise soundfile's error for a file that cannot be read."""
    raise soundfile.SoundFileRuntimeError(reason)
