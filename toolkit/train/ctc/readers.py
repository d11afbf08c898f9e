"""Parallel readers of record files, which shuffle, batch and pad into a buffer (A8)."""

import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from toolkit.config.settings import NO_EFFECT_ON_RESULTS
from toolkit.processes.context import worker_context
from toolkit.processes.workers import WorkerError
from toolkit.train.corpus import FeatureNormaliser
from toolkit.train.ctc.batch import CtcBatch
from toolkit.train.ctc.batch_reader import Arrays, BatchReader, read_batch, start_reader
from toolkit.train.ctc.record_folder import Records
from toolkit.train.errors import TrainingDataError
from toolkit.train.whole_utterances import SORTED_BATCHES


@dataclass(frozen=True)
class ReaderConfig:
    """Batches of whole utterances and the reader processes."""

    batch: int = 24
    """Utterances per batch of one training process (A10: 24, 60 or 150 per GPU)."""
    readers: int = field(default=8, metadata=NO_EFFECT_ON_RESULTS)
    """Reader processes (A10: 8 or 16; `toolkit tta readers` finds the number for a machine).
    0 reads in the training process, in one prefetching thread."""
    buffer: int = field(default=40, metadata=NO_EFFECT_ON_RESULTS)
    """Number of batches being read, ready or trained on (A10: 40 or 100), in float16."""
    pad_to: int | None = None
    """Frames to which every batch is padded (A8: 1,670), for hardware that needs a fixed shape;
    None: the length of the batch's longest utterance."""
    order: Literal["shuffled", "buckets"] = "shuffled"
    """`shuffled`, or `buckets`: batches of utterances of similar length, in random order, which
    without `pad_to` avoids most of the padding."""
    shortest_first: int = 0
    """Number of first epochs that are sorted from the shortest utterance to the longest (1 in Deep
    Speech 2; none in the paper)."""

    def __post_init__(self) -> None:
        for name in ("batch", "buffer"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be at least 1")
        for name in ("readers", "shortest_first"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be 0 or more")
        if self.pad_to is not None and self.pad_to < 1:
            raise ValueError(f"pad_to is {self.pad_to}, needs to be at least 1 frame, or none")
        if self.order not in ("shuffled", "buckets"):
            raise ValueError(f"order is {self.order!r}, must be 'shuffled' or 'buckets'")


class RecordSource:
    """Batches of whole utterances, in an order that is a function of (seed, epoch).

    See `DataSource`. Reader processes start at the first batch and stay until `close`. Batches are
    composed before they are assigned to readers, so that the number of readers has no influence on
    them. Utterances are read individually: the whole split is permuted at once.

    Args:
      records: the folder that `write_records` wrote.
      config: batches and readers.
      seed: of the order.
      normaliser: applied to the raw features; None leaves them as they are. Picklable.

    Raises:
      TrainingDataError: an utterance is longer than `pad_to`.
    """

    def __init__(
        self,
        records: Path,
        config: ReaderConfig,
        seed: int,
        normaliser: FeatureNormaliser | None = None,
    ) -> None:
        self.records = Records(records)
        """The utterances."""
        self._config = config
        self._seed = seed
        self._normaliser = normaliser
        self._pool: ProcessPoolExecutor | None = None
        self._buffer: dict[tuple[int, int], Future[Arrays]] = {}
        longest = int(self.records.frames.max())
        if config.pad_to is not None and longest > config.pad_to:
            name = self.records.names[int(self.records.frames.argmax())]
            raise TrainingDataError(
                f"{name} has {longest} frames, more than pad_to = {config.pad_to}: write the "
                "records with a lower max_seconds, or set pad_to to none"
            )

    def steps(self, epoch: int, world_size: int = 1) -> int:
        """See `DataSource`."""
        return -(-len(self.records) // self._config.batch) // world_size

    def batches(
        self, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[CtcBatch]:
        """See `DataSource`."""
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

        Nothing would end its readers there, and a process waits for its children before it exits.
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
        stretch = np.arange(len(order)) // (SORTED_BATCHES * config.batch)
        groups = self._cut(order[np.lexsort((-frames[order], stretch))])
        return [groups[i] for i in rng.permutation(len(groups))]

    def _cut(self, order: np.ndarray) -> list[np.ndarray]:
        size = self._config.batch
        return [order[i : i + size] for i in range(0, len(order), size)]

    def _part(self, epoch: int, rank: int, world_size: int) -> "list[NumberedGroup]":
        """Return the batches of one rank in an epoch, as indices."""
        groups = [((epoch, i), group) for i, group in enumerate(self._groups(epoch))]
        return groups[rank : len(groups) // world_size * world_size : world_size]

    def _batches_of(
        self, groups: "list[NumberedGroup]", next_epoch: "Callable[[], list[NumberedGroup]]"
    ) -> Iterator[CtcBatch]:
        arrays = (
            self._read_in_process(groups)
            if self._config.readers == 0
            else self._read_in_pool(groups, next_epoch)
        )
        for (_, group), (inputs, labels) in zip(groups, arrays, strict=True):
            yield self._batch(group, inputs, labels)

    def _read_in_process(self, groups: "list[NumberedGroup]") -> Iterator[Arrays]:
        read = BatchReader(self.records, self._config.pad_to, self._normaliser)
        for _, group in groups:
            yield read(group)

    def _read_in_pool(
        self, groups: "list[NumberedGroup]", next_epoch: "Callable[[], list[NumberedGroup]]"
    ) -> Iterator[Arrays]:
        """Read batches in the pool, and then the first ones of the next epoch.

        So the readers continue while the model is evaluated. The buffer is keyed by the batches'
        numbers, so that batches which are not requested after all do no harm.
        """
        size = self._config.buffer
        order = [*groups, *next_epoch()[:size]]
        soon = {number for number, _ in order[:size]}
        for number in [number for number in self._buffer if number not in soon]:
            self._buffer.pop(number).cancel()
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
        lengths = self.records.frames[group]
        return CtcBatch(
            ids=[self.records.names[i] for i in group],
            inputs=torch.from_numpy(inputs).float(),
            input_lengths=torch.from_numpy(lengths),
            labels=torch.from_numpy(labels),
            label_lengths=torch.from_numpy(self.records.label_lengths[group]),
            frames=int(lengths.sum()),
        )


NumberedGroup = tuple[tuple[int, int], np.ndarray]
"""(epoch, position in it) of a batch, and its utterance indices."""


class _LongestFirst:
    """See `RecordSource.longest_first`."""

    def __init__(self, source: RecordSource) -> None:
        self._source = source

    def __iter__(self) -> Iterator[CtcBatch]:
        frames, names = self._source.records.frames, self._source.records.names
        order = sorted(range(len(names)), key=lambda i: (-frames[i], names[i]))
        groups = self._source._cut(np.array(order))
        return self._source._batches_of([((-1, i), group) for i, group in enumerate(groups)], list)
