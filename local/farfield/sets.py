"""Far-field sets made from any clean corpus: rooms, noise, playback, placements (C1, C32).

The files have relative paths, so that the folder can be moved:

    <root>/cuts/<set>.jsonl     lhotse cuts of train, clean, unlabelled, val, val-clean, DP1..DP5;
                                for some utterances of DP1 also DP1-raw (the first microphone) and
                                DP1-array (all microphones), and so on for DP2 to DP5
    <root>/audio/<set>/NNNN/    a hundred utterances each; for arrays also the speech alone and the
                                echo alone at the microphones
    <root>/lake/                the unlabelled audio as a data lake, see `toolkit.pipeline.lake`
    <root>/left_out.tsv         utterances of the source that could not be used, and why

`clean` and `val-clean` have the ids of `train` and `val` and the source's audio. Unlabelled cuts
have no text: the folder contains no transcripts of unlabelled speech. Far-field audio keeps the
timing of the clean audio, so that its alignments are valid for both.
"""

import json
import logging
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lhotse import MonoCut, MultiCut, Recording
from lhotse.audio import AudioSource

from local.farfield.config import FarfieldConfig
from local.farfield.mix import Group, file_name, make_group
from local.farfield.noise import make_pools
from local.farfield.rooms import SAMPLING_RATE, FarfieldError
from local.farfield.selection import UNLABELLED, FarfieldUtterance, select_utterances
from toolkit.config.settings import to_plain
from toolkit.corpus.manifest import (
    audio_of,
    make_cut,
    read_cuts,
    speaker_of,
    text_of,
    to_relative_paths,
    write_cuts,
)
from toolkit.pipeline.lake import Lake, LakeError, Record, bucket_of, metadata_path
from toolkit.pipeline.objects import ObjectStore
from toolkit.processes.workers import map_in_processes
from toolkit.storage.digests import digest_bytes
from toolkit.storage.files import write_atomically
from toolkit.storage.paths import PathAliases, places_of

Cuts = list[MonoCut | MultiCut]

CLEAN_SETS = {"train": "clean", "val": "val-clean"}
"""Sets whose clean source utterances are kept, too, and the sets that hold these."""

SETS = "sets.json"
"""File with the names of the sets in their order; written last."""

DAY = 86_400

logger = logging.getLogger("toolkit.farfield")  # runs show the logs of `toolkit`

GROUP_UTTERANCES = 100
"""Utterances per group; finished groups are kept after an interruption."""

SHOWN_REASONS = 3
"""Number of reasons for leaving out utterances that are logged; left_out.tsv lists all."""

ENOUGH = 0.9
"""Share of a set's requested hours below which a warning is logged."""

MAX_FAILED = 0.05
"""Largest share of the utterances whose audio may be unreadable."""


def cuts_by_set(groups: Sequence[Group], out: Path) -> dict[str, Cuts]:
    """Return the cuts of finished groups by set, with the clean sets of train and val."""
    config = groups[0].config
    names = ["train", CLEAN_SETS["train"], UNLABELLED, "val", CLEAN_SETS["val"], *config.placements]
    if config.array_hours:
        names += [f"{name}-{kind}" for name in config.placements for kind in ("raw", "array")]
    sets: dict[str, Cuts] = {name: [] for name in names}
    for group in groups:
        by_id = {item.id: item for item in group.utterances}
        folder = group.folder.relative_to(out)
        for entry in json.loads(group.done.read_text(encoding="utf-8"))["made"]:
            item = by_id[entry["id"]]
            cut = _cut(item, entry, "", folder)
            sets[item.split].append(cut)
            if item.split in CLEAN_SETS:
                sets[CLEAN_SETS[item.split]].append(item.source)
            if item.array:
                raw = _cut(item, entry, "raw", folder)
                sets[f"{item.split}-raw"].append(raw)
                array = _array_cut(cut, entry, folder)
                sets[f"{item.split}-array"].append(array)
    return sets


def write_sets(sets: dict[str, Cuts], folder: Path) -> None:
    """Write the cuts of each set to a JSONL file, sorted by id."""
    for name, cuts in sets.items():
        write_cuts(sorted(cuts, key=lambda cut: cut.id), folder / f"{name}.jsonl")
    write_atomically(folder / SETS, json.dumps(list(sets)) + "\n")


def read_sets(folder: Path, root: Path) -> dict[str, Cuts]:
    """Read what `write_sets` wrote; relative paths of audio start from `root`."""
    names = json.loads((folder / SETS).read_text(encoding="utf-8"))
    return {
        name: [_from(root, cut) for cut in read_cuts(folder / f"{name}.jsonl")] for name in names
    }


def with_paths_relative_to(cuts: Iterable[MonoCut], folder: str) -> Iterable[MonoCut]:
    """Yield the cuts with audio paths relative to the subfolder `folder` of the sets' folder."""
    for cut in cuts:
        source = cut.recording.sources[0]
        inside = replace(source, source=str(Path(source.source).relative_to(folder)))
        yield replace(cut, recording=replace(cut.recording, sources=[inside]))


def _cut(utterance: FarfieldUtterance, audio: dict, part: str, folder: Path) -> MonoCut:
    """Make the cut of a far-field utterance."""
    text = "" if utterance.split == UNLABELLED else text_of(utterance.source)
    recording = _recording(audio, part, folder)
    cut = make_cut(utterance.id, recording, text, speaker_of(utterance.source))
    cut.custom = audio["custom"] | ({} if utterance.time is None else {"time": utterance.time})
    return cut


def _array_cut(mono: MonoCut, audio: dict, folder: Path) -> MultiCut:
    """Make the cut of all channels; `custom["components"]` has the files of its components."""
    recording = _recording(audio, "array", folder)
    channels = list(range(audio["channels"]["array"]))
    parts = [part for part in ("speech", "echo") if part in audio["channels"]]
    components = {part: str(folder / file_name(mono.id, part)) for part in parts}
    return MultiCut(
        id=mono.id,
        start=0.0,
        duration=mono.duration,
        channel=channels,
        supervisions=[replace(mono.supervisions[0], channel=channels)],
        recording=recording,
        custom=mono.custom | {"components": components},
    )


def _recording(audio: dict, part: str, folder: Path) -> Recording:
    """Return the recording of an utterance in an audio file of its group."""
    path = str(folder / file_name(audio["id"], part))
    channels = list(range(audio["channels"][part]))
    source = AudioSource(type="file", channels=channels, source=path)
    seconds = audio["samples"] / SAMPLING_RATE
    return Recording(audio["id"], [source], SAMPLING_RATE, audio["samples"], seconds)


def _from(root: Path, cut: MonoCut | MultiCut) -> MonoCut | MultiCut:
    """Return a cut with paths of audio that start from `root`."""
    cut = cut.with_recording_path_prefix(str(root))
    parts = (cut.custom or {}).get("components")
    if parts:
        cut.custom = cut.custom | {"components": {k: str(root / v) for k, v in parts.items()}}
    return cut


def write_lake(
    cuts: Iterable[MonoCut],
    store: ObjectStore,
    url: str,
    interval_days: int = 30,
    buckets: int = 4,
    locale: str = "en-US",
) -> Lake:
    """Write lake.json and the metadata of cuts whose audio is already in the lake.

    Records have the cuts' ids and speakers, and the times in `custom["time"]`, but no text.

    Args:
      cuts: whole files; the paths of their audio are relative to `url`, or absolute.
      url: prefix of the lake.
      interval_days: days per object of metadata (C15).
      buckets: number of speaker buckets of the metadata (C15).

    Raises:
      LakeError: a cut has no time, or is only a part of a file.
    """
    groups: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for cut in cuts:
        record = _record(cut, locale)
        days = record.time // (interval_days * DAY) * interval_days * DAY
        interval = datetime.fromtimestamp(days, timezone.utc).strftime("%Y-%m-%d")
        groups[interval, bucket_of(record.speaker, buckets)].append(record)
    objects = []
    for (interval, bucket), records in sorted(groups.items()):
        records.sort(key=lambda record: (record.speaker, record.time, record.id))
        seconds = sum(record.duration for record in records)
        about = {"hours": seconds / 3600, "utterances": len(records)}
        lines = b"".join(record.to_line() for record in records)
        objects.append(store.put(metadata_path(url, interval, bucket), lines, about))
    lake = Lake(url, tuple(objects), buckets)
    lake.save(store)
    return lake


def _record(cut: MonoCut, locale: str) -> Record:
    """Return the metadata record of a cut for the data lake."""
    time = (cut.custom or {}).get("time")
    if time is None:
        raise LakeError(
            f"{cut.id}: the cut has no `time` in `custom`, but a data lake is ordered by time"
        )
    if cut.start or abs(cut.duration - cut.recording.duration) > 1e-6:
        raise LakeError(
            f"{cut.id}: the cut is only a part of a file, but a data lake needs cuts of whole files"
        )
    return Record(cut.id, speaker_of(cut), cut.duration, time, locale, audio_of(cut))


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
        finished_groups = map_in_processes(make_group, missing, jobs)
        for group, _ in zip(missing, finished_groups, strict=True):
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
            logger.warning(
                "the set %s has %.3g h of speech, less than the requested %.3g h",
                name,
                hours[name],
                target,
            )
    return hours


def manifests(root: Path) -> dict[str, list[MonoCut | MultiCut]]:
    """Read the cuts by set that `make_farfield` wrote to `root`, with absolute paths.

    Sets of microphone arrays, `DP1-array` and so on, hold `MultiCut`s: the microphones, then the
    playback channel; `toolkit.features.multichannel.beamforming` reads them.
    """
    root = Path(root).absolute()
    return read_sets(root / "cuts", root)


def _check_settings(out: Path, config: FarfieldConfig, utterances: list[FarfieldUtterance]) -> None:
    """Write config and sources to `out`, or check that the sets there were made from the same."""
    places = places_of(out)
    sources = [[u.split, u.id, u.array, _source_of(u, places)] for u in utterances]
    settings = {
        "config": to_plain(config),
        "utterances": digest_bytes(json.dumps(sources, sort_keys=True).encode()),
    }
    content = json.dumps(settings, indent=1) + "\n"
    path = out / "settings.json"
    if path.exists() and path.read_text(encoding="utf-8") != content:
        raise FarfieldError(
            f"{out} contains far-field sets of another corpus or with other settings: delete this "
            "folder or choose another one"
        )
    write_atomically(path, content)


def _source_of(utterance: FarfieldUtterance, places: PathAliases | None) -> dict[str, Any]:
    """Return a source cut as plain data, without the transcript if the speech is unlabelled."""
    cut = to_relative_paths(utterance.source.to_dict(), places)
    return {**cut, "supervisions": []} if utterance.split == UNLABELLED else cut


def _groups(utterances: list[FarfieldUtterance], config: FarfieldConfig, out: Path) -> list[Group]:
    """Divide the utterances of every set into groups."""
    splits: dict[str, list[FarfieldUtterance]] = {}
    for item in utterances:
        splits.setdefault(item.split, []).append(item)
    groups = []
    for split, items in splits.items():
        audio = out / ("lake/audio" if split == UNLABELLED else f"audio/{split}")
        for number, start in enumerate(range(0, len(items), GROUP_UTTERANCES)):
            group_utterances = tuple(items[start : start + GROUP_UTTERANCES])
            groups.append(Group(audio / f"{number:04d}", group_utterances, config))
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
        logger.warning(
            "left out %d utterances: %s. left_out.tsv lists all utterances that are left out",
            count,
            reason,
        )
    total = sum(len(group.utterances) for group in groups)
    if len(failed) > MAX_FAILED * total:
        raise FarfieldError(
            f"the audio of {len(failed)} of {total} utterances cannot be read. The first is "
            f"{': '.join(failed[0])}. All of them are listed in {out / 'left_out.tsv'}"
        )
