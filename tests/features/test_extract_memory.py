"""Peak memory of extraction must not grow with the number of recordings."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import pytest

from benchmarks.synthetic import write_noise
from toolkit.environment import peak_bytes
from toolkit.features.config import ExtractConfig
from toolkit.features.extract import extract
from toolkit.features.shards import FeatureStore

pytestmark = pytest.mark.long
SECONDS = 10.0
"""Length of a recording: 0.6 MB of samples and 0.26 MB of features."""


def peak_of_extraction(folder, recordings):
    """Extract the features of some recordings and return this process's peak memory in bytes."""
    cuts = []
    for number in range(recordings):
        cut = write_noise(folder, number, SECONDS)
        [supervision] = cut.supervisions
        cuts.append(replace(cut, supervisions=[replace(supervision, speaker=f"s{number}")]))
    extract(cuts, ExtractConfig(hours_per_shard=1 / 60), folder / "features")  # 6 in a shard
    assert len(FeatureStore(folder / "features").ids) == recordings
    return peak_bytes()


def test_memory_does_not_grow_with_the_number_of_recordings(tmp_path):
    peaks = []
    for recordings in (16, 128):
        folder = tmp_path / str(recordings)
        folder.mkdir()
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            peaks.append(process.submit(peak_of_extraction, folder, recordings).result())
    # The samples and features of 112 more recordings are 100 MB.
    assert peaks[1] - peaks[0] < 30e6
