"""Data of LF-MMI training: chunks of utterances with their numerators."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from toolkit.fsa.fst import Lattice
from toolkit.fsa.numerator import NumeratorMaker, PhoneSupervision, Piece
from toolkit.train.batches import Batch, CorpusBatches, ShardGroup, UtteranceSampler, collate
from toolkit.train.config import WholeUtteranceConfig
from toolkit.train.errors import TrainingDataError

logger = logging.getLogger(__name__)

MAX_WITHOUT_NUMERATOR = 200
"""Chunks without a numerator, and none with one, after which training ends."""


@dataclass(frozen=True)
class LfmmiChunkConfig:
    """How utterances are cut, and batch size."""

    max_frames: int = 50
    """Low-rate frames (30 ms) above which an utterance is cut into chunks of about equal length:
    1.5 s, as in Kaldi, where they overlap instead."""
    left_context: int = 13
    """Low-rate frames before a chunk that are computed but not scored, from which the state of an
    LSTM comes (Kaldi: 0.4 s); at the begin of an utterance its first frame repeated."""
    right_context: int = 0
    """Low-rate frames after the chunk that are computed but not scored, beyond the look-ahead; for
    bidirectional models."""
    batch_frames: int = 3200
    """Scored low-rate frames per batch, padding included."""
    window: int = 4_000_000
    """Raw frames that are loaded and shuffled together, see `ChunkConfig`."""

    def __post_init__(self) -> None:
        for name in ("max_frames", "batch_frames", "window"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be at least 1")
        for name in ("left_context", "right_context"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be 0 or more")


@dataclass(frozen=True)
class LfmmiBatch(Batch):
    """Chunks with their numerators; rows have context that is not scored on either side."""

    numerators: tuple[Lattice, ...] = ()
    """Of each row, in memory wherever the batch is; empty where no chunk has one, in which case no
    frame counts."""
    left_context: int = 0
    """The row's frame with which the chunk begins."""
    chunk_lengths: torch.Tensor = torch.empty(0)
    """[N] int64 on the CPU, scored frames of each row."""
    ids_without_numerator: tuple[str, ...] = ()
    """The utterances of chunks that were left out."""
    views: int = 1
    """How often each chunk is in the batch, and its frames count: in rows n, n + N, ... of N."""

    @staticmethod
    def of_views(views: "Sequence[LfmmiBatch]") -> "LfmmiBatch":
        """Join batches of the same chunks."""
        first, several = views[0], len(views)
        return replace(
            first,
            ids=first.ids * several,
            inputs=torch.cat([view.inputs for view in views]),
            targets=first.targets.repeat(several, 1),
            weights=first.weights.repeat(several, 1),
            lengths=first.lengths.repeat(several),
            frames=first.frames * several,
            numerators=first.numerators * several,
            chunk_lengths=first.chunk_lengths.repeat(several),
            views=several,
        )


class LfmmiChunkSampler(UtteranceSampler):
    """Shuffled chunks of utterances with their numerators; see `UtteranceSampler`.

    Chunks that have no numerator are left out of their batch, and named in it.

    Args:
      config: lengths and batch size.
      lookahead: frames of input beyond the last output.
      supervisions: the phones of each utterance.
      maker: of the numerators.
    """

    def __init__(
        self,
        config: LfmmiChunkConfig,
        lookahead: int,
        supervisions: Mapping[str, PhoneSupervision],
        maker: NumeratorMaker,
    ) -> None:
        cut = WholeUtteranceConfig(batch_frames=config.batch_frames, max_frames=config.max_frames)
        super().__init__(cut, lookahead)
        self._contexts = config.left_context, config.right_context, lookahead
        self._supervisions = supervisions
        self._maker = maker

    def collate(self, group: ShardGroup, rows: np.ndarray) -> LfmmiBatch:
        """See `BatchSampler`; a batch in which no chunk has a numerator keeps all, with weight 0.

        Numerators are made here, in the thread that loads batches ahead.
        """
        ids = [group.names[u] for u in rows[:, 0]]
        numerators = [
            self._maker.lattice(self._supervisions[name], Piece(group.offset, start, length))
            for name, (_, start, length) in zip(ids, rows.tolist(), strict=True)
        ]
        usable = [n for n, numerator in enumerate(numerators) if numerator is not None]
        batch = collate(group, rows[usable] if usable else rows, *self._contexts)
        return LfmmiBatch(
            **{
                **vars(batch),
                "weights": batch.weights * bool(usable),
                "frames": batch.frames if usable else 0,
            },
            numerators=tuple(numerators[n] for n in usable),
            left_context=self._contexts[0],
            chunk_lengths=torch.from_numpy((rows[usable] if usable else rows)[:, 2].copy()),
            ids_without_numerator=tuple(
                name for name, numerator in zip(ids, numerators, strict=True) if numerator is None
            ),
        )


class LfmmiBatches(CorpusBatches):
    """The chunks of a corpus, see `CorpusBatches`; warns of chunks without a numerator.

    Iterating over the object itself yields the batches of epoch 0, for validation.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._warned: set[str] = set()
        self._without = self._with = 0  # chunks without and with a numerator so far

    def __iter__(self) -> Iterator[LfmmiBatch]:
        return self.batches(0)

    def batches(
        self, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[LfmmiBatch]:
        """See `BatchSource`.

        Raises:
          TrainingDataError: no chunk so far has a numerator, after an epoch or many chunks.
        """
        for batch in super().batches(epoch, start, rank, world_size):
            self._without += len(batch.ids_without_numerator)
            self._with += len(batch.numerators)
            self._warn(batch.ids_without_numerator)
            if self._without >= MAX_WITHOUT_NUMERATOR:
                self._require_some()
            yield batch
        if start == 0 and world_size == 1:
            self._require_some()

    def _require_some(self) -> None:
        if self._without and not self._with:
            raise TrainingDataError(
                f"the phones of all {self._without} chunks, such as those of {min(self._warned)},"
                " have no path through the denominator: make it from the alignments that are"
                " trained on"
            )

    def _warn(self, ids: Sequence[str]) -> None:
        """Name the utterances of chunks without a numerator, each once."""
        if names := sorted(set(ids) - self._warned):
            self._warned.update(names)
            logger.warning(
                "%d of %d chunks so far are left out: their phones have no path through the"
                " denominator, or too few frames; now of %s",
                *(self._without, self._without + self._with, ", ".join(names)),
            )
