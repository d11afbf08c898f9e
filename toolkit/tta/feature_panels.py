"""A figure of the features of one file: waveform, log-mel energies and MFCC (A3)."""

import base64
import io
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from toolkit.report.chart import linear_ticks

if TYPE_CHECKING:
    from torch import Tensor

WIDE, NARROW = 1040.0, 400.0
LEFT, RIGHT, HEIGHT, GAP = 46.0, 14.0, 118.0, 30.0
"""Margins, height of a panel, and gap between panels in pixels."""


def feature_figure(audio: Path) -> str:
    """Return the figure of a file: 80 log-mel and 13 MFCC of windows of 32 ms (A1, A3).

    Raises:
      AudioError: the file cannot be read.
      FrontendError: there is no front end on this Python, or the file is shorter than a window.
    """
    from toolkit.features.audio import load_audio

    return utterance_figure(load_audio(audio), audio.name)


def utterance_figure(samples: "Tensor", name: str) -> str:
    """Return the figure of samples[S] at 16 kHz; see `feature_figure`."""
    from toolkit.features.frontend import PRESETS, Frontend

    config = PRESETS["fbank80-mfcc13"]
    features = Frontend(config)(samples).numpy()
    mel, cepstra = np.split(features, [config.mel_bins], axis=1)
    return panels(samples.numpy(), mel, cepstra, config.sampling_rate, name)


def panels(samples: np.ndarray, mel: np.ndarray, cepstra: np.ndarray, rate: int, name: str) -> str:
    """Draw samples [S], log-mel energies [T, 80] and cepstra [T, 13], one above the other.

    Each cepstral coefficient has its own scale, as the first one would dominate the others.
    """
    scaled = (cepstra - cepstra.mean(axis=0)) / np.maximum(cepstra.std(axis=0), 1e-9)
    images = [_png(mel), _png(np.clip(scaled, -2.5, 2.5))]
    labels = [f"{mel.shape[1]} log-mel energies", f"{cepstra.shape[1]} MFCC"]
    drawn = "".join(
        f'<div class="{kind}">{_svg(samples, images, labels, rate, width)}</div>'
        for kind, width in (("wide", WIDE), ("narrow", NARROW))
    )
    caption = (
        "From samples to features: windows of 32 ms every 10 ms; bright is loud. Each cepstral "
        "coefficient has its own scale."
    )
    return f"<figure><h3>{escape(name)}</h3>{drawn}<figcaption>{caption}</figcaption></figure>"


def _svg(samples: np.ndarray, images: list[str], labels: list[str], rate: int, width: float) -> str:
    seconds, inside = len(samples) / rate, width - LEFT - RIGHT
    top = [20 + n * (HEIGHT + GAP) for n in range(3)]
    height = top[-1] + HEIGHT + 30
    parts = [
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="Waveform and features">',
        _wave(samples, top[0], inside),
        *(
            f'<text class="unit" x="0" y="{y - 8:g}">{escape(label)}</text>'
            for y, label in zip(top, ["waveform", *labels], strict=True)
        ),
        *(
            f'<image x="{LEFT:g}" y="{y:g}" width="{inside:g}" height="{HEIGHT:g}" '
            f'preserveAspectRatio="none" style="image-rendering:pixelated" href="{image}"/>'
            for y, image in zip(top[1:], images, strict=True)
        ),
    ]
    base = top[-1] + HEIGHT
    for tick in linear_ticks(0.0, seconds, max(3, round(width / 110))):
        x = LEFT + inside * tick / seconds
        unit = " s" if tick == 0 else ""
        parts.append(
            f'<path class="axis" d="M{x:.1f} {base:g}v4"/><text class="tick" x="{x:.1f}" '
            f'y="{base + 18:g}" text-anchor="middle">{tick:g}{unit}</text>'
        )
    return "".join([*parts, "</svg>"])


def _wave(samples: np.ndarray, top: float, inside: float) -> str:
    """Draw the envelope of the samples: minimum and maximum of each pixel."""
    columns = np.array_split(samples, min(len(samples), int(inside)))
    scale = HEIGHT / 2 / max(float(np.abs(samples).max()), 1e-9)
    middle = top + HEIGHT / 2
    step = inside / len(columns)
    upper = [f"{LEFT + n * step:.1f} {middle - scale * c.max():.1f}" for n, c in enumerate(columns)]
    lower = [f"{LEFT + n * step:.1f} {middle - scale * c.min():.1f}" for n, c in enumerate(columns)]
    return f'<path class="wave c0" d="M{"L".join(upper + lower[::-1])}z"/>'


def _png(values: np.ndarray) -> str:
    """Return [T, F] as an image: time to the right, the first feature at the bottom."""
    from matplotlib.image import imsave

    file = io.BytesIO()
    low, high = np.percentile(values, [2, 99.5])
    imsave(file, values.T[::-1], cmap="magma", vmin=low, vmax=max(high, low + 1e-9), format="png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
