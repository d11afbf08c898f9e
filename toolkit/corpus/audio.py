"""Opens audio files of all supported formats, repairs missing lengths, and encodes audio."""

import io
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np
import soundfile

from toolkit.corpus.audio_headers import (
    SEVERAL_FILES,
    SHORTEN,
    Piece,
    aiff_pieces,
    au_pieces,
    caf_pieces,
    declared_samples,
    is_followed,
    is_mp3_wav,
    missing_share,
    ogg_end,
    splice,
    wav_pieces,
)
from toolkit.corpus.media import MediaFile, compressed_container, media_container, open_media
from toolkit.corpus.mp3 import Mp3Frames, has_mp3_frames, mp3_frames, mp3_pieces, skip_id3
from toolkit.storage.reading import reason, regular

# Programs that convert 16-bit samples to floats without dividing them by 32768 write samples far
# beyond [-1, 1]. `SampleScale` detects them with these limits.
FLOATS = ("FLOAT", "DOUBLE")
"""libsndfile's names of sample types without a largest value."""
LIMIT = 1.5
"""Magnitude that clipped audio seldom reaches; scaled samples mostly exceed it."""
SHARE = 0.01
"""Share of the samples that must exceed `LIMIT`, so that a click alone does not decide."""
RMS = 1.2
"""Root mean square that the samples must exceed. A full-scale square wave has 1, and so has audio
that is normalised to unit variance."""
SECONDS = 1.0
"""Seconds of audio after which a file is judged; a shorter file is judged as a whole."""


class SampleScale:
    """Decides from the samples of a file, added in blocks, whether they are scaled to integers."""

    def __init__(self) -> None:
        self._count = self._beyond = 0
        self._energy = self._peak = 0.0

    def add(self, samples: np.ndarray) -> None:
        """Add the next samples [S] of one channel; NaN and infinite samples are ignored."""
        sizes = np.abs(samples[np.isfinite(samples)], dtype=np.float64)
        if len(sizes):
            self._count += len(sizes)
            self._beyond += int(np.count_nonzero(sizes > LIMIT))
            self._energy += float(np.vdot(sizes, sizes))
            self._peak = max(self._peak, float(sizes.max()))

    @property
    def count(self) -> int:
        """Number of samples added so far."""
        return self._count

    @property
    def fault(self) -> str:
        """What is wrong with the samples added so far, for a message; "" if nothing."""
        if self._beyond <= SHARE * self._count or self._energy <= RMS**2 * self._count:
            return ""
        return (
            f"float samples up to {self._peak:,.5g}, but the limits are -1 and 1: they look scaled"
            " to integers; divide them by 32768, for example by"
            " `ffmpeg -i y.wav -af volume=1/32768 z.wav`"
        )


def scale_fault(samples: np.ndarray) -> str:
    """Return what is wrong with the scale of samples [S] of one channel; "" if nothing."""
    # Most audio has low energy and takes this one pass.
    if float(np.vdot(samples, samples)) <= RMS**2 * len(samples):
        return ""
    scale = SampleScale()
    scale.add(samples)
    return scale.fault


AUDIO_SUFFIXES = frozenset(
    f".{name}"
    for name in (
        *("wav", "flac", "ogg", "oga", "opus", "mp3", "sph", "nist", "wv1", "wv2", "aif", "aiff"),
        *("aifc", "au", "snd", "caf", "w64", "rf64", "voc", "avr", "sf", "pvf"),
    )
)
"""File suffixes of audio that libsndfile reads, in lower case."""
LOWEST_RATE, HIGHEST_RATE = 1000, 384_000
UNKNOWN = 1 << 62
"""A number of samples of at least this is libsndfile's placeholder for an unknown length."""
BLOCK = 1 << 18  # samples
MAGIC = b"fLaC"
WAV_MAGIC = (b"RIFF", b"RIFX", b"RF64", b"riff")
AUDIO_MAGIC = (b"RIFX", b"RF64", b"fLaC", b"OggS", b"FORM", b"NIST", b"ID3", b"caff", b".snd")
"""First bytes of audio files, which distinguish them from text."""
_HEADLESS = "not audio, or raw samples without a header: write raw samples to a WAV file"
TOLERATED = 0.01
"""Seconds by which a file may be shorter than its header says: one frame."""
LATEST = 1 << 20
"""Bytes within which FLAC data must begin; tags may precede them."""


CHAINED = (
    "it holds several streams, and only the first is read; convert it, for example by"
    " `ffmpeg -i y.ogg y.wav`"
)
AudioFile: TypeAlias = soundfile.SoundFile | MediaFile


@contextmanager
def open_audio(source: Path | str | BinaryIO, in_order: bool = False) -> Iterator[AudioFile]:
    """Open an audio file like `soundfile.SoundFile`, with its true length.

    An encoder that writes FLAC to a pipe does not know the number of samples: the header says 0.
    libsndfile can read such a file only from beginning to end. So the file is decoded once to count
    the samples, and then read as if its header held that number. Similarly, the frames of an MP3
    file without its length are counted first (`mp3_pieces`), and a WAV file with several chunks of
    samples is read as if it had a single chunk (`wav_pieces`).

    PyAV reads formats that libsndfile does not, such as M4A; see `toolkit.corpus.media`.

    Args:
      source: a file's name, or the opened file, which can seek.
      in_order: whether the file is only read in order. Otherwise soundfile seeks after each read,
        which changes the next samples of MP3, because MP3 frames depend on earlier ones.

    Raises:
      soundfile.SoundFileError, OSError: the file cannot be read. A streamed file whose end is
        missing cannot be read either, unless it was cut between two frames, which is undetectable.
    """
    by_name = isinstance(source, str | os.PathLike)
    opened = _Unseekable if in_order else soundfile.SoundFile
    # Files are recognised and measured once per version (path, size and time): results are cached.
    version = _version(source) if by_name else None
    # 1. Media that PyAV reads.
    if container := _container_of_file(*version) if version else _container(source):
        with open_media(source, container, version) as file:
            yield file
        return
    # 2. Files that libsndfile reads correctly only as a splice of pieces.
    if pieces := _pieces_of_file(*version) if version else _pieces(source):
        with (
            open(source, "rb") if by_name else nullcontext(source) as content,
            opened(splice(content, pieces)) as file,
        ):
            yield file
        return
    # 3. Files that libsndfile reads; PyAV is tried for encodings that libsndfile does not know.
    try:
        file_context: AbstractContextManager[AudioFile] = opened(source)
    except TypeError as error:  # soundfile raises it for files called .raw
        raise soundfile.SoundFileRuntimeError(_HEADLESS) from error
    except soundfile.LibsndfileError as error:
        is_file = version is None or version[1] > 0
        container = compressed_container(_head(source)) if is_file else ""
        if not container:
            raise
        file_context = _open_compressed(source, container, version, error)
    with file_context as file:
        # libsndfile assumes RAW for any file called .au, .snd, .gsm or .vox without a header.
        if file.format == "RAW":
            raise soundfile.SoundFileRuntimeError(_HEADLESS)
        # The last page of Ogg, which has the length, is missing.
        if file.format == "OGG" and not file.frames:
            raise soundfile.SoundFileRuntimeError("truncated; fetch the file again")
        if file.frames < UNKNOWN:
            yield file
            return
    # 4. FLAC of unknown length: count the samples, and write their number into the header.
    if not by_name:
        source.seek(0)
        with opened(_with_length(source, _count(source))) as file:
            yield file
        return
    length = _count_file(*_version(source))
    with open(source, "rb") as content, opened(_with_length(content, length)) as file:
        yield file


@contextmanager
def open_at(source: Path | str | BinaryIO, file: AudioFile, start: int) -> Iterator[AudioFile]:
    """Open a file at sample `start`, with the same samples as when decoding from the beginning.

    Where libsndfile cannot seek, all samples before `start` are decoded. An example is GSM, which
    telephone systems write into WAV files. MP3 is decoded from a few frames before `start`, because
    the first frames after a seek differ.

    Args:
      source: a file's name, or the opened file.
      file: the same file, just opened by `open_audio`; MP3 must be opened with `in_order`.
      start: index of the sample.
    """
    if isinstance(file, MediaFile):
        file.seek(max(0, start))
        yield file
        return
    if file.format != "MP3" or start <= 0:
        if start > 0 and soundfile.SoundFile.seekable(file):  # not `_Unseekable`'s own method
            file.seek(start)
        else:
            _skip(file, start)
        yield file
        return
    # MP3: first decode frames that fill the bit reservoir and the overlap, or the whole beginning.
    by_name = isinstance(source, str | os.PathLike)
    with open(source, "rb") if by_name else nullcontext(source) as content:
        frames = (
            _frames_of_file(*_version(source))
            if by_name
            else mp3_frames(content, _pieces(content) is not None)
        )
        position = frames and frames.pieces_before(content, start)
        if not position:
            content.seek(0)
            _skip(file, start)
            yield file
            return
        pieces, skipped_samples = position
        with _Unseekable(splice(content, pieces)) as part:
            _skip(part, skipped_samples)
            yield part


@contextmanager
def _open_compressed(
    source: Path | str | BinaryIO,
    container: str,
    version: tuple[str, int, int] | None,
    error: soundfile.LibsndfileError,
) -> Iterator[MediaFile]:
    """Open a file whose encoding libsndfile does not read, as `error` says."""
    with ExitStack() as stack:
        try:
            file = stack.enter_context(open_media(source, container, version))
        except soundfile.SoundFileRuntimeError as refusal:
            message = f"{error.error_string.rstrip('.')}, and PyAV does not read it: {refusal}"
            raise soundfile.SoundFileRuntimeError(message) from error
        yield file


def _skip(file: soundfile.SoundFile, samples: int) -> None:
    """Decode and discard samples."""
    while samples > 0 and (read := len(file.read(min(samples, BLOCK), "int16", always_2d=True))):
        samples -= read


@lru_cache(maxsize=32)
def _frames_of_file(path: str, size: int, modified: int) -> Mp3Frames | None:
    """Find the frames of an MP3 file; cached by size and modification time."""
    counted = _pieces_of_file(path, size, modified) is not None
    with open(path, "rb") as content:
        return mp3_frames(content, counted)


def absence(path: Path) -> str:
    """Return why no file can be read at a path, for a message; "" if there is a file."""
    try:
        if path.is_file():
            return ""
        if path.is_dir():
            return "is a folder, not an audio file"
        if path.is_symlink():
            return f"no such audio file: it is a link to {os.readlink(path)}, which does not exist"
    except OSError as error:  # a name that is too long, a folder that may not be searched
        return f"the audio file cannot be opened ({reason(error)})"
    return "no such audio file"


def count_channels(path: Path) -> int:
    """Return the number of channels of a file, or 0 if it cannot be read."""
    try:
        with open_audio(path, in_order=True) as file:
            return file.channels
    except (soundfile.SoundFileError, OSError, ValueError):
        return 0


def rate_fault(rate: int) -> str:
    """Return what is wrong with a sampling rate in Hz, for a message; "" if nothing."""
    if LOWEST_RATE <= rate <= HIGHEST_RATE:
        return ""
    return (
        f"the sampling rate is {rate:,} Hz, but must be from {LOWEST_RATE:,} to {HIGHEST_RATE:,};"
        " is the header damaged?"
    )


def missing_samples(path: Path | str, file: soundfile.SoundFile) -> int:
    """Return how many samples a file lacks, compared with the number that its header declares.

    libsndfile reports the number of samples in the file. The declared number is known for WAV,
    AIFF, AU, AVR, CAF, SPHERE and VOC; PVF and IRCAM headers have none. For compressed samples the
    result is an estimate from the bytes. It is 0 for other formats, for the placeholder sizes of
    programs that write to a pipe, and where less than a hundredth of a second is missing.

    Args:
      path: path of the file.
      file: the same file, opened.
    """
    declared = declared_samples(path)
    with open(path, "rb") as content:
        share = 0.0 if declared else missing_share(content)
    missing = declared - file.frames if declared else round(share * file.frames)
    return missing if missing > TOLERATED * file.samplerate else 0


def unread_end(path: Path | str, file: soundfile.SoundFile) -> str:
    """Return what is wrong with the end of a readable file, for a message; "" if nothing.

    Args:
      path: path of the file.
      file: the same file, opened.
    """
    if missing := missing_samples(path, file):
        seconds = missing / file.samplerate
        return f"truncated: its last {seconds:.2f} s are missing; fetch the file again"
    with open(path, "rb") as content:
        end = ogg_end(content) if file.format == "OGG" else ""
    if end == "open":
        return "its end is not marked, so it may be truncated; fetch the file again"
    if end == "chained":
        return CHAINED
    return ""


def encode_audio(samples: np.ndarray, rate: int, encoding: str = "FLAC") -> bytes:
    """Encode audio in memory with 16 bits per sample.

    libsndfile may silently drop samples when it writes to a full disk. Writing the returned bytes
    raises an error.

    Args:
      samples: [S] or [S, channels], 16-bit integers or floats in [-1, 1].
      rate: sampling rate in Hz.
      encoding: libsndfile's name of the format, such as "FLAC" or "WAV".
    """
    content = io.BytesIO()
    soundfile.write(content, samples, rate, format=encoding, subtype="PCM_16")
    return content.getvalue()


class _Unseekable(soundfile.SoundFile):
    """A sound file that is only read in order, so that soundfile does not seek after every read."""

    def seekable(self) -> bool:
        return False


def _version(path: Path | str) -> tuple[str, int, int]:
    """Return a file's name, size and modification time; size 0 if not a regular file."""
    name = os.fspath(regular(path))
    try:
        status = os.stat(name)
    except (OSError, ValueError):
        return name, 0, 0
    return name, status.st_size if stat.S_ISREG(status.st_mode) else 0, status.st_mtime_ns


def begins_as_audio(head: bytes) -> bool:
    """Whether a file's first bytes are those of audio, which for MPEG may be a frame.

    Args:
      head: its first 12 bytes.
    """
    if head.startswith(b"RIFF"):
        return head[8:12] in (b"WAVE", b"AVI ")  # WebP pictures are RIFF files, too
    # 11 bits of sync, then the layer in two bits: 10 is II, 01 is III.
    mpeg = head[:1] == b"\xff" and len(head) > 1 and head[1] & 0xE0 == 0xE0
    if mpeg and head[1] & 0x06 in (0x02, 0x04):
        return True
    return head.startswith(AUDIO_MAGIC) or bool(media_container(head))


def _head(source: Path | str | BinaryIO) -> bytes:
    """Return the first 12 bytes of a file."""
    if isinstance(source, str | os.PathLike):
        with open(source, "rb") as content:
            return content.read(12)
    source.seek(0)
    head = source.read(12)
    source.seek(0)
    return head


@lru_cache(maxsize=1024)
def _container_of_file(path: str, size: int, modified: int) -> str:
    """Return `_container` of a file; cached by size and modification time."""
    if not size:
        return ""
    with open(path, "rb") as content:
        return _container(content)


def _container(content: BinaryIO) -> str:
    """Return the container of a file that PyAV reads; see `media_container`."""
    head = _head(content)
    if head.startswith(b"ID3"):  # AAC may begin with tags, like MP3
        content.seek(skip_id3(content))
        head = content.read(12)
        content.seek(0)
    return media_container(head)


@lru_cache(maxsize=1024)
def _pieces_of_file(path: str, size: int, modified: int) -> tuple[Piece, ...] | None:
    """Return `_pieces` of a file; cached by size and modification time."""
    if not size:
        return None
    with open(path, "rb") as content:
        return _pieces(content, path.lower().endswith(".mp3"))


def _pieces(content: BinaryIO, mp3: bool = False) -> tuple[Piece, ...] | None:
    """Return pieces from which libsndfile reads the whole file; None if the file needs no repair.

    Args:
      content: the file.
      mp3: whether its name ends in .mp3; such a file may begin with other bytes.
    """
    content.seek(0)
    head = content.read(4)
    pieces = None
    if is_followed(content):
        raise soundfile.SoundFileRuntimeError(SEVERAL_FILES)
    content.seek(4)
    if head in WAV_MAGIC:
        is_mp3 = is_mp3_wav(content)
        pieces = mp3_pieces(content, trusts_tag=False) if is_mp3 else wav_pieces(content)
    elif head in (b".snd", b"dns."):
        pieces = au_pieces(content)
    elif head == b"FORM":
        pieces = aiff_pieces(content)
    elif head == b"caff":
        pieces = caf_pieces(content)
    elif head == b"NIST" and SHORTEN in content.read(1024):
        raise soundfile.SoundFileRuntimeError(
            "compressed with shorten, which is not supported. Convert the file with `sph2pipe -f"
            " wav y.sph y.wav`, or write `sph2pipe -f wav -p -c 1 y.sph |` in wav.scp and allow"
            " pipes"
        )
    elif mp3 or head[:3] == b"ID3" or head[:1] == b"\xff":
        if mp3 and not begins_as_audio(_head(content)) and not has_mp3_frames(content):
            raise soundfile.SoundFileRuntimeError(
                "no MP3 frame in it: the file is damaged or not audio"
            )
        pieces = mp3_pieces(content)
    content.seek(0)
    return pieces


@lru_cache(maxsize=1024)
def _count_file(path: str, size: int, modified: int) -> int:
    """Count the samples of a file; cached by size and modification time."""
    with open(path, "rb") as content:
        return _count(content)


def _count(content: BinaryIO) -> int:
    """Decode a file to its end; return the number of samples per channel."""
    count = 0
    with _Unseekable(content) as file:
        while read := len(file.read(BLOCK, dtype="int16", always_2d=True)):
            count += read
    content.seek(0)
    return count


def _with_length(content: BinaryIO, length: int) -> BinaryIO:
    """Return a FLAC file whose header declares `length` samples.

    Args:
      content: the file, at its beginning.
      length: the number of samples per channel.
    """
    head = content.read(LATEST)
    if MAGIC not in head:
        raise soundfile.SoundFileRuntimeError("it has no FLAC header")
    # STREAMINFO has the number in 36 bits, after the magic, the block's header and 13 bytes. The
    # upper four bits of the first byte belong to the sample size.
    position = head.index(MAGIC) + 21
    first = (head[position] & 0xF0) | (length >> 32)
    number = bytes([first]) + (length & 0xFFFFFFFF).to_bytes(4, "big")
    end = content.seek(0, os.SEEK_END)
    return splice(content, ((0, position), number, (position + len(number), end)))
