"""Parallel readers of record files: shuffle, batch and pad into a buffer of ready batches (A8)."""

import pickle
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from toolkit.config.settings import NO_RESULT
from toolkit.processes.workers import WorkerError
from toolkit.train.corpus import Normalises
from toolkit.train.ctc.batch import CtcBatch
from toolkit.train.ctc.batch_reader import Arrays, BatchReader, read_batch, start_reader
from toolkit.train.ctc.record_folder import Records
from toolkit.train.errors import TrainingDataError
from toolkit.train.whole_utterances import SORTED_BATCHES


@dataclass(frozen=True)
class ReaderConfig:
    """Batches of whole utterances, and who makes them."""

    batch: int = 24
    """Utterances per batch of one training process (A10: 24, 60 or 150 per GPU)."""
    readers: int = field(default=8, metadata=NO_RESULT)
    """Reader processes (A10: 8 or 16; `toolkit bench readers` finds the number for a machine).
    0 reads in the training process, where the work ahead is that of one thread."""
    buffer: int = field(default=40, metadata=NO_RESULT)
    """Batches that are being made, ready or trained on (A10: 40 or 100), in float16."""
    pad_to: int | None = None
    """Frames of every batch (A8: 1,670), for hardware that wants one shape; None: those of the
    batch's longest utterance."""
    order: Literal["shuffled", "buckets"] = "shuffled"
    """`shuffled`, or `buckets`: batches of utterances of similar length, in random order, which
    without `pad_to` spares most of the padding."""
    shortest_first: int = 0
    """So many epochs at the beginning go from the shortest utterance to the longest (1 in Deep
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
    """Batches of whole utterances whose order follows from (seed, epoch), see `DataSource`.

    Readers are processes that start at the first batch and stay until `close`. Which utterances
    make a batch is decided before it is given to one of them, so that their number has no influence
    on the batches. Each utterance is read alone: the whole split is permuted at once.

    Args:
      records: the folder that `write_records` wrote.
      config: batches and readers.
      seed: of the order.
      normaliser: applied to the raw features; None leaves them as they are. Picklable.

    Raises:
      TrainingDataError: an utterance is longer than `pad_to`.
    """

    def __init__(
        self, records: Path, config: ReaderConfig, seed: int, normaliser: Normalises | None = None
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

    def steps(self, epoch: int, ranks: int = 1) -> int:
        """See `DataSource`."""
        return -(-len(self.records) // self._config.batch) // ranks

    def batches(
        self, epoch: int, start: int = 0, rank: int = 0, ranks: int = 1
    ) -> Iterator[CtcBatch]:
        """See `DataSource`."""
        wanted = self._part(epoch, rank, ranks)[start:]
        return self._made(wanted, lambda: self._part(epoch + 1, rank, ranks))

    def longest_first(self) -> Iterable[CtcBatch]:
        """Batches from the longest utterance to the shortest, as often as they are gone through.

        The order depends neither on the seed nor on that of the records: what validation runs on.
        Pickle can copy it, for a process that evaluates.
        """
        return _LongestFirst(self)

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process reads by itself, since nobody would end its readers there.

        A process waits for its children before it ends, and for a pool's children that is forever.
        """
        config = replace(self._config, readers=0)
        return {**self.__dict__, "_config": config, "_pool": None, "_buffer": {}}

    def close(self) -> None:
        """End the readers."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
            self._buffer.clear()

    def __enter__(self) -> "RecordSource":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _groups(self, epoch: int) -> list[np.ndarray]:
        """The utterances of each batch of an epoch."""
        frames, config = self.records.frames, self._config
        if epoch < config.shortest_first:
            return self._cut(np.argsort(frames, kind="stable"))
        chance = np.random.default_rng([self._seed, epoch])
        order = chance.permutation(len(frames))
        if config.order == "shuffled":
            return self._cut(order)
        stretch = np.arange(len(order)) // (SORTED_BATCHES * config.batch)
        groups = self._cut(order[np.lexsort((-frames[order], stretch))])
        return [groups[i] for i in chance.permutation(len(groups))]

    def _cut(self, order: np.ndarray) -> list[np.ndarray]:
        size = self._config.batch
        return [order[i : i + size] for i in range(0, len(order), size)]

    def _part(self, epoch: int, rank: int, ranks: int) -> "list[Numbered]":
        """The batches of one process in an epoch."""
        groups = [((epoch, i), group) for i, group in enumerate(self._groups(epoch))]
        return groups[rank : len(groups) // ranks * ranks : ranks]

    def _made(
        self, wanted: "list[Numbered]", following: "Callable[[], list[Numbered]]"
    ) -> Iterator[CtcBatch]:
        arrays = self._here(wanted) if self._config.readers == 0 else self._read(wanted, following)
        for (_, group), (inputs, labels) in zip(wanted, arrays, strict=True):
            yield self._batch(group, inputs, labels)

    def _here(self, wanted: "list[Numbered]") -> Iterator[Arrays]:
        read = BatchReader(self.records, self._config.pad_to, self._normaliser)
        for _, group in wanted:
            yield read(group)

    def _read(
        self, wanted: "list[Numbered]", following: "Callable[[], list[Numbered]]"
    ) -> Iterator[Arrays]:
        """Let the readers make the wanted batches, and then those that probably are wanted next.

        So they go on with the next epoch while the model is evaluated. What is in the buffer goes
        by the batches' numbers: whatever is asked for, the buffer may help and does no harm.
        """
        size = self._config.buffer
        order = [*wanted, *following()[:size]]
        soon = {number for number, _ in order[:size]}
        for number in [number for number in self._buffer if number not in soon]:
            self._buffer.pop(number).cancel()
        pool = self._started_pool()
        try:
            for i, (number, _) in enumerate(wanted):
                for later, group in order[i : i + size]:
                    if later not in self._buffer:
                        self._buffer[later] = pool.submit(read_batch, group)
                yield self._buffer.pop(number).result()
        except BrokenProcessPool as error:
            raise WorkerError(
                "a reader process was killed, perhaps for want of memory: run the same command "
                "again, with fewer readers or a smaller buffer"
            ) from error

    def _started_pool(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # By value: as arguments torch would pass a normaliser's tensors by file descriptors.
            settings = (self.records.path, self._config.pad_to, pickle.dumps(self._normaliser))
            self._pool = ProcessPoolExecutor(
                self._config.readers,
                mp_context=get_context("spawn"),
                initializer=start_reader,
                initargs=settings,
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


Numbered = tuple[tuple[int, int], np.ndarray]
"""(epoch, place in it) of a batch, and its utterances."""


class _LongestFirst:
    """See `RecordSource.longest_first`."""

    def __init__(self, source: RecordSource) -> None:
        self._source = source

    def __iter__(self) -> Iterator[CtcBatch]:
        frames, names = self._source.records.frames, self._source.records.names
        order = sorted(range(len(names)), key=lambda i: (-frames[i], names[i]))
        groups = self._source._cut(np.array(order))
        return self._source._made([((-1, i), group) for i, group in enumerate(groups)], list)
