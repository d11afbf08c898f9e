"""Recordings of noise, in place of a corpus."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import soundfile

if TYPE_CHECKING:
    from lhotse.cut import MonoCut

RATE = 16000


def write_noise(folder: Path, number: int, seconds: float) -> "MonoCut":
    """Write FLAC `number` of a folder: so many seconds of noise; return its cut."""
    from lhotse import Recording, SupervisionSegment
    from lhotse.cut import MonoCut

    path = folder / f"noise-{number}.flac"
    noise = np.random.default_rng(number).normal(0.0, 0.1, round(seconds * RATE))
    soundfile.write(path, noise.clip(-1, 1), RATE)
    recording = Recording.from_file(path)
    supervision = SupervisionSegment(path.stem, path.stem, 0.0, seconds, text="", speaker="noise")
    return MonoCut(path.stem, 0.0, seconds, 0, supervisions=[supervision], recording=recording)
