"""A corpus seen for the first time: its parts, who speaks how long, and what to hold out."""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lhotse import MonoCut

from toolkit.corpus.config import CorpusConfig
from toolkit.corpus.manifest import ManifestError, speaker_of
from toolkit.corpus.split import assemble

FEWEST_SPEAKERS = 5
"""Fewer speakers are too few to do without some in training; utterances are held out instead."""
HELD_OUT = 0.1
"""Share of the speakers that each held-out split gets."""
HOURS_HELD_OUT = (0.04, 0.25)
"""Least and largest share of the hours that a held-out split may get, where that can be had."""
MOST_DRAWS = 20
"""Groups of speakers that are looked at to find one that speaks as long as that."""
LONG_SECONDS = 30.0
"""Utterances from this length on are hard to align from nothing."""
PURPOSES = {
    "train": (("train",), ("tr",)),
    "dev": (("dev", "val"), ("cv", "dt")),
    "test": (("test", "eval"), ("et", "tt")),
}
"""What a part is for, by how its name begins, and by its first letters as a whole."""


@dataclass(frozen=True)
class Survey:
    """A corpus with its splits."""

    corpus: CorpusConfig
    """How to read it."""
    hours: dict[str, float]
    """Of audio that can be read, by split."""
    speakers: dict[str, int]
    """By split."""
    utterances: int
    """Of all splits."""
    faults: dict[str, str]
    """Kinds of faults, with the number of utterances that have it and the first one's."""
    long: int
    """Utterances of `LONG_SECONDS` and more."""
    held_out: tuple[str, ...]
    """Splits that are held out of the training part."""
    left_out: tuple[str, ...]
    """Parts that are not used."""


def survey(
    parts: Mapping[str, list[MonoCut]], corpus: CorpusConfig, left_out: Sequence[str] = ()
) -> Survey:
    """Choose what the parts of a corpus are for and what is held out.

    Args:
      parts: cuts by the name of the part.
      corpus: its reader and root.
      left_out: further parts, which are known not to be used.

    Returns:
      What there is; its `corpus` names the parts and what is held out.

    Raises:
      ManifestError: no part to train on, or no audio that can be read.
    """
    chosen = choose_parts(parts)
    cuts = [cut for names in chosen.values() for name in names for cut in parts[name]]
    faults = _faults(cuts)
    if not any(cut.duration > 0 for cut in cuts):
        raise ManifestError(
            "not one utterance has audio that can be read: " + "; ".join(faults.values())
            if faults
            else "there is no utterance"
        )
    patterns = {purpose: ",".join(names) for purpose, names in chosen.items() if names}
    corpus = dataclasses.replace(corpus, **patterns)
    held_out = tuple(purpose for purpose in ("dev", "test") if not chosen[purpose])
    corpus = choose_held_out(parts, corpus, held_out)
    splits = assemble(dict(parts), corpus, hold_out_test=True)
    used = {name for names in chosen.values() for name in names}
    return Survey(
        corpus,
        {split: _hours(found) for split, found in splits.items()},
        {split: len({speaker_of(cut) for cut in found}) for split, found in splits.items()},
        len(cuts),
        faults,
        sum(cut.duration >= LONG_SECONDS for cut in cuts),
        held_out,
        tuple(sorted({*left_out, *parts} - used)),
    )


def choose_parts(names: Iterable[str]) -> dict[str, list[str]]:
    """Tell what parts are for by their names: train, dev or test.

    Where one is called just that, its variants (train_sp beside train) are not used. A part alone
    is to train on, whatever its name.

    Raises:
      ManifestError: none is to train on.
    """
    names = sorted(names)
    if len(names) == 1:
        return {"train": names, "dev": [], "test": []}
    chosen: dict[str, list[str]] = {}
    for purpose, (beginnings, wholes) in PURPOSES.items():
        fitting = []
        for name in names:
            word = re.match(r"[a-z]*", name.lower())[0]
            if word.startswith(beginnings) or word in wholes:
                fitting.append(name)
        chosen[purpose] = [purpose] if purpose in fitting else fitting
    if not chosen["train"]:
        raise ManifestError(
            f"none of the parts {', '.join(names) or '(there are none)'} is called train: rename "
            "the one to train on, and those to tune and test on to dev and test"
        )
    return chosen


def choose_held_out(
    parts: Mapping[str, list[MonoCut]], corpus: CorpusConfig, held_out: tuple[str, ...]
) -> CorpusConfig:
    """Choose how many speakers are held out and which, or that utterances are.

    Speakers are held out where there are `FEWEST_SPEAKERS`, a tenth of them for each split. Of the
    groups that can be drawn the first is taken that speaks as long as `HOURS_HELD_OUT` asks;
    where there is none, because one speaker has most of the corpus, utterances are held out.
    """
    cuts = [cut for name in corpus.train.split(",") for cut in parts[name]]
    speakers = len({speaker_of(cut) for cut in cuts})
    by_utterance = dataclasses.replace(corpus, hold_out="utterances", held_out_share=HELD_OUT)
    if not held_out:
        return corpus
    if speakers < FEWEST_SPEAKERS:
        return by_utterance
    each = max(1, round(HELD_OUT * speakers))
    least, most = (share * _hours(cuts) for share in HOURS_HELD_OUT)
    for rotation in range(min(MOST_DRAWS, speakers // (each * len(held_out)))):
        drawn = dataclasses.replace(
            corpus, dev_speakers=each, test_speakers=each, rotation=rotation
        )
        splits = assemble(dict(parts), drawn, hold_out_test=True)
        if all(least <= _hours(splits[name]) <= most for name in held_out):
            return drawn
    return by_utterance


def _faults(cuts: list[MonoCut]) -> dict[str, str]:
    found = [cut for cut in cuts if "fault" in (cut.custom or {})]
    counts = Counter(cut.custom["fault"] for cut in found)
    first = {cut.custom["fault"]: cut for cut in reversed(found)}
    return {
        kind: f"{count} {kind}, first {first[kind].id}: {first[kind].custom['fault_detail']}"
        for kind, count in sorted(counts.items())
    }


def _hours(cuts: Iterable[MonoCut]) -> float:
    return sum(cut.duration for cut in cuts) / 3600
