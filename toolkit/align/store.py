"""Stores alignments: one file per feature shard, and a table of outcomes."""

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from toolkit.align.ctm_textgrid import TimedToken
from toolkit.errors import ToolkitError
from toolkit.features.augment import original_and_speed
from toolkit.features.low_frame_rate import LOW_RATE_FACTOR, centre
from toolkit.features.shards import FeatureStore, ShardStore, field_file, shard_writer
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology, phone_contexts
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import reading

ADVICE = "align again"
FRAME_SECONDS, LOW_RATE_SECONDS = 0.01, 0.03
"""Frame shift in seconds, and that of low-rate frames (C3)."""


class MissingAlignmentError(ToolkitError):
    """Raised for an utterance without an alignment."""


class DamagedAlignmentsError(ToolkitError):
    """Raised when stored alignments cannot be read."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of aligning one utterance: a line of `table.tsv`."""

    utterance: str
    """Utterance id."""
    status: str
    """`ok`, `retried` (a wider beam was needed) or `failed`."""
    log_likelihood_per_frame: float
    """Unscaled; NaN when failed."""
    beam: float
    """The search beam that found the path; 0 when failed."""
    reason: str
    """Why it failed."""


class AlignmentStore(ShardStore[Tensor]):
    """State ids [T] int64 by utterance, stored in a folder of `ali.NNNNNN.tar`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "ali", _to_states, DamagedAlignmentsError, ADVICE)

    def _path(self, utterance: str) -> Path:
        """Return the file of an utterance, or raise a MissingAlignmentError."""
        if utterance in self:
            return super()._path(utterance)
        if not any(self._folder.glob(field_file("ali", None))):
            raise MissingAlignmentError(
                f"{self._folder} contains no alignments (ali.*.tar): run the alignment again"
            )
        raise MissingAlignmentError(
            f"{utterance} has no alignment in {self._folder}; see table.tsv there for the reason"
        )


def _to_states(array: np.ndarray) -> Tensor:
    """Convert a stored array to state ids; raise a ValueError for other types."""
    if array.dtype != np.int32 or array.ndim != 1:
        raise ValueError(f"{array.dtype} {list(array.shape)}, not int32 [T]")
    return torch.from_numpy(array).long()


class LowRateAlignments:
    """Targets of a low-rate model: the senones of `Topology.low_rate_targets`.

    Args:
      store: alignments at 10 ms.
      topology: the topology of the system that made them.
      senones: the senones of the low-rate model.
    """

    def __init__(self, store: AlignmentStore, topology: Topology, senones: Senones) -> None:
        self._store = store
        self._topology = topology
        self._senones = senones

    @property
    def ids(self) -> list[str]:
        """Ids of the aligned utterances."""
        return self._store.ids

    def load(self, utterance: str) -> Tensor:
        """Return the low-rate model's target pdf for every 10 ms frame: [T] int64."""
        states = self._store.load(utterance)
        # [T] each: the neighbouring phones of every frame's phone.
        left_phones, right_phones = phone_contexts(self._topology, states)
        return self._senones.table[
            self._topology.low_rate_targets(states), left_phones, right_phones
        ].long()


class PdfAlignments:
    """Pdfs of alignments that were made with a model of the same senones.

    Args:
      store: alignments at the model's frame rate.
      senones: the model's senones.
    """

    def __init__(self, store: AlignmentStore, senones: Senones) -> None:
        self._store = store
        self._senones = senones

    @property
    def ids(self) -> list[str]:
        """Ids of the aligned utterances."""
        return self._store.ids

    def num_frames(self, utterance: str) -> int:
        """Return the number of frames of an utterance; see `ShardStore.num_frames`."""
        return self._store.num_frames(utterance)

    def load(self, utterance: str) -> Tensor:
        """Return the pdf of every frame: [T] int64."""
        return self._senones.pdfs(self._store.load(utterance))


class OffsetAlignments:
    """Targets of a low-rate model from separate alignments at each of its offsets.

    Args:
      stores: low-rate alignments at offsets 0, 1 and 2.
      senones: the model's senones.
    """

    def __init__(self, stores: Sequence[AlignmentStore], senones: Senones) -> None:
        self._stores = stores
        self._senones = senones

    @classmethod
    def open(cls, folder: Path, senones: Senones) -> "OffsetAlignments":
        """Open the alignments that `toolkit.align.corpus.align_at_offsets` wrote."""
        stores = [AlignmentStore(folder / f"ali.{offset}") for offset in range(LOW_RATE_FACTOR)]
        return cls(stores, senones)

    @cached_property
    def ids(self) -> list[str]:
        """Ids of the utterances that are aligned at every offset."""
        first, *other_stores = self._stores
        shared = set(first.ids).intersection(*(store.ids for store in other_stores))
        return [u for u in first.ids if u in shared]

    def load(self, utterance: str) -> Tensor:
        """Return the low-rate model's target pdf for every 10 ms frame: [T] int64.

        A 10 ms frame gets the target of the stack whose middle it is. So training at an offset uses
        the targets that were aligned at this offset.
        """
        rows = [PdfAlignments(store, self._senones).load(utterance) for store in self._stores]
        frames = sum(map(len, rows))  # the numbers of stacks at all offsets add up to T
        targets = torch.empty(frames, dtype=torch.int64)
        # Frame 0 is the middle of no stack; it gets the first target.
        targets[0] = rows[0][0]
        # Stack n at an offset has its middle at frame 3 n + offset + 1, clamped to T - 1. If two
        # offsets end there, the lower one, which is written later, takes precedence.
        for offset, row in reversed(list(enumerate(rows))):
            targets[centre(frames, offset)] = row
        return targets


def write_shard(path: Path, alignments: dict[str, Tensor], outcomes: Iterable[Outcome]) -> None:
    """Write one shard: first its part of the table, then the shard, which marks it as done."""
    write_table(path.with_suffix(".tsv"), outcomes)
    write_alignments(path, alignments)


def write_alignments(path: Path, alignments: dict[str, Tensor]) -> None:
    """Write the alignments of one shard, without its part of the table."""
    with shard_writer(path) as writer:
        for utterance, states in sorted(alignments.items()):
            writer.add_array(utterance, states.int().numpy())


def write_table(path: Path, outcomes: Iterable[Outcome]) -> None:
    """Write outcomes to a table: a header and lines of tab-separated values."""
    lines = ["\t".join(field.name for field in fields(Outcome))]
    for outcome in outcomes:
        lines.append("\t".join(str(value) for value in astuple(outcome)))
    write_atomically(path, "\n".join(lines) + "\n")


def read_table(path: Path) -> list[Outcome]:
    """Read the outcomes that `write_table` wrote.

    Raises:
      DamagedAlignmentsError: a line cannot be read; the message names the file and the line.
    """
    outcomes = []
    with reading(path, DamagedAlignmentsError, ADVICE):
        lines = path.read_text(encoding="utf-8").split("\n")
        for number, line in enumerate(lines[1:-1], start=2):
            with reading(f"{path}:{number}", DamagedAlignmentsError, ADVICE):
                utterance, status, score, beam, reason = line.split("\t")
                outcomes.append(Outcome(utterance, status, float(score), float(beam), reason))
    return outcomes


class AugmentedAlignments:
    """Targets of augmented copies, taken from the alignments of the originals.

    Changing the speed only scales time. Frame t of a copy is centred at the time t + 1/2, counted
    in frames. Its target is that of the original's frame that contains the time (t + 1/2) * speed.
    So copies need no alignment of their own.

    Args:
      alignments: the alignments of the originals.
      features: the features of the copies.
    """

    def __init__(
        self,
        alignments: AlignmentStore | LowRateAlignments | OffsetAlignments,
        features: FeatureStore,
    ) -> None:
        self._alignments = alignments
        self._features = features

    @cached_property
    def ids(self) -> list[str]:
        """Ids of the copies whose originals are aligned."""
        aligned = set(self._alignments.ids)
        names = (name for shard in self._features.shards for name in shard)
        return [name for name in names if original_and_speed(name)[0] in aligned]

    def load(self, utterance: str) -> Tensor:
        """Return the target of every 10 ms frame: [T] int64.

        If the lengths of alignment and features disagree, T is the length that fits the alignment.
        """
        name, speed = original_and_speed(utterance)
        targets = self._alignments.load(name)
        frames = self._features.num_frames(utterance)
        # Both lengths are rounded, each by at most half of its own frames.
        if abs(frames * speed - len(targets)) > (1 + speed) / 2 + 0.05:
            frames = round(len(targets) / speed)
        # floor((t + 1/2) * speed) in integers: (2 t + 1) n // (2 d) for speed n / d.
        doubled = (2 * torch.arange(frames) + 1) * speed.numerator
        index = torch.div(doubled, 2 * speed.denominator, rounding_mode="floor")
        return targets[index.clamp(max=len(targets) - 1)].long()


def phone_times(states: Tensor, topology: Topology) -> list[TimedToken]:
    """Return the phones of states [T] with their times in seconds."""
    seconds = LOW_RATE_SECONDS if topology.onset else FRAME_SECONDS
    # [N] the frame in which each phone begins.
    first = torch.nonzero(topology.phone_starts(states))[:, 0].tolist()
    symbols = [topology.phones[topology.phone_of_state_id[states[i]] - 1] for i in first]
    return [
        TimedToken(symbol, seconds * start, seconds * end)
        for start, end, symbol in zip(first, [*first[1:], len(states)], symbols, strict=True)
    ]
