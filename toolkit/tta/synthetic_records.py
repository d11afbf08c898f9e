"""Synthetic record files: noise with the lengths of read sentences, in place of a corpus."""

import json
from pathlib import Path

import numpy as np

from toolkit.lang.units.characters import Characters
from toolkit.storage.files import write_atomically
from toolkit.train.ctc.record_file import Record, write_file
from toolkit.train.ctc.record_folder import RECORDS, record_path

DIMENSION = 93
PER_FILE = 64
FRAMES = (200, 1670)
LABELS_PER_SECOND = 15


def write_synthetic_records(folder: Path, utterances: int, seed: int = 0) -> None:
    """Write utterances of 2 to 16.7 s, mostly long ones as in LibriSpeech: 12 s on average.

    Values have the mean and variance of log-mel energies, so that they compress about as well.
    """
    generator = np.random.default_rng(seed)
    shortest, longest = FRAMES
    lengths = (shortest + (longest - shortest) * generator.beta(2.2, 1.0, utterances)).astype(int)
    files = range(0, utterances, PER_FILE)
    for number, first in enumerate(files):
        records = (
            (f"synthetic-{first + i:06d}", _record(int(frames), generator))
            for i, frames in enumerate(lengths[first : first + PER_FILE])
        )
        write_file(record_path(folder, number), "synthetic", records)
    manifest = {
        "symbols": Characters().symbols,
        "dimension": DIMENSION,
        "files": len(files),
        "utterances": utterances,
    }
    write_atomically(folder / RECORDS, json.dumps(manifest) + "\n")


def _record(frames: int, generator: np.random.Generator) -> Record:
    features = generator.normal(12, 3, (frames, DIMENSION)).astype(np.float16)
    labels = generator.integers(0, Characters().blank, frames * LABELS_PER_SECOND // 100)
    return Record(features, labels.astype(np.int32), 0, np.zeros(DIMENSION))
