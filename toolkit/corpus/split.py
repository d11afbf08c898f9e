"""Parts of a corpus into the splits train, dev and test."""

import fnmatch
import hashlib
from collections.abc import Callable, Iterable

from lhotse import MonoCut

from toolkit.corpus.config import CorpusConfig
from toolkit.corpus.manifest import ManifestError, speaker_of, text_of


def matches(name: str, patterns: str) -> bool:
    """Tell whether a part's name fits one of the comma-separated patterns (`*` and `?`)."""
    return any(fnmatch.fnmatchcase(name, pattern.strip()) for pattern in patterns.split(","))


def assemble(
    parts: dict[str, list[MonoCut]], corpus: CorpusConfig, hold_out_test: bool = False
) -> dict[str, list[MonoCut]]:
    """Merge training parts into "train", name the other splits, hold out what is missing.

    Args:
      parts: cuts by part name. A part that fits no pattern is left out.
      hold_out_test: make a "test" split where no part fits `corpus.test`.

    Returns:
      Cuts by split: "train" first, then dev parts, then test parts, each sorted by id.

    Raises:
      ManifestError: no training part, or too few speakers or utterances to hold out.
    """
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
        found = ", ".join(sorted(parts)) or "none"
        raise ManifestError(
            f"no part of {corpus.root} matches corpus.train={corpus.train!r} (found: {found})"
        )
    wanted = {"dev": corpus.dev_speakers} if not dev else {}
    if hold_out_test and not test:
        wanted["test"] = corpus.test_speakers
    if corpus.hold_out == "speakers":
        train, held = hold_out(train, wanted, corpus.rotation)
    else:
        train, held = hold_out_utterances(train, wanted, corpus.held_out_share, corpus.rotation)
    dev.update({"dev": held["dev"]} if "dev" in held else {})
    test.update({"test": held["test"]} if "test" in held else {})
    if corpus.hours is not None:
        train = cap_hours(train, corpus.hours)
    splits = {name: _sorted(cuts) for name, cuts in {"train": train, **dev, **test}.items()}
    if corpus.upper_case:
        for cut in (cut for cuts in splits.values() for cut in cuts):
            cut.supervisions[0].text = text_of(cut).upper()
    return splits


def hold_out(
    cuts: list[MonoCut], wanted: dict[str, int], rotation: int = 0
) -> tuple[list[MonoCut], dict[str, list[MonoCut]]]:
    """Take whole speakers out of `cuts`.

    Speakers stand in the order of a digest of their names, which mixes groups that a corpus lists
    together (women first, say) and does not change when the corpus is read in another order.

    Args:
      wanted: number of speakers by name of the new split.
      rotation: how many held-out groups to move on by; after all speakers it starts again.

    Returns:
      The remaining cuts, and the cuts held out by split.
    """
    speakers = sorted({speaker_of(cut) for cut in cuts}, key=lambda name: (_digest(name), name))
    total = sum(wanted.values())
    if total >= len(speakers):
        raise ManifestError(
            f"cannot hold out {total} speakers of {len(speakers)}: lower corpus.dev_speakers and "
            "corpus.test_speakers, name a part of the corpus as corpus.dev, or hold out utterances "
            "of all speakers with --set corpus.hold_out=utterances"
        )
    owner = _owners(speakers, wanted, rotation)
    return _divide(cuts, wanted, lambda cut: owner.get(speaker_of(cut)))


def hold_out_utterances(
    cuts: list[MonoCut], wanted: Iterable[str], share: float, rotation: int = 0
) -> tuple[list[MonoCut], dict[str, list[MonoCut]]]:
    """Take utterances out of `cuts`, drawn by a digest of their ids.

    Args:
      wanted: names of the new splits.
      share: of the utterances that each gets, one at least.
      rotation: how many held-out groups to move on by.

    Returns:
      The remaining cuts, and the cuts held out by split; copies of an id stay together.
    """
    ids = sorted({cut.id for cut in cuts}, key=lambda id: (_digest(id), id))
    counts = dict.fromkeys(wanted, max(1, round(share * len(ids))))
    if sum(counts.values()) >= len(ids):
        raise ManifestError(f"cannot hold out {sum(counts.values())} utterances of {len(ids)}")
    owner = _owners(ids, counts, rotation)
    return _divide(cuts, counts, lambda cut: owner.get(cut.id))


def _owners(names: list[str], wanted: dict[str, int], rotation: int) -> dict[str, str]:
    """Deal names to splits, each as many as wanted; further groups with each rotation."""
    first = rotation * sum(wanted.values())
    owner = {}
    for split, count in wanted.items():
        for place in range(first, first + count):
            owner[names[place % len(names)]] = split
        first += count
    return owner


def _divide(
    cuts: list[MonoCut], wanted: Iterable[str], split_of: Callable[[MonoCut], str | None]
) -> tuple[list[MonoCut], dict[str, list[MonoCut]]]:
    held: dict[str, list[MonoCut]] = {name: [] for name in wanted}
    rest: list[MonoCut] = []
    for cut in cuts:
        split = split_of(cut)
        (rest if split is None else held[split]).append(cut)
    return rest, held


def cap_hours(cuts: Iterable[MonoCut], hours: float) -> list[MonoCut]:
    """Keep whole utterances, drawn by a digest of their ids, while they fit into `hours`.

    A smaller cap keeps a subset of what a larger one keeps.
    """
    kept, total = [], 0.0
    for cut in sorted(cuts, key=lambda cut: (_digest(cut.id), cut.id)):
        total += cut.duration
        if total > hours * 3600:
            break
        kept.append(cut)
    return kept


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def _sorted(cuts: list[MonoCut]) -> list[MonoCut]:
    """Sort by id; copies of an id stay in the order of the corpus."""
    return sorted(cuts, key=lambda cut: cut.id)
