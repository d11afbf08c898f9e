"""Audio and spectrograms as data URIs."""

import base64
import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from toolkit.corpus.audio_file import encode_audio
from toolkit.corpus.cuts import parse_cut
from toolkit.features.cut_audio import load_cut_audio
from toolkit.storage.paths import places_of
from toolkit.storage.reading import regular

RATE = 16000
"""Sampling rate in Hz of the audio on the page."""
WINDOW = 400
"""Window of the spectrogram in samples: 25 ms."""
COLUMNS, ROWS, LEVELS = 480, 96, 48
"""Most frames, number of frequency bands from 0 to 8 kHz, and number of colours of the image."""
RANGE_DB = 65.0
"""Largest dynamic range of the image. Its lower end is the 10th percentile of the levels, if that
is higher."""
PALETTE = (
    (8, 7, 24),
    (54, 20, 98),
    (129, 37, 129),
    (203, 62, 113),
    (249, 120, 95),
    (252, 239, 178),
)
"""RGB colours from silence to the loudest level, interpolated linearly."""


@dataclass(frozen=True)
class Clip:
    """Audio and spectrogram of an utterance."""

    seconds: float
    audio: str
    """Data URI of FLAC, one channel."""
    image: str
    """Data URI of a PNG."""


def read_clip(manifest: Path, line: int) -> Clip:
    """Read the audio of an utterance.

    Args:
      manifest: a split's manifest.
      line: offset of the utterance's line in bytes.

    Raises:
      AudioError: the audio cannot be read.
      UnsafeCutError: the cut names more than local files, see `toolkit.corpus.cuts`.
    """
    with open(regular(manifest), "rb") as file:
        file.seek(line)
        cut = parse_cut(json.loads(file.readline()), str(manifest), places_of(manifest))
    samples = load_cut_audio(cut, RATE).numpy()
    return Clip(len(samples) / RATE, flac(samples), spectrogram(samples))


def flac(samples: np.ndarray) -> str:
    """Encode samples [S] in [-1, 1] as 16-bit FLAC."""
    return _uri("audio/flac", encode_audio(samples, RATE))


def spectrogram(samples: np.ndarray) -> str:
    """Draw a spectrogram of samples [S]: time to the right, 0 Hz at the bottom, bright is loud."""
    padded = np.pad(samples.astype(np.float64), (WINDOW // 2, WINDOW))
    count = max(1, min(COLUMNS, len(samples) // 160))
    starts = np.linspace(0, len(samples), count).astype(int)
    frames = padded[starts[:, None] + np.arange(WINDOW)] * np.hanning(WINDOW)
    power = np.abs(np.fft.rfft(frames, 2 * ROWS * 2, axis=1)[:, 1 : 2 * ROWS + 1]) ** 2
    levels = 10 * np.log10(power.reshape(count, ROWS, 2).mean(axis=2) + 1e-10)
    top = levels.max()
    low = max(top - RANGE_DB, float(np.percentile(levels, 10)))
    shares = np.clip((levels - low) / max(top - low, 1e-9), 0, 1)
    return _uri(
        "image/png", png(np.rint(shares * (LEVELS - 1)).astype(np.uint8).T[::-1], palette())
    )


def palette() -> np.ndarray:
    """Return the colours [LEVELS, 3] from silence to the loudest level."""
    anchors = np.array(PALETTE)
    places = np.linspace(0, len(anchors) - 1, LEVELS)
    channels = [np.interp(places, np.arange(len(anchors)), anchors[:, c]) for c in range(3)]
    return np.rint(np.stack(channels, axis=1)).astype(np.uint8)


def png(pixels: np.ndarray, colours: np.ndarray) -> bytes:
    """Write an image.

    Args:
      pixels: [height, width] uint8, indices of colours.
      colours: [K, 3] uint8.
    """
    height, width = pixels.shape
    lines = np.hstack(
        [np.zeros((height, 1), np.uint8), pixels]
    )  # each row begins with its filter type: 0, none
    parts: Sequence[tuple[bytes, bytes]] = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", colours.tobytes()),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def _uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
