"""Training corpus: the usable utterances of some stores, some of them held out for validation."""

import logging
import math
import random
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from toolkit.features.augment import original_id
from toolkit.features.normalise import Cmvn
from toolkit.features.shards import CmnState, FeatureStore
from toolkit.features.silence import counted_frames
from toolkit.storage.digests import digest_bytes
from toolkit.storage.files import write_atomically
from toolkit.train.errors import TrainingDataError

if TYPE_CHECKING:
    from toolkit.train.config import CorpusTrainerConfig, PerturbConfig

logger = logging.getLogger(__name__)
MIN_SPEAKERS = 8
"""Fewest speakers for which whole speakers are held out. With fewer, one speaker is too much of the
data."""
MAX_SHARE = 1 / 8
"""Largest share of the utterances that is held out by whole speakers; of 8 speakers, the one with
the fewest utterances always fits."""
ENOUGH_SPEAKERS = 10
"""Number of speakers to hold out if `MAX_SHARE` allows, even if fewer have enough utterances."""


class Alignments(Protocol):
    """Targets of every raw frame, such as `toolkit.align.store.AlignmentStore`."""

    @property
    def ids(self) -> Sequence[str]:
        """The aligned utterances."""

    def load(self, name: str) -> Tensor:
        """Read an utterance's targets: [T] integers."""


@dataclass(frozen=True)
class Utterance:
    """One training utterance."""

    name: str
    """Id of the utterance."""
    source: int
    """Index of the pair of stores that hold it."""
    frames: int
    """T, number of raw frames."""


class Corpus:
    """The utterances of some stores whose features and alignment have the same length.

    Opening the corpus reads all alignments once, to check them and to count the targets, unless
    `count_targets` is false.
    """

    def __init__(
        self,
        sources: Sequence[tuple[FeatureStore, Any]],
        normaliser: Cmvn,
        num_targets: int | None,
        names: Iterable[str] | None = None,
        excluded: Mapping[str, str] | None = None,
        count_targets: bool = True,
        perturb: "PerturbConfig | None" = None,
    ) -> None:
        """Select and check utterances.

        Args:
          sources: pairs of a store of features and one of `Alignments`.
          normaliser: applied when an utterance is loaded.
          num_targets: C; alignments hold 0 ... C - 1. None: there are no frame targets; the second
            store of each pair then loads `supervisions`, which have a number of `frames`.
          names: use only these utterances; None for all.
          excluded: utterances that are unusable for other reasons, id -> reason.
          count_targets: count the targets. If not, only `num_frames` of the alignments is read, and
            their targets are checked when they are loaded.
          perturb: changes of the features when they are loaded; None: they are left as they are.

        Raises:
          TrainingDataError: a target is not below `num_targets`.
        """
        self._sources = list(sources)
        self._normaliser, self._perturb = normaliser, perturb
        self._has_targets, self._counts_targets = num_targets is not None, count_targets
        self.counts = torch.zeros(num_targets or 0, dtype=torch.int64)
        """[C]: number of raw frames of each target; zero if not counted."""
        self.supervisions: dict[str, Any] = {}
        """Supervisions by utterance, if there are no frame targets."""
        self.excluded: dict[str, str] = {}
        """Utterance id -> reason for its exclusion from training."""
        self.shards: list[list[Utterance]] = []
        """The utterances, by shard of their store."""
        selected = None if names is None else set(names)
        for index, (features, alignments) in enumerate(self._sources):
            aligned = set(alignments.ids)
            for shard in features.shards:
                usable = []
                # An utterance is outside the selection, excluded by the caller, unfit, or usable.
                for name in shard:
                    if selected is not None and name not in selected:
                        continue
                    if excluded is not None and name in excluded:
                        self.excluded[name] = excluded[name]
                    elif utterance := self._check(name, index, aligned):
                        usable.append(utterance)
                if usable:
                    self.shards.append(usable)

    def _check(self, name: str, source: int, aligned: set[str]) -> Utterance | None:
        """Return the utterance, or None after noting in `excluded` why it is unusable."""
        features, alignments = self._sources[source]
        if name not in aligned:
            self.excluded[name] = "no alignment"
            return None
        frames = features.num_frames(name)
        targets = None
        # The alignment's length comes from the supervision, the targets, or the store's index.
        if not self._has_targets:
            self.supervisions[name] = alignments.load(name)
            length = self.supervisions[name].frames
        elif self._counts_targets:
            targets = alignments.load(name)
            length = len(targets)
        else:
            length = alignments.num_frames(name)
        if length != frames:
            self.excluded[name] = f"alignment of {length} frames, features of {frames}"
            return None
        if targets is not None:
            self._check_range(name, targets)
            self.counts += torch.bincount(targets, minlength=len(self.counts))
        return Utterance(name, source, frames)

    def _check_range(self, name: str, targets: Tensor) -> None:
        """Raise an error if an alignment has a target that does not exist."""
        if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < len(self.counts):
            invalid = targets.min() if targets.min() < 0 else targets.max()
            raise TrainingDataError(
                f"{name}: its alignment has target {int(invalid)}, but there are only "
                f"{len(self.counts)} targets: align again with the tree that is to be trained"
            )

    @property
    def utterances(self) -> list[Utterance]:
        """All utterances, shard by shard."""
        return [utterance for shard in self.shards for utterance in shard]

    def load(self, utterance: Utterance) -> tuple[Tensor, Tensor]:
        """Read an utterance: normalised features [T, F] float16 and targets [T] int32.

        Without frame targets these are zeros. Float16 keeps three significant digits, in half the
        memory.
        """
        features, alignments = self._sources[utterance.source]
        name = utterance.name
        raw, state = features.load(name), features.cmn_state(name)
        if self._perturb is not None:
            raw, state = perturbed(name, raw, state, features.kind, self._perturb)
        normalised = self._normaliser.apply(raw, state)
        if not self._has_targets:
            return normalised.half(), torch.zeros(utterance.frames, dtype=torch.int32)
        targets = alignments.load(name)
        if not self._counts_targets:
            self._check_range(name, targets)
        return normalised.half(), targets.int()

    def require(self, max_excluded: float) -> None:
        """Check that enough utterances are usable.

        Raises:
          TrainingDataError: no utterance is left, or a share above `max_excluded` was excluded.
        """
        usable, excluded = len(self.utterances), len(self.excluded)
        if usable and excluded <= max_excluded * (usable + excluded):
            return
        raise TrainingDataError(
            f"{excluded} of {usable + excluded} utterances cannot be used for training"
            f"{self._example()}; at most {100 * max_excluded:g} % may be unusable. Check that "
            "alignments and features are of the same split"
        )

    def require_held_out(self) -> None:
        """Check that the given held-out stores have a usable utterance.

        Raises:
          TrainingDataError: no utterance is left.
        """
        if not self.utterances:
            raise TrainingDataError(
                f"none of the {len(self.excluded)} given held-out utterances can be used for"
                f" validation{self._example()}. Check that their features and alignments are of"
                " the same split"
            )

    def _example(self) -> str:
        """Return the first excluded utterance and its reason, for a message."""
        example = next(iter(sorted(self.excluded.items())), None)
        return f", such as {example[0]} ({example[1]})" if example else ""


def perturbed(
    name: str, raw: Tensor, state: CmnState, kind: str, config: "PerturbConfig"
) -> tuple[Tensor, CmnState | None]:
    """Change the volume of an utterance, and forget its speaker, as `config` asks for.

    Args:
      name: id of the utterance, on which the random choices depend.
      raw: [T, F] features.
      state: statistics of the speaker's earlier utterances.
      kind: kind of the features.
      config: range of the volume, and share of the unknown speakers.

    Returns:
      The features [T, F], and the statistics, which are None for an unknown speaker.
    """
    choices = random.Random(name)
    gain, forgotten = choices.random(), choices.random() < config.unknown_speakers
    if config.volume is not None and kind == "fbank":
        low, high = config.volume
        # Energies of samples that are multiplied by g are multiplied by g^2. Digital silence stays.
        offset = 2 * math.log(low + gain * (high - low))
        raw = raw + offset * counted_frames(raw, kind)[:, None]
    return raw, None if forgotten else state


@dataclass(frozen=True)
class DataSplit:
    """Utterances to train on, and others to validate on."""

    train: set[str]
    valid_names: set[str]
    speakers: tuple[str, ...]
    """Held-out speakers, in order; none of their utterances is in `train`. Empty: only utterances
    are held out."""
    num_speakers: int
    """Number of all speakers, held out or not."""

    def describe(self) -> str:
        """Describe what is held out; if it is only utterances of training speakers, say why."""
        number = len(self.valid_names)
        if not number:
            return "no utterances are held out"
        if self.speakers:
            return (
                f"{number} utterances held out, of whole speakers ({len(self.speakers)} of"
                f" {self.num_speakers}): {', '.join(self.speakers)}"
            )
        return (
            f"{number} utterances held out, of speakers who are trained on ({self.num_speakers}"
            f" speakers; holding out whole speakers needs {MIN_SPEAKERS}). The accuracy on these"
            " utterances does not show how well the network recognises other speakers"
        )


@dataclass(frozen=True)
class Corpora:
    """Utterances to train on, and others to validate on."""

    train: Corpus
    valid: Corpus
    """The held-out utterances; may be empty."""
    held_out_speakers: int
    """Number of speakers who are held out; 0 if only utterances, or nothing, are held out."""


def open_corpora(
    sources: Sequence[tuple[FeatureStore, Any]],
    normaliser: Cmvn,
    num_targets: int | None,
    config: "CorpusTrainerConfig",
    out: Path,
    valid: tuple[FeatureStore, Any] | None = None,
    split: DataSplit | None = None,
    excluded: Mapping[str, str] | None = None,
    valid_excluded: Mapping[str, str] | None = None,
    count_targets: bool = True,
) -> Corpora:
    """Open the stores of a training run, hold out some utterances, and write `excluded.tsv`.

    Args:
      sources: pairs of stores, see `Corpus`.
      normaliser: normaliser of the raw features.
      num_targets: C, or None without frame targets.
      config: how many utterances to hold out, and how many may be excluded.
      out: folder of the training.
      valid: held-out stores; without them `config.valid_utterances` are held out.
      split: what is held out; by default `split_by_speaker` decides.
      excluded: utterances of `sources` that are unusable for other reasons, id -> reason.
      valid_excluded: the same for `valid`.
      count_targets: see `Corpus`.

    Raises:
      TrainingDataError: stores do not belong together, or too little is left of them.
    """
    if split is None:
        speakers = {
            name: features.speaker(name)
            for features, _ in sources
            for shard in features.shards
            for name in shard
        }
        split = split_by_speaker(
            speakers, 0 if valid else config.valid_utterances, config.valid_seed
        )
    train = Corpus(
        sources, normaliser, num_targets, split.train, excluded, count_targets, config.perturb
    )
    # Held-out utterances come from stores of their own, or from those of the training data.
    if valid:
        held_out = Corpus([valid], normaliser, num_targets, None, valid_excluded, count_targets)
    else:
        names = split.valid_names
        held_out = Corpus(sources, normaliser, num_targets, names, excluded, count_targets)
        logger.info("%s", split.describe())
    write_excluded(out / "excluded.tsv", {**train.excluded, **held_out.excluded})
    train.require(config.max_excluded)
    if valid:
        held_out.require_held_out()
    return Corpora(train, held_out, len(split.speakers))


def as_list(stores: Any) -> list[Any]:
    """Return one store or several as a list."""
    return list(stores) if isinstance(stores, Sequence) else [stores]


def write_excluded(path: Path, excluded: dict[str, str]) -> None:
    """Write a line `id TAB reason` for every excluded utterance."""
    lines = [f"{name}\t{reason}\n" for name, reason in sorted(excluded.items())]
    write_atomically(path, "".join(lines))


def split_by_speaker(speakers: Mapping[str, str], number: int, seed: int = 0) -> DataSplit:
    """Hold out speakers where there are enough of them, else utterances.

    Speakers are taken in the order of a checksum of their ids until there are `ENOUGH_SPEAKERS` and
    they have `number` utterances. A speaker who would raise the share of held-out utterances above
    `MAX_SHARE` is passed over.

    Args:
      speakers: speaker by utterance; augmented copies belong to the speakers of their originals.
      number: utterances to hold out; 0: none.
      seed: seed of the checksums.
    """
    by_speaker: dict[str, list[str]] = {}
    for original, members in _families(speakers).items():
        # The first member is the original, or a copy whose speaker has the same suffix as its id.
        suffix = members[0][len(original) :]
        by_speaker.setdefault(speakers[members[0]].removesuffix(suffix), []).extend(members)
    held_out: dict[str, set[str]] = {}
    if number and len(by_speaker) >= MIN_SPEAKERS:
        held_out = _choose_speakers(by_speaker, number, seed)
    if not held_out:
        train, valid_names = split_held_out(speakers, number, seed)
        return DataSplit(train, valid_names, (), len(by_speaker))
    valid_names = {name for names in held_out.values() for name in names}
    train = {n for speaker, names in by_speaker.items() if speaker not in held_out for n in names}
    return DataSplit(train, valid_names, tuple(sorted(held_out)), len(by_speaker))


def _choose_speakers(
    by_speaker: Mapping[str, list[str]], number: int, seed: int
) -> dict[str, set[str]]:
    """Return the speakers to hold out, each with one utterance of every family of copies."""
    originals = {
        speaker: {members[0] for members in _families(names).values()}
        for speaker, names in by_speaker.items()
    }
    max_utterances = MAX_SHARE * sum(map(len, originals.values()))
    held_out: dict[str, set[str]] = {}
    utterances = 0  # held out so far, without copies
    for speaker in _ranked(originals, seed):
        if utterances >= number and len(held_out) >= ENOUGH_SPEAKERS:
            break
        if utterances + len(originals[speaker]) <= max_utterances:
            held_out[speaker] = originals[speaker]
            utterances += len(originals[speaker])
    return held_out


def select_held_out(names: Iterable[str], number: int, seed: int = 0) -> set[str]:
    """Select utterances for validation by a checksum of their ids, at most a tenth of all.

    Additional data change few of the chosen utterances, and the order of the data changes none.
    """
    ranked = _ranked(names, seed)
    return set(ranked[: min(number, len(ranked) // 10)])


def split_held_out(names: Iterable[str], number: int, seed: int = 0) -> tuple[set[str], set[str]]:
    """Hold out utterances together with their augmented copies.

    Returns:
      The utterances to train on, and those to validate on, chosen by `select_held_out`: originals,
      or one copy where the original is not among `names`. All other copies of the utterances to
      validate on are in neither set.
    """
    families = _families(names)
    chosen = select_held_out(families, number, seed)
    training = {n for family, members in families.items() if family not in chosen for n in members}
    return training, {families[family][0] for family in chosen}


def _families(names: Iterable[str]) -> dict[str, list[str]]:
    """Group utterances with their copies; the original, or else one copy, comes first."""
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(original_id(name), []).append(name)
    return {
        original: sorted(members, key=lambda n: (len(n), n))
        for original, members in families.items()
    }


def _ranked(names: Iterable[str], seed: int) -> list[str]:
    """Sort names by a checksum, which depends on the seed."""

    def sort_key(name: str) -> tuple[int, str]:
        # A digest first: CRC-32 is linear, so that a prefix or another start value alone would
        # keep names of the same length together.
        shuffled = digest_bytes(f"{seed} {name}".encode()) if seed else name
        return zlib.crc32(shuffled.encode()), name

    return sorted(names, key=sort_key)
