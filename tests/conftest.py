import os
from pathlib import Path

# Small tensors: threads that wait for each other on busy cores take ten times as long as one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import soundfile


@pytest.fixture
def audio():
    """Write noise to a file: audio(path, seconds, rate=16000, channels=1, seed=0) -> path."""

    def write(path, seconds=1.0, rate=16000, channels=1, seed=0, level=3000.0):
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(seed)
        samples = rng.standard_normal((round(seconds * rate), channels)) * level
        soundfile.write(str(path), samples.astype(np.int16), rate, subtype="PCM_16")
        return path

    return write


@pytest.fixture
def truncate():
    """Cut a file's bytes in half."""

    def cut(path):
        content = Path(path).read_bytes()
        Path(path).write_bytes(content[: len(content) // 2])
        return path

    return cut
