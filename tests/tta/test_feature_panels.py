import base64
import io
import re
from xml.etree import ElementTree

import numpy as np

from toolkit.tta.figures import panels


def images(text):
    from matplotlib.image import imread

    encoded = re.findall(r'href="data:image/png;base64,([^"]+)"', text)
    return [imread(io.BytesIO(base64.b64decode(data))) for data in encoded]


def test_images_have_a_pixel_per_frame_and_feature_with_the_first_at_the_bottom():
    mel = np.zeros((50, 80))
    mel[:, 0] = 10.0  # loud at the lowest frequency
    cepstra = np.random.default_rng(0).normal(size=(50, 13))
    text = panels(np.sin(np.arange(8000) / 9), mel, cepstra, 16000, "a & b.wav")
    assert "a &amp; b.wav" in text
    drawn = images(text)
    assert [image.shape[:2] for image in drawn] == [(80, 50), (13, 50)] * 2  # wide and narrow
    brightness = drawn[0][..., :3].sum(axis=(1, 2))
    assert brightness.argmax() == 79


def test_the_waves_envelope_spans_its_panel():
    samples = np.zeros(4000)
    samples[1000], samples[3000] = 0.5, -0.5
    text = panels(samples, np.ones((25, 80)), np.ones((25, 13)), 16000, "x")
    svg = re.search(r"<svg.*?</svg>", text)[0]
    (wave,) = (n for n in ElementTree.fromstring(svg).iter("path") if "wave" in n.get("class"))
    heights = np.array(re.findall(r"[\d.]+", wave.get("d")), dtype=float).reshape(-1, 2)[:, 1]
    assert heights.max() - heights.min() > 110
