"""Selection of a clean corpus's utterances for the far-field sets; no audio is read."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from lhotse import MonoCut

from local.farfield.config import FarfieldConfig
from local.farfield.rooms import FarfieldError
from toolkit.corpus.manifest import speaker_of
from toolkit.corpus.split import cap_hours, hold_out, matches

FIRST_DAY = 1_767_225_600
"""2026-01-01 in seconds since 1970: the earliest creation time."""
DAYS = 90
"""Number of days over which the simulated creation times of unlabelled utterances are spread."""
DAY = 86_400
UNLABELLED = "unlabelled"
"""Name of the set without transcripts."""


@dataclass(frozen=True)
class FarfieldUtterance:
    """One far-field utterance to simulate."""

    split: str
    """Name of its set: `train`, `unlabelled`, `val`, `DP1`, ..."""
    pool: str
    """The pool of its room, noise and playback: `train`, `val` or `test`."""
    id: str
    """Id of the far-field utterance."""
    source: MonoCut
    """The clean utterance."""
    placement: str | None = None
    """Placement of the device; None: drawn at random."""
    array: bool = False
    """Whether all microphones and the playback channel are written, too."""
    time: float | None = None
    """Creation time in seconds since 1970; None for labelled speech."""


@dataclass
class Selection:
    """The utterances selected from a corpus."""

    utterances: list[FarfieldUtterance]
    """The far-field utterances, sorted by split, speaker and id."""
    background: dict[str, list[MonoCut]]
    """Clean speech of other speakers, for the babble and the played speech of each pool."""
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """Utterances of the source that cannot be used, and why."""


def select_utterances(parts: Mapping[str, list[MonoCut]], config: FarfieldConfig) -> Selection:
    """Divide a corpus's speakers among the sets, and draw the speech of each set.

    The selection depends on ids and speakers' names alone, not on the order of `parts`.

    Args:
      parts: cuts by split, as the readers of `local` return them: all training speech is `train`.
        Other parts that match neither `config.val` nor `config.test` are left out.

    Raises:
      FarfieldError: a speaker of val or test is also in training, there are too few speakers to
        hold out, or no utterance is left for a set.
    """
    sources: dict[str, list[MonoCut]] = {"train": [], "val": [], "test": []}
    left_out = _sort_by_purpose(parts, config, sources)
    _hold_out(sources, config)
    _check_disjoint(sources)
    labelled, unlabelled = _split_labelled(sources["train"], config)
    chosen = {
        "train": cap_hours(labelled, config.labelled_hours),
        UNLABELLED: cap_hours(unlabelled, config.unlabelled_hours),
        "val": cap_hours(sources["val"], config.val_hours),
    }
    if config.shared_speakers:
        labelled_ids = {cut.id for cut in chosen["train"]}
        unlabelled = [cut for cut in sources["train"] if cut.id not in labelled_ids]
        chosen[UNLABELLED] = cap_hours(unlabelled, config.unlabelled_hours)
    times = creation_times(chosen[UNLABELLED], DAYS, config.seed)
    utterances = [
        FarfieldUtterance(
            split, "val" if split == "val" else "train", cut.id, cut, time=times.get(cut.id)
        )
        for split, cuts in chosen.items()
        for cut in cuts
    ]
    utterances += _test_utterances(sources["test"], config)
    empty = sorted({*chosen, *config.placements} - {u.split for u in utterances})
    if empty:
        raise FarfieldError(
            f"no utterance was selected for {', '.join(empty)}: the requested hours are shorter "
            "than one utterance, or the corpus has too little speech or too few speakers "
            "(`rooms.shared_speakers=true` allows the same speakers in labelled and unlabelled "
            "speech)"
        )
    utterances.sort(key=lambda u: (u.split, speaker_of(u.source), u.time or 0.0, u.id))
    # Except in train, babble and playback never contain voices of the set that they disturb.
    background = {"train": sources["train"], "val": sources["train"], "test": sources["val"]}
    return Selection(utterances, background, left_out)


def creation_times(cuts: list[MonoCut], days: int, seed: int) -> dict[str, float]:
    """Return simulated creation times by id, in seconds since 1970.

    The times of a speaker rise from one id to the next, over `days` days.
    """
    speakers: dict[str, list[str]] = {}
    for cut in cuts:
        speakers.setdefault(speaker_of(cut), []).append(cut.id)
    times = {}
    for ids in speakers.values():
        for number, id in enumerate(sorted(ids)):
            # Uniform in [0, 1), from the id alone: independent of the other utterances.
            part = int.from_bytes(_digest(f"{seed} {id}")[:4], "big") / 2**32
            times[id] = round(FIRST_DAY + (number + part) / len(ids) * days * DAY, 3)
    return times


def _sort_by_purpose(
    parts: Mapping[str, list[MonoCut]], config: FarfieldConfig, sources: dict[str, list[MonoCut]]
) -> list[tuple[str, str]]:
    """Sort the cuts by purpose into `sources`; return those left out, as (id, reason)."""
    left_out, used_ids = [], set()
    for part in sorted(parts):
        purpose = _purpose(part, config)
        for cut in parts[part]:
            custom = cut.custom or {}
            if purpose is None:
                left_out.append(
                    (cut.id, f"the part {part} matches neither rooms.val nor rooms.test")
                )
            elif cut.duration <= 0 or "fault" in custom:
                left_out.append((cut.id, custom.get("fault_detail") or "no audio"))
            elif cut.id in used_ids:
                left_out.append((cut.id, "another utterance has this id"))
            else:
                used_ids.add(cut.id)
                sources[purpose].append(cut)
    return left_out


def _purpose(part: str, config: FarfieldConfig) -> str | None:
    """Return whether a part is for "train", "val" or "test"; None if it is for none of them."""
    for purpose, patterns in (("val", config.val), ("test", config.test), ("train", "train")):
        if matches(part, patterns):
            return purpose
    return None


def _hold_out(sources: dict[str, list[MonoCut]], config: FarfieldConfig) -> None:
    """Hold speakers out of training for val and test, if the corpus has no such parts."""
    sizes = {"val": config.val_speakers, "test": config.test_speakers}
    missing = {name: size for name, size in sizes.items() if not sources[name]}
    if not missing:
        return
    speakers = {speaker_of(cut) for cut in sources["train"]}
    if sum(missing.values()) >= len(speakers):
        keys = " and ".join(f"`rooms.{name}_speakers={size}`" for name, size in missing.items())
        parts = " and ".join(f"`rooms.{name}`" for name in missing)
        raise FarfieldError(
            f"the training part has {len(speakers)} speakers, too few to hold out {keys}: lower "
            f"these numbers, or choose other parts of the corpus with {parts}"
        )
    sources["train"], held_out = hold_out(sources["train"], missing)
    sources |= held_out


def _check_disjoint(sources: Mapping[str, list[MonoCut]]) -> None:
    """Raise an error if a speaker is in two of train, val and test."""
    speakers = {name: {speaker_of(cut) for cut in cuts} for name, cuts in sources.items()}
    for first, second in (("train", "val"), ("train", "test"), ("val", "test")):
        common = sorted(speakers[first] & speakers[second])
        if common:
            raise FarfieldError(
                f"speaker {common[0]} would be both in {first} and in {second}: choose other parts "
                "of the corpus with `rooms.val` and `rooms.test`, or hold out speakers with "
                "`corpus.hold_out=speakers`"
            )


def _split_labelled(
    cuts: list[MonoCut], config: FarfieldConfig
) -> tuple[list[MonoCut], list[MonoCut]]:
    """Divide training speech by speaker into labelled and unlabelled speech, returned in turn."""
    # The order by digest is random, but that of two speakers does not depend on the others.
    speakers = sorted({speaker_of(cut) for cut in cuts}, key=lambda name: (_digest(name), name))
    count = max(1, round(config.labelled_speakers * len(speakers)))
    if not config.shared_speakers:
        count = min(count, len(speakers) - 1)
    labelled = set(speakers[:count])
    labelled_cuts = [cut for cut in cuts if speaker_of(cut) in labelled]
    return labelled_cuts, [cut for cut in cuts if speaker_of(cut) not in labelled]


def _test_utterances(cuts: list[MonoCut], config: FarfieldConfig) -> list[FarfieldUtterance]:
    """Assign test utterances to placements; the first ones of each are also made as arrays."""
    names = list(config.placements)
    hours = config.test_hours * len(names) / config.test_placements
    utterances, array_seconds = [], dict.fromkeys(names, 0.0)
    for number, cut in enumerate(cap_hours(cuts, hours)):
        for step in range(config.test_placements):
            name = names[(number + step) % len(names)]
            array = array_seconds[name] < 3600 * config.array_hours
            array_seconds[name] += cut.duration if array else 0.0
            utterances.append(FarfieldUtterance(name, "test", f"{cut.id}-{name}", cut, name, array))
    return utterances


def _digest(name: str) -> bytes:
    """Return a hash of a name, for putting utterances in random order."""
    return hashlib.sha256(name.encode()).digest()
