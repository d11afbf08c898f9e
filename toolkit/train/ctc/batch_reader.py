"""Reading, normalising and padding of batches, in a reader process."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from toolkit.features.cmn_state import CmnState
from toolkit.processes.workers import start_worker
from toolkit.train.ctc.record_folder import Records

if TYPE_CHECKING:
    from toolkit.train.corpus import FeatureNormaliser

Arrays = tuple[np.ndarray, np.ndarray]
"""Inputs [N, T, F] float16 and labels [N, L] int64, both padded with zeros."""


class BatchReader:
    """Reads and pads batches, in numpy with a single thread, as training uses the cores."""

    def __init__(
        self, records: Records, pad_to: int | None, normaliser: "FeatureNormaliser | None"
    ) -> None:
        self._records = records
        self._pad_to = pad_to
        self._normaliser = normaliser

    def __call__(self, group: np.ndarray) -> Arrays:
        """Read the utterances with these indices."""
        records = self._records
        frames = self._pad_to or int(records.frames[group].max())
        inputs = np.zeros((len(group), frames, records.dimension), dtype=np.float16)
        labels = np.zeros((len(group), int(records.label_lengths[group].max())), dtype=np.int64)
        for row, number in enumerate(group.tolist()):
            record = records.read(number)
            features = record.features
            if self._normaliser is not None:
                state = CmnState(record.cmn_frames, torch.from_numpy(record.cmn_sum))
                raw = torch.from_numpy(features.astype(np.float32))
                features = self._normaliser.apply(raw, state).numpy()
            inputs[row, : len(features)] = features
            labels[row, : len(record.labels)] = record.labels
        return inputs, labels


_reader: BatchReader | None = None  # the reader of this process


def start_reader(
    environment: Mapping[str, str], records: Path, pad_to: int | None, normaliser: bytes
) -> None:
    """Initialise a reader process, see `start_worker`; the normaliser is passed pickled."""
    global _reader
    start_worker(environment)
    _reader = BatchReader(Records(records), pad_to, pickle.loads(normaliser))


def read_batch(group: np.ndarray) -> Arrays:
    """Read a batch with the reader of this process."""
    return _reader(group)
