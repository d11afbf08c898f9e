"""Splits of a corpus: which utterances are for training, tuning and testing."""

import fnmatch
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

from lhotse import MonoCut

from toolkit.corpus.config import CorpusConfig
from toolkit.corpus.manifest import HELD_OUT, ManifestError, speaker_of
from toolkit.errors import ToolkitError
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_json, reading


class SplitsError(ToolkitError):
    """Raised when a file of split names cannot be read."""


@dataclass(frozen=True)
class Splits:
    """The names of a corpus's splits, sorted by purpose."""

    train: str
    """The split to train on."""
    tune: tuple[str, ...]
    """The splits on which scales and penalties are chosen."""
    test: tuple[str, ...]
    """The splits that are only reported on."""

    @classmethod
    def of(cls, names: Iterable[str], corpus: CorpusConfig) -> "Splits":
        """Sort split names into train, tuning (dev and matches of `corpus.dev`) and test (rest)."""
        evaluation_splits = [name for name in names if name != "train"]
        tune = tuple(
            name for name in evaluation_splits if name == "dev" or matches(name, corpus.dev)
        )
        return cls("train", tune, tuple(name for name in evaluation_splits if name not in tune))

    @property
    def all(self) -> tuple[str, ...]:
        """Names of all splits, training first."""
        return (self.train, *self.tune, *self.test)

    @property
    def decoded(self) -> tuple[str, ...]:
        """Names of the splits to decode, tuning first."""
        return (*self.tune, *self.test)

    def save(self, path: Path) -> None:
        """Write the names as JSON."""
        write_atomically(path, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Splits":
        """Read the names that `save` wrote.

        Raises:
          SplitsError: the file cannot be read; the message names it.
        """
        with reading(path, SplitsError, "prepare the data again"):
            names = read_json(path, {"train": str, "tune": [str], "test": [str]})
        return cls(names["train"], tuple(names["tune"]), tuple(names["test"]))


def matches(name: str, patterns: str) -> bool:
    """Return whether a part's name matches one of several comma-separated glob patterns."""
    return any(fnmatch.fnmatchcase(name, pattern.strip()) for pattern in patterns.split(","))


def assemble(
    parts: dict[str, list[MonoCut]], corpus: CorpusConfig, hold_out_test: bool = False
) -> dict[str, list[MonoCut]]:
    """Merge training parts into "train", and hold out missing splits.

    Dev and test parts become splits of the same names.

    Args:
      parts: cuts by part name. A part that matches no pattern is left out.
      hold_out_test: make a "test" split where no part matches `corpus.test`.

    Returns:
      Cuts by split: "train" first, then dev parts, then test parts, each sorted by id.

    Raises:
      ManifestError: no training part, or too few speakers or utterances to hold out.
    """
    # 1. Sort the parts by the patterns.
    train: list[MonoCut] = []
    dev: dict[str, list[MonoCut]] = {}
    test: dict[str, list[MonoCut]] = {}
    for name in sorted(parts):
        if matches(name, corpus.train):
            train += parts[name]
        elif matches(name, corpus.dev):
            dev[name] = parts[name]
        elif matches(name, corpus.test):
            test[name] = parts[name]
    if not train:
        part_names = ", ".join(sorted(parts)) or "none"
        raise ManifestError(
            f"no part of {corpus.root} matches corpus.train={corpus.train!r} (found: {part_names})"
        )
    # 2. Hold out what is missing: number of speakers by split.
    missing = {"dev": corpus.dev_speakers} if not dev else {}
    if hold_out_test and not test:
        missing["test"] = corpus.test_speakers
    if corpus.hold_out == "speakers":
        train, held_out = hold_out(train, missing, corpus.rotation)
    else:
        share = corpus.held_out_share
        train, held_out = hold_out_utterances(train, missing, share, corpus.rotation)
    for cut in chain.from_iterable(held_out.values()):
        cut.custom = {**(cut.custom or {}), HELD_OUT: True}
    dev.update({"dev": held_out["dev"]} if "dev" in held_out else {})
    test.update({"test": held_out["test"]} if "test" in held_out else {})
    if corpus.hours is not None:
        train = cap_hours(train, corpus.hours)
    return {name: _sorted(cuts) for name, cuts in {"train": train, **dev, **test}.items()}


def hold_out(
    cuts: list[MonoCut], counts: dict[str, int], rotation: int = 0
) -> tuple[list[MonoCut], dict[str, list[MonoCut]]]:
    """Move whole speakers from `cuts` to held-out splits.

    Speakers are taken in the order of a digest of their names. This mixes groups that a corpus
    lists together, such as all women first, and does not depend on the order of reading.

    Args:
      counts: number of speakers by name of the new split.
      rotation: number of held-out groups to skip; after the last speaker the first one follows.

    Returns:
      The remaining cuts, and the cuts held out by split.
    """
    speakers = sorted({speaker_of(cut) for cut in cuts}, key=lambda name: (_digest(name), name))
    total = sum(counts.values())
    if total >= len(speakers):
        raise ManifestError(
            f"cannot hold out {total} speakers of {len(speakers)}: lower `corpus.dev_speakers` and "
            "`corpus.test_speakers`, set `corpus.dev` to the name of a part of the corpus, or hold "
            "out utterances of all speakers with --set corpus.hold_out=utterances"
        )
    split_of = _assign(speakers, counts, rotation)
    return _partition(cuts, counts, lambda cut: split_of.get(speaker_of(cut)))


def hold_out_utterances(
    cuts: list[MonoCut], names: Iterable[str], share: float, rotation: int = 0
) -> tuple[list[MonoCut], dict[str, list[MonoCut]]]:
    """Move utterances, chosen by a digest of their ids, from `cuts` to held-out splits.

    Args:
      names: names of the new splits.
      share: share of the utterances for each of them; at least one utterance.
      rotation: number of held-out groups to skip.

    Returns:
      The remaining cuts, and the cuts held out by split; copies of an id stay together.
    """
    ids = sorted({cut.id for cut in cuts}, key=lambda id: (_digest(id), id))
    counts = dict.fromkeys(names, max(1, round(share * len(ids))))
    if sum(counts.values()) >= len(ids):
        raise ManifestError(
            f"cannot hold out {sum(counts.values())} of {len(ids)} utterances and train on the "
            "rest: add utterances, or set `corpus.dev` and `corpus.test` to names of parts of the "
            "corpus"
        )
    split_of = _assign(ids, counts, rotation)
    return _partition(cuts, counts, lambda cut: split_of.get(cut.id))


def _assign(names: list[str], counts: dict[str, int], rotation: int) -> dict[str, str]:
    """Assign `counts[split]` names to each split; each rotation takes the next block of names.

    Returns:
      The split by name; names that stay in training are not in it.
    """
    # Each rotation shifts the held-out groups by their total size, wrapping around.
    first = rotation * sum(counts.values())
    split_of = {}
    for split, count in counts.items():
        for index in range(first, first + count):
            split_of[names[index % len(names)]] = split
        first += count
    return split_of


def _partition(
    cuts: list[MonoCut], names: Iterable[str], split_of: Callable[[MonoCut], str | None]
) -> tuple[list[MonoCut], dict[str, list[MonoCut]]]:
    """Divide cuts into training cuts and those of each held-out split."""
    held_out: dict[str, list[MonoCut]] = {name: [] for name in names}
    train: list[MonoCut] = []
    for cut in cuts:
        split = split_of(cut)
        (train if split is None else held_out[split]).append(cut)
    return train, held_out


def cap_hours(cuts: Iterable[MonoCut], hours: float) -> list[MonoCut]:
    """Select whole utterances, chosen by a digest of their ids, up to `hours`.

    The utterances of a smaller cap are a subset of those of a larger one.
    """
    selected, total = [], 0.0
    # The order depends on ids alone, and a cap takes the first utterances.
    for cut in sorted(cuts, key=lambda cut: (_digest(cut.id), cut.id)):
        total += cut.duration
        if total > hours * 3600:
            break
        selected.append(cut)
    return selected


def _digest(name: str) -> bytes:
    """Return the digest of an id, for choosing utterances."""
    return hashlib.sha256(name.encode()).digest()


def _sorted(cuts: list[MonoCut]) -> list[MonoCut]:
    """Sort cuts by id; cuts with equal ids keep the order of the corpus."""
    return sorted(cuts, key=lambda cut: cut.id)
