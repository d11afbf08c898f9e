"""Surveys a new corpus: its parts, hours by speaker, and which speakers to hold out."""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lhotse import MonoCut

from toolkit.corpus.config import CorpusConfig
from toolkit.corpus.manifest import NO_SPEAKER, ManifestError, speaker_of
from toolkit.corpus.split import assemble
from toolkit.lang.policy import TextPolicy
from toolkit.new_corpus.faults import find_faults

MIN_SPEAKERS = 5
"""With fewer speakers, none can be spared from training: utterances are held out instead."""
HELD_OUT = 0.1
"""Fraction of the speakers that each held-out split gets."""
HOURS_HELD_OUT = (0.04, 0.25)
"""Smallest and largest fraction of the hours that a held-out split may have, if possible."""
MAX_DRAWS = 20
"""Maximum number of groups of speakers that are tried to find one with hours in that range."""
LONG_SECONDS = 30.0
"""Utterances of this length or more are hard to align from a flat start."""
PURPOSES = {
    "train": (("train",), ("tr",)),
    "dev": (("dev", "val"), ("cv", "dt")),
    "test": (("test", "eval"), ("et", "tt")),
}
"""The purpose of a part by its name: words that the name may start with, and words that must be all
of its leading letters."""


@dataclass(frozen=True)
class Survey:
    """The size, splits, speakers and faults of a corpus."""

    corpus: CorpusConfig
    """Its reader, root and splits, as settings of a recipe."""
    hours: dict[str, float]
    """Hours of readable audio or features, by split."""
    speakers: dict[str, int]
    """Number of speakers, by split."""
    utterances: int
    """Number of utterances in all splits."""
    faults: dict[str, str]
    """See `toolkit.new_corpus.faults.find_faults`."""
    long: int
    """Number of utterances of `LONG_SECONDS` or more."""
    held_out: tuple[str, ...]
    """Splits that are held out from the training part."""
    left_out: tuple[str, ...]
    """Parts that are not used."""
    unnamed: int = 0
    """Number of utterances whose speaker the corpus does not name."""


def survey(
    parts: Mapping[str, list[MonoCut]],
    corpus: CorpusConfig,
    left_out: Sequence[str] = (),
    policy: TextPolicy | None = None,
) -> Survey:
    """Choose which parts of a corpus are for training, tuning and testing, and what is held out.

    Args:
      parts: cuts by the name of the part.
      corpus: its reader and root.
      left_out: names of further parts, which are known not to be used.
      policy: how text becomes words.

    Returns:
      The survey; its `corpus` names the parts of each split and what is held out.

    Raises:
      ManifestError: no part to train on, or no readable audio.
    """
    chosen = choose_parts(parts)
    cuts = [cut for names in chosen.values() for name in names for cut in parts[name]]
    held = [parts[name] for purpose in ("dev", "test") for name in chosen[purpose]]
    train = [cut for name in chosen["train"] for cut in parts[name]]
    faults = find_faults(train, *held, policy=policy)
    kinds = {cut.custom["fault"] for cut in cuts if "fault" in (cut.custom or {})}
    if not any(cut.duration > 0 for cut in cuts):
        raise ManifestError(
            "no utterance has audio or features that can be read: "
            + "; ".join(faults[kind] for kind in faults if kind in kinds)
            if kinds
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
        sum(NO_SPEAKER in (cut.custom or {}) for cut in cuts),
    )


def choose_parts(names: Iterable[str]) -> dict[str, list[str]]:
    """Sort parts by their names into those to train, tune (dev) and test on.

    Where a part has exactly the name of the purpose, variants of it (train_sp beside train) are not
    used. A single part is for training, whatever its name.

    Raises:
      ManifestError: no part is for training.
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
            "the one to train on to train, and those to tune and test on to dev and test"
        )
    return chosen


def choose_held_out(
    parts: Mapping[str, list[MonoCut]], corpus: CorpusConfig, held_out: tuple[str, ...]
) -> CorpusConfig:
    """Choose which speakers are held out, or that utterances are.

    With `MIN_SPEAKERS` or more that the corpus names, a tenth of the speakers is held out for each
    split: the first group drawn whose hours are in the range `HOURS_HELD_OUT`. If there is none,
    because one speaker has most of the corpus, utterances are held out.
    """
    cuts = [cut for name in corpus.train.split(",") for cut in parts[name]]
    named = [cut for cut in cuts if NO_SPEAKER not in (cut.custom or {})]
    speakers = len({speaker_of(cut) for cut in named})
    by_utterance = dataclasses.replace(corpus, hold_out="utterances", held_out_share=HELD_OUT)
    if not held_out:
        return corpus
    if speakers < MIN_SPEAKERS:
        return by_utterance
    each = max(1, round(HELD_OUT * speakers))
    least, most = (share * _hours(cuts) for share in HOURS_HELD_OUT)
    for rotation in range(min(MAX_DRAWS, speakers // (each * len(held_out)))):
        drawn = dataclasses.replace(
            corpus, dev_speakers=each, test_speakers=each, rotation=rotation
        )
        splits = assemble(dict(parts), drawn, hold_out_test=True)
        if all(least <= _hours(splits[name]) <= most for name in held_out):
            return drawn
    return by_utterance


def _hours(cuts: Iterable[MonoCut]) -> float:
    return sum(cut.duration for cut in cuts) / 3600
