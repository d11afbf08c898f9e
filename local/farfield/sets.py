"""Makes far-field sets of any clean corpus: rooms, noise, playback, placements (C1, C32).

On disk, all paths relative, so that the folder can be moved:

    <root>/cuts/<set>.jsonl     lhotse cuts of train, clean, unlabelled, val, val-clean, DP1..DP5
                                and, of some of its utterances, DP1-raw, the first microphone,
                                and DP1-array, all of them, and so on
    <root>/audio/<set>/NNNN/    a hundred utterances each; for arrays also the speech and the echo
                                alone at the microphones
    <root>/lake/                the unlabelled audio as a data lake, see `toolkit.pipeline.lake`
    <root>/left_out.tsv         utterances of the source that could not be used, and why

`clean` and `val-clean` have the ids of `train` and `val` and the source's audio. Unlabelled cuts
have no text: transcripts of unlabelled speech are nowhere in the folder. Far-field audio keeps the
timing of the clean audio, so that its alignments are valid for both.
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
from local.farfield.cuts import cuts_by_set, read_sets, with_paths_relative_to, write_sets
from local.farfield.lake import write_lake
from local.farfield.pools import make_pools
from local.farfield.rooms import FarfieldError
from local.farfield.selection import UNLABELLED, FarfieldUtterance, select_utterances
from toolkit.config.settings import to_plain
from toolkit.corpus.relocation import portable
from toolkit.pipeline.objects import ObjectStore
from toolkit.processes.workers import map_in_processes
from toolkit.storage.digests import digest_bytes
from toolkit.storage.files import write_atomically
from toolkit.storage.paths import PathAliases, places_of

logger = logging.getLogger("toolkit.farfield")  # runs show the logs of `toolkit`

GROUP_UTTERANCES = 100
"""Utterances per group; finished groups are kept after an interruption."""
SHOWN_REASONS = 3
"""Reasons for leaving utterances out that are logged; left_out.tsv has all."""
ENOUGH = 0.9
"""Share of the hours asked for of a set below which a warning is logged."""
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
      parts: clean cuts by split, as the readers of `local` return them, see `select_utterances`.
      config: amounts, rooms, placements.
      jobs: processes.
      progress: called with (utterances done, utterances).

    Returns:
      Hours by set.

    Raises:
      FarfieldError: the corpus cannot be divided into the sets, or too much audio is unreadable.
    """
    from toolkit.processes.bars import Bar

    selection = select_utterances(parts, config)
    _check_settings(out, config, selection.utterances)
    groups = _groups(selection.utterances, config, out)
    missing = [group for group in groups if not group.done.exists()]
    rooms, total = out / ".pools", len(selection.utterances)
    needed = sorted({group.utterances[0].pool for group in missing})
    pools = make_pools(needed, config, selection.background, rooms, jobs)
    missing = [replace(group, pool=pools[group.utterances[0].pool]) for group in missing]
    done = total - sum(len(group.utterances) for group in missing)
    with Bar(total=total, initial=done, unit="utt", desc="far field") as bar:
        made = map_in_processes(make_group, missing, jobs)
        for group, _ in zip(missing, made, strict=True):
            done += len(group.utterances)
            bar.update(len(group.utterances))
            if progress is not None:
                progress(done, total)
    _list_left_out(groups, selection.left_out, out)
    sets = cuts_by_set(groups, out)
    write_lake(with_paths_relative_to(sets[UNLABELLED], "lake"), ObjectStore(), str(out / "lake"))
    write_sets(sets, out / "cuts")
    shutil.rmtree(rooms, ignore_errors=True)
    hours = {name: sum(cut.duration for cut in cuts) / 3600 for name, cuts in sets.items()}
    for name, target in config.hours.items():
        if hours[name] < ENOUGH * target:
            logger.warning("%s: %.3g h, fewer than the %.3g h asked for", name, hours[name], target)
    return hours


def manifests(root: Path) -> dict[str, list[MonoCut | MultiCut]]:
    """Read the cuts by set that `make_farfield` wrote to `root`, with absolute paths.

    Sets of microphone arrays, `DP1-array` and so on, hold `MultiCut`s: the microphones, then the
    playback channel; `toolkit.features.multichannel.beamforming` reads them.
    """
    root = Path(root).absolute()
    return read_sets(root / "cuts", root)


def _check_settings(out: Path, config: FarfieldConfig, utterances: list[FarfieldUtterance]) -> None:
    """Write config and sources to `out`, or check that the sets there have the same."""
    places = places_of(out)
    sources = [[u.split, u.id, u.array, _source_of(u, places)] for u in utterances]
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


def _source_of(utterance: FarfieldUtterance, places: PathAliases | None) -> dict[str, Any]:
    """Return a source as plain data; of unlabelled speech without the transcript."""
    plain = portable(utterance.source.to_dict(), places)
    return {**plain, "supervisions": []} if utterance.split == UNLABELLED else plain


def _groups(utterances: list[FarfieldUtterance], config: FarfieldConfig, out: Path) -> list[Group]:
    splits: dict[str, list[FarfieldUtterance]] = {}
    for item in utterances:
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
        logger.warning("%d utterances left out: %s (all: left_out.tsv)", count, reason)
    total = sum(len(group.utterances) for group in groups)
    if len(failed) > MAX_FAILED * total:
        raise FarfieldError(
            f"the audio of {len(failed)} of {total} utterances cannot be read; first:"
            f" {': '.join(failed[0])}; all: {out / 'left_out.tsv'}"
        )
