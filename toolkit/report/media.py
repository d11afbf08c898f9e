"""The player of an utterance: audio and spectrogram as data URIs, words and phones below it."""

import base64
import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup

from toolkit.align.ctm_textgrid import CtmError, TimedToken, read_ctm
from toolkit.corpus.audio import encode_audio
from toolkit.corpus.manifest import parse_cut
from toolkit.features.cut_audio import load_cut_audio
from toolkit.report.charts import linear_ticks
from toolkit.report.pages import macros
from toolkit.report.run_data import Decode
from toolkit.report.run_folder import RunFolder
from toolkit.score.alignment import Pair
from toolkit.score.wer import UtteranceScore
from toolkit.storage.paths import places_of
from toolkit.storage.reading import regular

SAMPLING_RATE = 16000
"""Sampling rate in Hz of the audio on the page."""
WINDOW_SAMPLES = 400
"""Window of the spectrogram in samples: 25 ms."""
MAX_FRAMES, FREQUENCY_BANDS, NUM_COLOURS = 480, 96, 48
"""The image's limit of frames, number of frequency bands from 0 to 8 kHz, and number of colours."""
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
      UnsafeCutError: the cut names more than local files, see `toolkit.corpus.manifest`.
    """
    with open(regular(manifest), "rb") as file:
        file.seek(line)
        cut = parse_cut(json.loads(file.readline()), str(manifest), places_of(manifest))
    samples = load_cut_audio(cut, SAMPLING_RATE).numpy()
    return Clip(len(samples) / SAMPLING_RATE, flac(samples), spectrogram(samples))


def flac(samples: np.ndarray) -> str:
    """Encode samples [S] in [-1, 1] as 16-bit FLAC."""
    return _uri("audio/flac", encode_audio(samples, SAMPLING_RATE))


def spectrogram(samples: np.ndarray) -> str:
    """Draw a spectrogram of samples [S]: time to the right, 0 Hz at the bottom, bright is loud."""
    # A window is centred on its time; the last one may begin at the last sample.
    padded = np.pad(samples.astype(np.float64), (WINDOW_SAMPLES // 2, WINDOW_SAMPLES))
    # At most one frame per 10 ms.
    count = max(1, min(MAX_FRAMES, len(samples) // 160))
    starts = np.linspace(0, len(samples), count).astype(int)
    # [T, 400] frames with a Hann window.
    frames = padded[starts[:, None] + np.arange(WINDOW_SAMPLES)] * np.hanning(WINDOW_SAMPLES)
    # [T, 96] levels in dB: the FFT has two bins per band, whose powers are averaged.
    power = (
        np.abs(np.fft.rfft(frames, 2 * FREQUENCY_BANDS * 2, axis=1)[:, 1 : 2 * FREQUENCY_BANDS + 1])
        ** 2
    )
    levels = 10 * np.log10(power.reshape(count, FREQUENCY_BANDS, 2).mean(axis=2) + 1e-10)
    top = levels.max()
    # Noise of a quiet room is as dark as silence.
    low = max(top - RANGE_DB, float(np.percentile(levels, 10)))
    shares = np.clip((levels - low) / max(top - low, 1e-9), 0, 1)
    return _uri(
        "image/png", png(np.rint(shares * (NUM_COLOURS - 1)).astype(np.uint8).T[::-1], palette())
    )


def palette() -> np.ndarray:
    """Return the colours [NUM_COLOURS, 3] from silence to the loudest level."""
    # [6, 3] colours between which the channels are interpolated.
    anchors = np.array(PALETTE)
    places = np.linspace(0, len(anchors) - 1, NUM_COLOURS)
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
    """Return content as a data URI."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


TIME_TICKS = 6
"""Approximate number of labels on the time axis."""
FREQUENCY_LABELS_KHZ = (0, 2, 4, 6, 8)
"""Labels of the frequency axis in kHz; the image ends at 8 kHz."""


def read_word_times(run: RunFolder, decode: Decode) -> dict[str, list[TimedToken]]:
    """Return the word times of a decode by utterance; empty if it has not written them."""
    path = decode.folder / "words.ctm"
    if not path.exists():
        return {}
    times: dict[str, list[TimedToken]] = {}
    try:
        for entry in read_ctm(path):
            token = TimedToken(entry.token, entry.start, entry.end)
            times.setdefault(entry.utterance, []).append(token)
    except CtmError as error:
        run.note(path, error)
    return times


def player(clip: Clip, times: Sequence[TimedToken], utterance: UtteranceScore) -> Markup:
    """Return a spectrogram with the recognised words below it, and an audio player.

    Args:
      clip: audio and spectrogram.
      times: times of the recognised words; left out if their words are not those of `utterance`.
      utterance: the recognised utterance.
    """
    recognised = [pair for pair in utterance.pairs if pair[1] is not None]
    if not times or [pair[1] for pair in recognised] != [entry.token for entry in times]:
        return _player(clip, utterance.id, (), [])
    classes = [_word_class(pair) for pair in recognised]
    return _player(clip, utterance.id, times, [_tier(clip, times, classes)])


def aligned_player(
    clip: Clip, utterance: str, words: Sequence[TimedToken], phones: Sequence[TimedToken]
) -> Markup:
    """Return a spectrogram with aligned words, if known, and phones, and an audio player."""
    tiers = [_tier(clip, tokens, ["right"] * len(tokens)) for tokens in (words, phones) if tokens]
    return _player(clip, utterance, phones, tiers)


Tier = list[tuple[TimedToken, str, str, str]]
"""Tokens below the spectrogram, each with its CSS class, left end and width."""


def _player(
    clip: Clip, utterance: str, tokens_with_edges: Sequence[TimedToken], tiers: Sequence[Tier]
) -> Markup:
    """Return the HTML of a player: spectrogram, time axis, rows of tokens and audio."""
    top_khz = SAMPLING_RATE / 2000
    boundaries = sorted({at for token in tokens_with_edges for at in (token.start_s, token.end_s)})
    return macros("run.html").player(
        clip,
        utterance,
        top_khz=f"{top_khz:g}",
        frequencies=[(f"{khz:g}", f"{100 * khz / top_khz:g}%") for khz in FREQUENCY_LABELS_KHZ],
        times=[
            (f"{at:g}", _left_percent(clip, at))
            for at in linear_ticks(0.0, 0.95 * clip.seconds, TIME_TICKS)  # the unit is at the end
        ],
        boundaries=[_left_percent(clip, at) for at in boundaries],
        tiers=tiers,
    )


def _tier(clip: Clip, tokens: Sequence[TimedToken], classes: Sequence[str]) -> Tier:
    """Return tokens with their CSS classes and their places below the spectrogram."""
    seconds = clip.seconds or 1.0
    return [
        (
            token,
            word_class,
            _left_percent(clip, token.start_s),
            f"{100 * (token.end_s - token.start_s) / seconds:.2f}%",
        )
        for token, word_class in zip(tokens, classes, strict=True)
    ]


def _left_percent(clip: Clip, seconds: float) -> str:
    """Return the horizontal place of a time on the spectrogram."""
    return f"{min(100.0, 100 * seconds / (clip.seconds or 1.0)):.2f}%"


def _word_class(pair: Pair) -> str:
    """Return the CSS class of an aligned word: inserted, right or substituted."""
    if pair[0] is None:
        return "new"
    return "right" if pair[0] == pair[1] else "sub"
