"""The cuts of far-field sets, with paths relative to the folder of the sets."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from lhotse import MonoCut, MultiCut, Recording
from lhotse.audio import AudioSource

from local.farfield.audio import Group, file_name
from local.farfield.rooms import SAMPLING_RATE
from local.farfield.selection import UNLABELLED, FarfieldUtterance
from toolkit.corpus.manifest import make_cut, read_cuts, speaker_of, text_of, write_cuts
from toolkit.storage.files import write_atomically

Cuts = list[MonoCut | MultiCut]
CLEAN_SETS = {"train": "clean", "val": "val-clean"}
"""Sets that also keep the clean source of their utterances, and the sets that hold it."""
SETS = "sets.json"
"""The names of the sets in their order; written last."""


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
        for made in json.loads(group.done.read_text(encoding="utf-8"))["made"]:
            item = by_id[made["id"]]
            cut = _cut(item, made, "", folder, config.encoding)
            sets[item.split].append(cut)
            if item.split in CLEAN_SETS:
                sets[CLEAN_SETS[item.split]].append(item.source)
            if item.array:
                raw = _cut(item, made, "raw", folder, config.encoding)
                sets[f"{item.split}-raw"].append(raw)
                array = _array_cut(cut, made, folder, config.encoding)
                sets[f"{item.split}-array"].append(array)
    return sets


def write_sets(sets: dict[str, Cuts], folder: Path) -> None:
    """Write a jsonl per set, sorted by id."""
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
    """Make paths of audio relative to a subfolder of the sets' folder."""
    for cut in cuts:
        source = cut.recording.sources[0]
        inside = replace(source, source=str(Path(source.source).relative_to(folder)))
        yield replace(cut, recording=replace(cut.recording, sources=[inside]))


def _cut(
    utterance: FarfieldUtterance, made: dict, part: str, folder: Path, encoding: str
) -> MonoCut:
    text = "" if utterance.split == UNLABELLED else text_of(utterance.source)
    recording = _recording(made, part, folder, encoding)
    cut = make_cut(utterance.id, recording, text, speaker_of(utterance.source))
    cut.custom = made["custom"] | ({} if utterance.time is None else {"time": utterance.time})
    return cut


def _array_cut(mono: MonoCut, made: dict, folder: Path, encoding: str) -> MultiCut:
    """Make the cut of all channels; `custom["components"]` has the files of its components."""
    recording = _recording(made, "array", folder, encoding)
    channels = list(range(made["channels"]["array"]))
    parts = [part for part in ("speech", "echo") if part in made["channels"]]
    components = {part: str(folder / file_name(mono.id, part, encoding)) for part in parts}
    return MultiCut(
        id=mono.id,
        start=0.0,
        duration=mono.duration,
        channel=channels,
        supervisions=[replace(mono.supervisions[0], channel=channels)],
        recording=recording,
        custom=mono.custom | {"components": components},
    )


def _recording(made: dict, part: str, folder: Path, encoding: str) -> Recording:
    path = str(folder / file_name(made["id"], part, encoding))
    channels = list(range(made["channels"][part]))
    source = AudioSource(type="file", channels=channels, source=path)
    seconds = made["samples"] / SAMPLING_RATE
    return Recording(made["id"], [source], SAMPLING_RATE, made["samples"], seconds)


def _from(root: Path, cut: MonoCut | MultiCut) -> MonoCut | MultiCut:
    cut = cut.with_recording_path_prefix(str(root))
    parts = (cut.custom or {}).get("components")
    if parts:
        cut.custom = cut.custom | {"components": {k: str(root / v) for k, v in parts.items()}}
    return cut
