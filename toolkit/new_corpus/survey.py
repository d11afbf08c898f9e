"""Surveys the cuts of a new corpus: its size, splits, and faults that show without decoding."""

import dataclasses
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lhotse import MonoCut

from toolkit.corpus.check import reader_faults, speaker_faults
from toolkit.corpus.config import CorpusConfig
from toolkit.corpus.findings import ERROR, FINDING_KINDS, SURVEY_KINDS
from toolkit.corpus.manifest import (
    NO_SPEAKER,
    ManifestError,
    audio_of,
    speaker_of,
    text_of,
)
from toolkit.corpus.split import assemble
from toolkit.corpus.tags import is_garbled, word_of_two_alphabets
from toolkit.lang.text_policy import TextPolicy
from toolkit.storage.lines import split_words
from toolkit.storage.paths import suggestion

MIN_SPEAKERS = 5
"""With fewer speakers, utterances are held out instead of whole speakers."""
HELD_OUT = 0.1
"""Fraction of the speakers that each held-out split gets."""
HOURS_HELD_OUT = (0.04, 0.25)
"""Smallest and largest fraction of the hours that a held-out split may have, if possible."""
MAX_DRAWS = 20
"""Largest number of groups of speakers to try until the hours are in that range."""
LONG_SECONDS = 30.0
"""Utterances of at least this length are hard to align from a flat start."""
PURPOSES = {
    "train": (("train",), ("tr",)),
    "dev": (("dev", "val"), ("cv", "dt")),
    "test": (("test", "eval"), ("et", "tt")),
}
"""How the leading letters of a part's name show its purpose: prefixes of these letters, and words
that must equal all of them."""


@dataclass(frozen=True)
class CorpusSummary:
    """The size, splits, speakers and faults of a corpus."""

    corpus: CorpusConfig
    """Reader, root and splits of the corpus, as settings of a recipe."""
    hours: dict[str, float]
    """Hours of readable audio or features, by split."""
    speakers: dict[str, int]
    """Number of speakers, by split."""
    utterances: int
    """Number of utterances in all splits."""
    faults: dict[str, str]
    """Descriptions of the faults by kind, see `find_faults`."""
    long: int
    """Number of utterances of `LONG_SECONDS` or more."""
    held_out: tuple[str, ...]
    """Splits that are held out of the training part."""
    left_out: tuple[str, ...]
    """Parts that are not used."""
    unnamed: int = 0
    """Number of utterances whose speaker the corpus does not name."""


def survey(
    parts: Mapping[str, list[MonoCut]],
    corpus: CorpusConfig,
    left_out: Sequence[str] = (),
    policy: TextPolicy | None = None,
) -> CorpusSummary:
    """Choose the parts of a corpus for training, tuning and testing, and what is held out.

    Args:
      parts: cuts by the name of the part.
      corpus: its reader and root.
      left_out: names of other parts, which were not read.
      policy: how text becomes words.

    Returns:
      The survey; its `corpus` names the parts of each split and what is held out.

    Raises:
      ManifestError: no part to train on, or no readable audio.
    """
    # 1. Sort the parts by purpose, and look for faults.
    parts_by_purpose = choose_parts(parts)
    cuts = [cut for names in parts_by_purpose.values() for name in names for cut in parts[name]]
    held_out_parts = [
        parts[name] for purpose in ("dev", "test") for name in parts_by_purpose[purpose]
    ]
    train = [cut for name in parts_by_purpose["train"] for cut in parts[name]]
    faults = find_faults(train, *held_out_parts, policy=policy)
    kinds = {cut.custom["fault"] for cut in cuts if "fault" in (cut.custom or {})}
    if not any(cut.duration > 0 for cut in cuts):
        raise ManifestError(
            "no utterance has audio or features that can be read: "
            + "; ".join(faults[kind] for kind in faults if kind in kinds)
            if kinds
            else "there is no utterance"
        )
    # 2. Choose what is held out, and make the splits as the recipe will.
    patterns = {purpose: ",".join(names) for purpose, names in parts_by_purpose.items() if names}
    corpus = dataclasses.replace(corpus, **patterns)
    held_out = tuple(purpose for purpose in ("dev", "test") if not parts_by_purpose[purpose])
    corpus = choose_held_out(parts, corpus, held_out)
    splits = assemble(dict(parts), corpus, hold_out_test=True)
    used = {name for names in parts_by_purpose.values() for name in names}
    return CorpusSummary(
        corpus,
        {split: _hours(cuts) for split, cuts in splits.items()},
        {split: len({speaker_of(cut) for cut in cuts}) for split, cuts in splits.items()},
        len(cuts),
        faults,
        sum(cut.duration >= LONG_SECONDS for cut in cuts),
        held_out,
        tuple(sorted({*left_out, *parts} - used)),
        sum(NO_SPEAKER in (cut.custom or {}) for cut in cuts),
    )


def choose_parts(names: Iterable[str]) -> dict[str, list[str]]:
    """Sort parts by their names into those to train, tune (dev) and test on.

    If a part has exactly the name of a purpose, other parts of this purpose (train_sp beside train)
    are not used. A single part is for training, whatever its name.

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
        # An exact name wins: train_sp and the like are derived from train.
        chosen[purpose] = [purpose] if purpose in fitting else fitting
    if not chosen["train"]:
        raise ManifestError(
            f"none of the parts {', '.join(names) or '(there are none)'} is called train: rename "
            "the part for training to train, and the parts for tuning and testing to dev and test"
        )
    return chosen


def choose_held_out(
    parts: Mapping[str, list[MonoCut]], corpus: CorpusConfig, held_out: tuple[str, ...]
) -> CorpusConfig:
    """Choose the speakers to hold out, or hold out utterances.

    If the corpus names at least `MIN_SPEAKERS` speakers, a tenth of them is held out for each
    split: the first group drawn whose hours are in the range `HOURS_HELD_OUT`. If there is none,
    because one speaker has most of the corpus, utterances are held out.
    """
    cuts = [cut for name in corpus.train.split(",") for cut in parts[name]]
    named = [cut for cut in cuts if NO_SPEAKER not in (cut.custom or {})]
    speakers = len({speaker_of(cut) for cut in named})
    by_utterance = dataclasses.replace(corpus, hold_out="utterances", held_out_share=HELD_OUT)
    if not held_out:
        return corpus
    # Too few speakers to hold out a tenth of them.
    if speakers < MIN_SPEAKERS:
        return by_utterance
    # Held-out speakers of each split; draw until the hours of all splits are in range.
    each = max(1, round(HELD_OUT * speakers))
    least, most = (share * _hours(cuts) for share in HOURS_HELD_OUT)
    # Each rotation draws other speakers, until all have been drawn once.
    for rotation in range(min(MAX_DRAWS, speakers // (each * len(held_out)))):
        drawn = dataclasses.replace(
            corpus, dev_speakers=each, test_speakers=each, rotation=rotation
        )
        splits = assemble(dict(parts), drawn, hold_out_test=True)
        if all(least <= _hours(splits[name]) <= most for name in held_out):
            return drawn
    return by_utterance


def _hours(cuts: Iterable[MonoCut]) -> float:
    """Return the duration of cuts in hours."""
    return sum(cut.duration for cut in cuts) / 3600


SAME_TIME = 1e-3
"""Times of a recording that differ by less than this many seconds are equal, but for rounding."""


def find_faults(*splits: Iterable[MonoCut], policy: TextPolicy | None = None) -> dict[str, str]:
    """Return, by kind, a text with the number of faulty utterances, the first one, and the fix.

    The kinds are some of `FINDING_KINDS` and all `SURVEY_KINDS` of `toolkit.corpus.findings`.

    Args:
      splits: the cuts of each split; a recipe uses only the first of those with the same id.
      policy: how their text becomes words.
    """
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    owners: Counter[str] = Counter()  # number of splits that have an id
    cuts = []
    for split in map(list, splits):
        cuts += split
        copies: Counter[str] = Counter()
        for cut in split:
            copies[cut.id] += 1
            for kind, detail in _faults(cut, copies[cut.id], policy or TextPolicy()):
                counts[kind] += 1
                first.setdefault(kind, f"{cut.id}: {detail}" if detail else cut.id)
        owners.update(copies.keys())
    if shared := [id for id, number in owners.items() if number > 1]:
        counts["shared-id"] = len(shared)
        first["shared-id"] = f"{shared[0]}: in {owners[shared[0]]} splits"
    # One text per kind, with its remedy.
    missing = (cut for cut in cuts if (cut.custom or {}).get("fault") == "missing-audio")
    texts = {}
    for kind, count in sorted(counts.items()):
        kind_info = FINDING_KINDS.get(kind) or SURVEY_KINDS[kind]
        transcripts = "transcript" if count == 1 else "transcripts"
        noun = kind if kind in FINDING_KINDS else f"{transcripts} with {kind}"
        left_out = ", left out" if kind_info.severity == ERROR else ""
        fix = kind_info.fix
        if kind == "missing-audio" and (advice := suggestion(map(audio_of, missing))):
            fix = f"{fix}; {advice}"
        texts[kind] = f"{count} {noun}{left_out}, first {first[kind]} (fix: {fix})"
    return texts | _like_speakers(cuts) | _without_end(cuts)


def _faults(cut: MonoCut, copy: int, policy: TextPolicy) -> Iterator[tuple[str, str]]:
    """Yield (kind, detail) of each fault of an utterance, the `copy`-th one with its id."""
    custom, text = cut.custom or {}, text_of(cut)
    yield from reader_faults(cut, copy)
    if "fault" not in custom and not any(character.isalnum() for character in text):
        yield "empty-transcript", repr(text)
    if custom.get("mix_channels") and "fault" not in custom:
        yield "many-channels", f"{cut.recording.num_channels} channels"
    yield from speaker_faults(cut)
    digits = [
        word
        for word in split_words(text)
        if any(map(_is_digit, word)) and policy.lexicon_key(word) not in policy.lexicon
    ]
    if digits:
        yield "digits", repr(digits[0])
    if word := next(filter(is_garbled, text.split()), None):
        yield "garbled letters", repr(word)
    if tags := policy.found_tags(text):
        yield "tag", repr(tags[0])
    if word := word_of_two_alphabets(text):
        yield "mixed-alphabets", repr(word)


def _is_digit(character: str) -> bool:
    """Return whether a character is a digit of any script."""
    return unicodedata.category(character) == "Nd"


def _like_speakers(cuts: Iterable[MonoCut]) -> dict[str, str]:
    """Return the fault, by kind, of speaker names that differ only in letter case, if any."""
    spellings: dict[str, set[str]] = {}
    for speaker in {speaker_of(cut) for cut in cuts}:
        spellings.setdefault(speaker.casefold(), set()).add(speaker)
    like = sorted(sorted(names) for names in spellings.values() if len(names) > 1)
    if not like:
        return {}
    names = "; ".join(" and ".join(map(repr, spelled)) for spelled in like[:3])
    return {
        "like-speakers": f"{SURVEY_KINDS['like-speakers'].title}: {names} "
        f"(fix: {SURVEY_KINDS['like-speakers'].fix})"
    }


def _without_end(cuts: Iterable[MonoCut]) -> dict[str, str]:
    """Return the fault, by kind, of segments that extend to the recording's end past later ones."""
    # By recording: the segments that last to its end
    last_pieces: dict[str, list[MonoCut]] = {}
    for cut in cuts:
        if cut.duration > 0 and abs(cut.end - cut.recording.duration) < SAME_TIME:
            last_pieces.setdefault(cut.recording.sources[0].source, []).append(cut)
    # A segment without an end time extends to the end of its recording, beyond later segments.
    overlapping = [
        cut
        for pieces in last_pieces.values()
        for begin in [max(piece.start for piece in pieces)]
        for cut in pieces
        if cut.start < begin - SAME_TIME
    ]
    if not overlapping:
        return {}
    first_cut = overlapping[0]
    last_to = (
        "1 utterance lasts" if len(overlapping) == 1 else f"{len(overlapping)} utterances last"
    )
    return {
        "no-end": f"{last_to} to the end of the recording although others begin later, first "
        f"{first_cut.id}: {first_cut.start:g} to {first_cut.end:g} s (fix: "
        f"{SURVEY_KINDS['no-end'].fix})"
    }


def summary_lines(summary: CorpusSummary) -> list[str]:
    """Return lines about size, splits and held-out data."""
    splits = ", ".join(
        f"{split} {_time(hours)} ({_count(summary.speakers[split], 'speaker')})"
        for split, hours in summary.hours.items()
    )
    lines = [f"{summary.utterances} utterances in {summary.corpus.root}", f"splits: {splits}"]
    if summary.unnamed:
        if summary.corpus.speakers == "auto":
            replacement = "stage 2 clusters their recordings into speakers"
        else:
            replacement = "the recording of an utterance counts as its speaker"
        lines.append(
            f"speakers: {summary.unnamed} of {summary.utterances} utterances name none; "
            f"{replacement}"
        )
    if summary.held_out:
        names = " and ".join(summary.held_out)
        if summary.corpus.hold_out == "speakers":
            lines.append(f"held out of train: {names}, by speaker")
        else:
            lines.append(
                f"held out of train: {names}, by utterance, because there are too few speakers, "
                "the corpus does not name them, or one has most of the speech: expect more "
                "errors on speakers outside the corpus"
            )
    if summary.left_out:
        lines.append(f"not used: {', '.join(summary.left_out)}")
    return lines


def warning_lines(summary: CorpusSummary) -> list[str]:
    """Return warnings about the data, with fixes."""
    lines = [
        f"caution: {fault}"
        for kind, fault in summary.faults.items()
        if kind != "no-speaker" or summary.corpus.speakers != "auto"  # it has its remedy already
    ]
    if summary.faults:
        lines.append("caution: stage 3 also checks the audio or features, and lists all faults")
    if summary.long:
        lines.append(
            f"caution: {_count(summary.long, 'utterance')} of {LONG_SECONDS:g} s and more: cut "
            "long recordings at pauses (start and end columns, or segments), or they may not be "
            "aligned in training"
        )
    if summary.hours["train"] < 0.1:
        lines.append(
            f"caution: {_time(summary.hours['train'])} of training speech is enough to try the "
            "recipe, but not for a recogniser; use half an hour at least"
        )
    return lines


def _time(hours: float) -> str:
    """Format a time in hours, minutes (below 0.1 h) or seconds (below a minute)."""
    if hours >= 0.1 or hours == 0:
        return f"{hours:.2f} h"
    return f"{60 * hours:.1f} min" if 60 * hours >= 1 else f"{3600 * hours:.0f} s"


def _count(number: int, noun: str) -> str:
    """Format a number with its noun, in the plural if needed."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
