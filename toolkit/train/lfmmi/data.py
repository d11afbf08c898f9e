"""Data of LF-MMI training: pieces of utterances with their numerators."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from toolkit.fsa.fst import Lattice
from toolkit.fsa.numerator import NumeratorMaker, Piece, Spoken
from toolkit.train.batches import Batch
from toolkit.train.errors import TrainingDataError
from toolkit.train.whole_utterances import ShuffledUtterances, WholeUtteranceConfig
from toolkit.train.windows import Stacked, Windows

logger = logging.getLogger(__name__)

MANY = 200
"""Pieces without a numerator, and none with one, after which training ends."""


@dataclass(frozen=True)
class PieceConfig:
    """How utterances are cut, and batch size."""

    max_frames: int = 50
    """Low-rate frames (30 ms) above which an utterance is cut into pieces of about equal length:
    1.5 s, as in Kaldi, where they overlap instead."""
    left_context: int = 13
    """Low-rate frames before a piece that are computed but not scored, from which the state of an
    LSTM comes (Kaldi: 0.4 s); at the begin of an utterance its first frame repeated."""
    right_context: int = 0
    """Low-rate frames after the piece that are computed but not scored, beyond the look-ahead; for
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
class PieceBatch(Batch):
    """Pieces with their numerators; rows have context that is not scored on either side."""

    numerators: tuple[Lattice, ...] = ()
    """Of each row, in memory wherever the batch is; empty where no piece has one, in which case no
    frame counts."""
    left_context: int = 0
    """The row's frame in which the piece begins."""
    piece_lengths: torch.Tensor = torch.empty(0)
    """[N] int64 on the CPU, scored frames of each row."""
    lost: tuple[str, ...] = ()
    """The utterances of pieces that were left out."""
    views: int = 1
    """How often each piece is in the batch, and its frames count: in rows n, n + N, ... of N."""

    @staticmethod
    def of_views(views: "Sequence[PieceBatch]") -> "PieceBatch":
        """Join batches of the same pieces."""
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
            piece_lengths=first.piece_lengths.repeat(several),
            views=several,
        )


class Pieces(ShuffledUtterances):
    """Shuffled pieces of utterances with their numerators; see `ShuffledUtterances`.

    Iterating over the object itself yields the batches of epoch 0, for validation. Pieces that
    have no numerator are left out, with a warning that names their utterances.

    Args:
      windows: of the corpus.
      spoken: the phones of each utterance.
      maker: of the numerators.
      config: lengths and batch size.
      lookahead: frames of input beyond the last output.
      seed: of the order.
    """

    def __init__(
        self,
        windows: Windows,
        spoken: Mapping[str, Spoken],
        maker: NumeratorMaker,
        config: PieceConfig,
        lookahead: int,
        seed: int,
    ) -> None:
        cut = WholeUtteranceConfig(batch_frames=config.batch_frames, max_frames=config.max_frames)
        super().__init__(windows, cut, lookahead, seed)
        self._spoken = spoken
        self._maker = maker
        self._pieces = config
        self._warned: set[str] = set()
        self._lost = self._kept = 0

    def __iter__(self) -> Iterator[Batch]:
        return self.batches(0)

    def batches(
        self, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[PieceBatch]:
        """See `BatchSource`.

        Raises:
          TrainingDataError: no piece so far has a numerator, after an epoch or many pieces.
        """
        for batch in super().batches(epoch, start, rank, world_size):
            self._lost += len(batch.lost)
            self._kept += len(batch.numerators)
            self._tell(batch.lost)
            if self._lost >= MANY:
                self._refuse()
            yield batch
        if start == 0 and world_size == 1:
            self._refuse()

    def _refuse(self) -> None:
        if self._lost and not self._kept:
            raise TrainingDataError(
                f"the phones of all {self._lost} pieces, such as those of {min(self._warned)}, have"
                " no path through the denominator: make it from the alignments that are trained on"
            )

    def _tell(self, lost: Sequence[str]) -> None:
        """Warn of the utterances of pieces without a numerator, each once."""
        if names := sorted(set(lost) - self._warned):
            self._warned.update(names)
            logger.warning(
                "%d of %d pieces so far are left out: their phones have no path through the"
                " denominator, or too few frames; now of %s",
                *(self._lost, self._lost + self._kept, ", ".join(names)),
            )

    def _batch(self, window: Stacked, group: np.ndarray, offset: int) -> PieceBatch:
        names = [window.names[u] for u in group[:, 0]]
        made = [
            self._maker.lattice(self._spoken[name], Piece(offset, start, length))
            for name, (_, start, length) in zip(names, group.tolist(), strict=True)
        ]
        kept = [n for n, lattice in enumerate(made) if lattice is not None]
        used = kept or list(range(len(names)))
        utterance, start, length = torch.from_numpy(group[used]).unbind(1)
        left, right = self._pieces.left_context, self._pieces.right_context
        longest = int(length.max())
        inputs, rows = window.cut(utterance, start, left, longest + right, self._lookahead)
        behind = torch.from_numpy(window.length)[utterance] - start  # to the utterance's end
        position = torch.arange(-left, longest + right)
        return PieceBatch(
            ids=[names[n] for n in used],
            inputs=inputs,
            targets=window.targets[rows].long(),
            weights=((position >= 0) & (position < length[:, None])).float() * bool(kept),
            lengths=left + torch.minimum(behind, length + right),
            frames=int(length.sum()) if kept else 0,
            numerators=tuple(made[n] for n in kept),
            left_context=left,
            piece_lengths=length.clone(),
            lost=tuple(name for n, name in enumerate(names) if made[n] is None),
        )
