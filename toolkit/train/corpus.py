"""Training corpus: aligned utterances, with their normalised features and targets."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from toolkit.storage.files import write_atomically
from toolkit.train.errors import TrainingDataError
from toolkit.train.held_out import Division, divide


class Features(Protocol):
    """Stored raw features, such as `toolkit.features.store.FeatureStore`."""

    shards: list[list[str]]
    """Utterance ids in stored order; a shard is best read as a whole."""

    def num_frames(self, name: str) -> int:
        """Count the raw frames T of an utterance."""

    def load(self, name: str) -> Tensor:
        """Read an utterance: [T, F] raw."""

    def state(self, name: str) -> Any:
        """Return the state of the running mean before the utterance."""

    def speaker(self, name: str) -> str:
        """Return the speaker of an utterance."""


class Alignments(Protocol):
    """Targets of every raw frame, such as `toolkit.align.store.AlignmentStore`."""

    @property
    def ids(self) -> Sequence[str]:
        """The aligned utterances."""

    def load(self, name: str) -> Tensor:
        """Read an utterance's targets: [T] integers."""


class FeatureNormaliser(Protocol):
    """Normalisation of raw features, such as `toolkit.features.normalise.Normaliser`."""

    def apply(self, features: Tensor, state: Any) -> Tensor:
        """Normalise [T, F] raw features of an utterance, given the speaker's state before it."""


@dataclass(frozen=True)
class Utterance:
    """One training utterance."""

    name: str
    """Its id."""
    source: int
    """Index of its pair of stores."""
    frames: int
    """T, number of raw frames."""


class Corpus:
    """The utterances of some stores whose features and alignment have the same length.

    Opening it reads all alignments once, to check them and to count the targets, unless nobody
    needs the counts.
    """

    def __init__(
        self,
        sources: Sequence[tuple[Features, Alignments]],
        normaliser: FeatureNormaliser,
        num_targets: int,
        names: Iterable[str] | None = None,
        counted: bool = True,
    ) -> None:
        """Select and check utterances.

        Args:
          sources: pairs of stores.
          normaliser: applied when an utterance is loaded.
          num_targets: C; alignments hold 0 ... C - 1.
          names: use only these utterances; None for all.
          counted: count the targets. If not, alignments are only asked for `num_frames`, and their
            targets are checked when they are loaded.

        Raises:
          TrainingDataError: a target is not below `num_targets`.
        """
        self._counted = counted
        self._sources = list(sources)
        self._normaliser = normaliser
        self.counts = torch.zeros(num_targets, dtype=torch.int64)
        """[C]: number of raw frames of each target; zero if not counted."""
        self.excluded: dict[str, str] = {}
        """Utterance id -> reason for its exclusion from training."""
        self.shards: list[list[Utterance]] = []
        """The utterances, by shard of their store."""
        wanted = None if names is None else set(names)
        for index, (features, alignments) in enumerate(self._sources):
            aligned = set(alignments.ids)
            for shard in features.shards:
                selected = [name for name in shard if wanted is None or name in wanted]
                kept = [u for name in selected if (u := self._check(name, index, aligned))]
                if kept:
                    self.shards.append(kept)

    def _check(self, name: str, source: int, aligned: set[str]) -> Utterance | None:
        features, alignments = self._sources[source]
        if name not in aligned:
            self.excluded[name] = "no alignment"
            return None
        frames = features.num_frames(name)
        targets = alignments.load(name) if self._counted else None
        length = alignments.num_frames(name) if targets is None else len(targets)
        if length != frames:
            self.excluded[name] = f"alignment of {length} frames, features of {frames}"
            return None
        if targets is not None:
            self._check_range(name, targets)
            self.counts += torch.bincount(targets, minlength=len(self.counts))
        return Utterance(name, source, frames)

    def _check_range(self, name: str, targets: Tensor) -> None:
        if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < len(self.counts):
            wrong = targets.min() if targets.min() < 0 else targets.max()
            raise TrainingDataError(
                f"{name}: its alignment has target {int(wrong)} but there are "
                f"{len(self.counts)}; align again with the tree that is to be trained"
            )

    @property
    def utterances(self) -> list[Utterance]:
        """All utterances, shard by shard."""
        return [utterance for shard in self.shards for utterance in shard]

    def load(self, utterance: Utterance) -> tuple[Tensor, Tensor]:
        """Read an utterance: normalised features [T, F] float16, targets [T] int32.

        Float16 keeps three significant digits, in half the memory.
        """
        features, alignments = self._sources[utterance.source]
        name = utterance.name
        normalised = self._normaliser.apply(features.load(name), features.state(name))
        targets = alignments.load(name)
        if not self._counted:
            self._check_range(name, targets)
        return normalised.half(), targets.int()

    def require(self, max_excluded: float) -> None:
        """Check that enough utterances are usable.

        Raises:
          TrainingDataError: no utterance is left, or a share above `max_excluded` was excluded.
        """
        kept, lost = len(self.utterances), len(self.excluded)
        if kept and lost <= max_excluded * (kept + lost):
            return
        raise TrainingDataError(
            f"{lost} of {kept + lost} utterances cannot be trained on{self._example()}; allowed are"
            f" {100 * max_excluded:g} %. Check that alignments and features are of the same split"
        )

    def require_held_out(self) -> None:
        """Check that held-out stores which were given hold something to validate on.

        Raises:
          TrainingDataError: no utterance is left.
        """
        if not self.utterances:
            raise TrainingDataError(
                f"none of the {len(self.excluded)} held-out utterances given can be validated on"
                f"{self._example()}. Check that they are of the same split as what belongs to them"
            )

    def _example(self) -> str:
        example = next(iter(sorted(self.excluded.items())), None)
        return f", such as {example[0]} ({example[1]})" if example else ""


def as_list(stores: Any) -> list[Any]:
    """Return one store or several as a list."""
    return list(stores) if isinstance(stores, Sequence) else [stores]


def write_excluded(path: Path, excluded: dict[str, str]) -> None:
    """Write a line `id TAB reason` for every excluded utterance."""
    lines = [f"{name}\t{reason}\n" for name, reason in sorted(excluded.items())]
    write_atomically(path, "".join(lines))


def split_stores(stores: Sequence[Features], number: int, seed: int = 0) -> Division:
    """Divide the utterances of stores: about `number`, of speakers of their own, to validate on."""
    speakers = {n: store.speaker(n) for store in stores for shard in store.shards for n in shard}
    return divide(speakers, number, seed)
