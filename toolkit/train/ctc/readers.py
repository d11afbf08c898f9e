"""Parallel readers of record files, which shuffle, batch and pad into a buffer (A8)."""

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from toolkit.features.normalise import Cmvn
from toolkit.features.shards import CmnState
from toolkit.processes.workers import WorkerError, start_worker, worker_context
from toolkit.train.batches import TensorBatch
from toolkit.train.config import ReaderConfig
from toolkit.train.ctc.records import Records
from toolkit.train.errors import TrainingDataError

Arrays = tuple[np.ndarray, np.ndarray]
"""Inputs [N, T, F] float16 and labels [N, L] int64, both padded with zeros."""
_reader: "BatchReader | None" = None  # the reader of this process
BUCKET_BATCHES = 20
"""Number of batches whose utterances are sorted by length together, with the order `buckets`."""
NumberedGroup = tuple[tuple[int, int], np.ndarray]
"""(epoch, position in it) of a batch, and its utterance indices."""


@dataclass(frozen=True)
class CtcBatch(TensorBatch):
    """Utterances padded on the right to one length, the longest's or a fixed one (A8)."""

    ids: list[str]
    """Utterance of each row, length N."""
    inputs: Tensor
    """[N, T, D] float32; undefined beyond an utterance's end."""
    input_lengths: Tensor
    """[N] int64, on the CPU: number of valid frames of each row."""
    labels: Tensor
    """[N, L] int64, without blanks; undefined beyond a row's length."""
    label_lengths: Tensor
    """[N] int64, on the CPU."""
    frames: int
    """Number of valid frames, the sum of `input_lengths`."""
    views: int = 1
    """Number of views of each utterance: rows n and n + N / views are the same utterance, masked
    differently."""

    _computed: ClassVar[tuple[str, ...]] = ("inputs", "labels")
    _lengths: ClassVar[tuple[str, ...]] = ("input_lengths", "label_lengths")

    @property
    def utterances(self) -> int:
        """Number of utterances, each counted once."""
        return len(self.ids) // self.views

    @staticmethod
    def of_views(views: "Sequence[CtcBatch]") -> "CtcBatch":
        """Join batches of the same utterances, one per view."""
        first, several = views[0], len(views)
        return CtcBatch(
            ids=first.ids * several,
            inputs=torch.cat([view.inputs for view in views]),
            input_lengths=first.input_lengths.repeat(several),
            labels=first.labels.repeat(several, 1),
            label_lengths=first.label_lengths.repeat(several),
            frames=first.frames * several,
            views=several,
        )

    def label_sequences(self) -> list[list[int]]:
        """Return the labels of each row, without padding."""
        rows = self.labels.tolist()
        return [row[:n] for row, n in zip(rows, self.label_lengths.tolist(), strict=True)]


class BatchReader:
    """Reads and pads batches in numpy, in a single thread, as training uses the other cores."""

    def __init__(self, records: Records, pad_to: int | None, normaliser: Cmvn | None) -> None:
        self._records = records
        self._pad_to = pad_to
        self._normaliser = normaliser

    def __call__(self, group: np.ndarray) -> Arrays:
        """Read the utterances with these indices."""
        # [N, T, F] and [N, L], padded with zeros
        records = self._records
        frames = self._pad_to or int(records.frames[group].max())
        inputs = np.zeros((len(group), frames, records.dimension), dtype=np.float16)
        labels = np.zeros((len(group), int(records.label_lengths[group].max())), dtype=np.int64)
        for row, number in enumerate(group.tolist()):
            record = records.read(number)
            features = record.features
            if self._normaliser is not None:
                # The speaker's causal mean before this utterance, see `Cmvn.apply`
                state = CmnState(record.cmn_frames, torch.from_numpy(record.cmn_sum))
                raw = torch.from_numpy(features.astype(np.float32))
                features = self._normaliser.apply(raw, state).numpy()
            inputs[row, : len(features)] = features
            labels[row, : len(record.labels)] = record.labels
        return inputs, labels


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


class RecordSource:
    """Batches of whole utterances, in an order that is a function of (seed, epoch).

    See `BatchSource`. Reader processes start at the first batch and stay until `close`. Batches are
    composed before they are assigned to readers, so that the number of readers has no influence on
    them. Utterances are read individually: the whole split is permuted at once.

    Args:
      records: the folder that `write_records` wrote.
      config: batches and readers.
      seed: seed of the order.
      normaliser: applied to the raw features; None leaves them as they are. Picklable.

    Raises:
      TrainingDataError: an utterance is longer than `pad_to`.
    """

    def __init__(
        self,
        records: Path,
        config: ReaderConfig,
        seed: int,
        normaliser: Cmvn | None = None,
    ) -> None:
        self.records = Records(records)
        """The utterances."""
        self._config = config
        self._seed = seed
        self._normaliser = normaliser
        self._pool: ProcessPoolExecutor | None = None
        # Batches being read or ready, by (epoch, position in it)
        self._buffer: dict[tuple[int, int], Future[Arrays]] = {}
        longest = int(self.records.frames.max())
        if config.pad_to is not None and longest > config.pad_to:
            name = self.records.names[int(self.records.frames.argmax())]
            raise TrainingDataError(
                f"{name} has {longest} frames, more than `pad_to` = {config.pad_to}: write the "
                "records with a lower `max_seconds`, or set `pad_to` to none"
            )

    def num_steps(self, epoch: int, world_size: int = 1) -> int:
        """Implement `BatchSource.num_steps`."""
        return -(-len(self.records) // self._config.utterances_per_batch) // world_size

    def batches(
        self, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[CtcBatch]:
        """Implement `BatchSource.batches`."""
        groups = self._part(epoch, rank, world_size)[start:]
        return self._batches_of(groups, lambda: self._part(epoch + 1, rank, world_size))

    def longest_first(self) -> Iterable[CtcBatch]:
        """Return batches from the longest utterance to the shortest, for validation; re-iterable.

        The order depends neither on the seed nor on the order of the records. The result is
        picklable, for evaluating processes.
        """
        return _LongestFirst(self)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without reader processes: a copy in another process reads by itself.

        In the other process nothing would end the readers, and a process waits for its children
        before it exits.
        """
        config = replace(self._config, readers=0)
        return {**self.__dict__, "_config": config, "_pool": None, "_buffer": {}}

    def close(self) -> None:
        """End the reader processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
            self._buffer.clear()

    def __enter__(self) -> "RecordSource":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _groups(self, epoch: int) -> list[np.ndarray]:
        """Return the utterance indices of each batch of an epoch."""
        frames, config = self.records.frames, self._config
        if epoch < config.shortest_first:
            return self._cut(np.argsort(frames, kind="stable"))
        rng = np.random.default_rng([self._seed, epoch])
        order = rng.permutation(len(frames))
        if config.order == "shuffled":
            return self._cut(order)
        # Shuffle, sort within buckets of the shuffled order from the longest to the shortest, cut
        # into batches, and shuffle these.
        bucket = np.arange(len(order)) // (BUCKET_BATCHES * config.utterances_per_batch)
        groups = self._cut(order[np.lexsort((-frames[order], bucket))])
        return [groups[i] for i in rng.permutation(len(groups))]

    def _cut(self, order: np.ndarray) -> list[np.ndarray]:
        """Cut an order of utterances into batches."""
        size = self._config.utterances_per_batch
        return [order[i : i + size] for i in range(0, len(order), size)]

    def _part(self, epoch: int, rank: int, world_size: int) -> "list[NumberedGroup]":
        """Return the batches of one rank in an epoch, as indices."""
        groups = [((epoch, i), group) for i, group in enumerate(self._groups(epoch))]
        # Every world_size-th batch; those left over at the end are dropped.
        return groups[rank : len(groups) // world_size * world_size : world_size]

    def _batches_of(
        self, groups: "list[NumberedGroup]", next_epoch: "Callable[[], list[NumberedGroup]]"
    ) -> Iterator[CtcBatch]:
        """Read batches in this process or in the pool, and yield them in order."""
        arrays = (
            self._read_in_process(groups)
            if self._config.readers == 0
            else self._read_in_pool(groups, next_epoch)
        )
        for (_, group), (inputs, labels) in zip(groups, arrays, strict=True):
            yield self._batch(group, inputs, labels)

    def _read_in_process(self, groups: "list[NumberedGroup]") -> Iterator[Arrays]:
        """Read batches in this process."""
        read = BatchReader(self.records, self._config.pad_to, self._normaliser)
        for _, group in groups:
            yield read(group)

    def _read_in_pool(
        self, groups: "list[NumberedGroup]", next_epoch: "Callable[[], list[NumberedGroup]]"
    ) -> Iterator[Arrays]:
        """Read batches in the pool, and then the first ones of the next epoch.

        So the readers continue while the model is evaluated. The buffer is keyed by the batches'
        numbers, so that batches read ahead but never used do no harm.
        """
        # 1. Cancel what an earlier call requested and this one does not need soon.
        size = self._config.buffer
        order = [*groups, *next_epoch()[:size]]
        soon = {number for number, _ in order[:size]}
        for number in [number for number in self._buffer if number not in soon]:
            self._buffer.pop(number).cancel()
        # 2. Keep `size` batches requested: the current one and those after it.
        pool = self._started_pool()
        try:
            for i, (number, _) in enumerate(groups):
                for later, group in order[i : i + size]:
                    if later not in self._buffer:
                        self._buffer[later] = pool.submit(read_batch, group)
                yield self._buffer.pop(number).result()
        except BrokenProcessPool as error:
            raise WorkerError(
                "a reader process was killed, perhaps for lack of memory: run the same command "
                "again, with fewer readers or a smaller buffer"
            ) from error

    def _started_pool(self) -> ProcessPoolExecutor:
        """Return the reader processes; the first call starts them."""
        if self._pool is None:
            # Pickled here: torch would pass the tensors of an argument as file descriptors.
            normaliser = pickle.dumps(self._normaliser)
            self._pool = ProcessPoolExecutor(
                self._config.readers,
                worker_context(),
                initializer=start_reader,
                initargs=(
                    dict(os.environ),
                    self.records.path,
                    self._config.pad_to,
                    normaliser,
                ),
            )
        return self._pool

    def _batch(self, group: np.ndarray, inputs: np.ndarray, labels: np.ndarray) -> CtcBatch:
        """Make a batch from the arrays that a reader has returned."""
        lengths = self.records.frames[group]
        return CtcBatch(
            ids=[self.records.names[i] for i in group],
            inputs=torch.from_numpy(inputs).float(),
            input_lengths=torch.from_numpy(lengths),
            labels=torch.from_numpy(labels),
            label_lengths=torch.from_numpy(self.records.label_lengths[group]),
            frames=int(lengths.sum()),
        )


class _LongestFirst:
    """Batches from the longest utterance to the shortest, see `RecordSource.longest_first`."""

    def __init__(self, source: RecordSource) -> None:
        self._source = source

    def __iter__(self) -> Iterator[CtcBatch]:
        frames, names = self._source.records.frames, self._source.records.names
        order = sorted(range(len(names)), key=lambda i: (-frames[i], names[i]))
        groups = self._source._cut(np.array(order))
        # Epoch -1 keeps these batches apart from those of the training in the buffer.
        return self._source._batches_of([((-1, i), group) for i, group in enumerate(groups)], list)
