"""Spectrograms of the page of a run."""

import base64
import io

import numpy as np
from matplotlib.image import imread

from toolkit.report.media import spectrogram


def test_spectrogram_shows_a_tone_where_it_is():
    time = np.arange(16000) / 16000
    samples = 0.5 * np.sin(2 * np.pi * 2000 * time) * (time > 0.5)
    image = base64.b64decode(spectrogram(samples).partition(",")[2])
    brightness = imread(io.BytesIO(image))[..., :3].sum(axis=2)
    row, column = np.unravel_index(brightness.argmax(), brightness.shape)
    assert abs(row - 96 * (1 - 2000 / 8000)) <= 1.5
    assert column >= brightness.shape[1] // 2
    assert brightness[:, : brightness.shape[1] // 3].max() < brightness.max() / 2
