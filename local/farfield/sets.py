"""Any clean corpus as far-field sets: rooms, noise, playback, device placements (C1, C32).

On disk, all paths relative, so that the folder can be moved:

    <root>/cuts/<set>.jsonl     lhotse cuts of train, clean, unlabelled, val, val-clean, DP1..DP5
                                and DP1-array..DP5-array
    <root>/audio/<set>/NNNN/    a hundred utterances each; of arrays also what the microphones hear
                                of the speech and of the echo alone
    <root>/lake/                the unlabelled audio and its metadata, see `toolkit.pipeline.lake`
    <root>/left_out.tsv         utterances of the source that could not be used, and why

`clean` and `val-clean` have the ids of `train` and `val` and the source's audio. Unlabelled cuts
have no text: transcripts of unlabelled speech are nowhere in the folder. Far-field audio keeps the
time of the clean one: alignments carry over.
"""

import json
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lhotse import MonoCut, MultiCut

from local.farfield.audio import Group, make_group
from local.farfield.config import FarfieldConfig
from local.farfield.cuts import below, cuts_of, read_sets, write_sets
from local.farfield.lake import write_lake
from local.farfield.parts import UNLABELLED, Wanted, divide
from local.farfield.pools import make_pools
from local.farfield.rooms import FarfieldError
from toolkit.config.settings import to_plain
from toolkit.pipeline.objects import ObjectStore
from toolkit.processes.workers import map_in_processes
from toolkit.storage.digest import digest_bytes
from toolkit.storage.files import write_atomically

logger = logging.getLogger("toolkit.farfield")  # a run says what is logged below `toolkit`

GROUP_UTTERANCES = 100
"""What is made, and kept after an interruption, as one."""
SHOWN_REASONS = 3
"""Reasons for leaving utterances out that are said; left_out.tsv has all."""
ENOUGH = 0.9
"""Share of the hours wanted of a set below which it is said that there are fewer."""
MAX_FAILED = 0.05
"""Share of the utterances whose audio may be unreadable."""


def make_farfield(
    parts: Mapping[str, list[MonoCut]],
    config: FarfieldConfig,
    out: Path,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, float]:
    """Make the far-field sets of a corpus in `out`; groups that are there already are kept.

    The bytes depend on `parts` and `config` alone, not on `jobs` or interruptions.

    Args:
      parts: clean cuts by split, as the readers of `local` return them, see `divide`.
      config: amounts, rooms, placements.
      jobs: processes.
      progress: called with (utterances done, utterances).

    Returns:
      Hours by set.

    Raises:
      FarfieldError: the corpus cannot be divided so, or too much of its audio cannot be read.
    """
    from tqdm import tqdm

    division = divide(parts, config)
    _claim(out, config, division.wanted)
    groups = _groups(division.wanted, config, out)
    missing = [group for group in groups if not group.done.exists()]
    rooms, total = out / ".pools", len(division.wanted)
    needed = sorted({group.wanted[0].pool for group in missing})
    pools = make_pools(needed, config, division.talk, rooms, jobs)
    missing = [replace(group, pool=pools[group.wanted[0].pool]) for group in missing]
    done = total - sum(len(group.wanted) for group in missing)
    with tqdm(total=total, initial=done, unit="utt", desc="far field", disable=None) as bar:
        made = map_in_processes(make_group, missing, jobs)
        for group, _ in zip(missing, made, strict=True):
            done += len(group.wanted)
            bar.update(len(group.wanted))
            if progress is not None:
                progress(done, total)
    _list_left_out(groups, division.left_out, out)
    sets = cuts_of(groups, out)
    write_lake(below(sets[UNLABELLED], "lake"), ObjectStore(), str(out / "lake"))
    write_sets(sets, out / "cuts")
    shutil.rmtree(rooms, ignore_errors=True)
    hours = {name: sum(cut.duration for cut in cuts) / 3600 for name, cuts in sets.items()}
    for name, wanted in config.hours.items():
        if hours[name] < ENOUGH * wanted:
            logger.warning("%s: %.3g h, fewer than the %.3g h wanted", name, hours[name], wanted)
    return hours


def manifests(root: Path) -> dict[str, list[MonoCut | MultiCut]]:
    """Read the cuts by set that `make_farfield` left in `root`, with the paths of today.

    Sets of microphone arrays, `DP1-array` and so on, hold `MultiCut`s: the microphones, then the
    playback channel; `toolkit.features.multichannel.array` reads them.
    """
    root = Path(root).absolute()
    return read_sets(root / "cuts", root)


def _claim(out: Path, config: FarfieldConfig, wanted: list[Wanted]) -> None:
    """Note what `out` is made of, or see that what is there is made of the same."""
    sources = [[w.split, w.id, w.array, _source_of(w)] for w in wanted]
    plain = {
        "config": to_plain(config),
        "utterances": digest_bytes(json.dumps(sources, sort_keys=True).encode()),
    }
    content = json.dumps(plain, indent=1) + "\n"
    path = out / "settings.json"
    if path.exists() and path.read_text(encoding="utf-8") != content:
        raise FarfieldError(
            f"{out} holds far-field sets of another corpus or of other settings: delete it or"
            " choose another folder"
        )
    write_atomically(path, content)


def _source_of(wanted: Wanted) -> dict[str, Any]:
    """Describe a source; an unlabelled one without its transcript, which nothing reads."""
    described = wanted.source.to_dict()
    return {**described, "supervisions": []} if wanted.split == UNLABELLED else described


def _groups(wanted: list[Wanted], config: FarfieldConfig, out: Path) -> list[Group]:
    splits: dict[str, list[Wanted]] = {}
    for item in wanted:
        splits.setdefault(item.split, []).append(item)
    groups = []
    for split, items in splits.items():
        audio = out / ("lake/audio" if split == UNLABELLED else f"audio/{split}")
        for number, start in enumerate(range(0, len(items), GROUP_UTTERANCES)):
            own = tuple(items[start : start + GROUP_UTTERANCES])
            groups.append(Group(audio / f"{number:04d}", own, config))
    return groups


def _list_left_out(groups: list[Group], left_out: list[tuple[str, str]], out: Path) -> None:
    """Write left_out.tsv.

    Raises:
      FarfieldError: too much audio cannot be read.
    """
    failed: list[tuple[str, str]] = []
    for group in groups:
        failed += map(tuple, json.loads(group.done.read_text(encoding="utf-8"))["failed"])
    listed = sorted({*left_out, *failed})
    lines = [f"{id}\t{reason}\n" for id, reason in listed]
    write_atomically(out / "left_out.tsv", "".join(lines))
    for reason, count in Counter(reason for _, reason in listed).most_common(SHOWN_REASONS):
        logger.warning("left out, %d times: %s (all: left_out.tsv)", count, reason)
    total = sum(len(group.wanted) for group in groups)
    if len(failed) > MAX_FAILED * total:
        raise FarfieldError(
            f"the audio of {len(failed)} of {total} utterances cannot be read; first:"
            f" {': '.join(failed[0])}; all: {out / 'left_out.tsv'}"
        )
