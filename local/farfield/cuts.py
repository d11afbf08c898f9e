"""The cuts of far-field sets, with paths that start from the sets' folder."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from lhotse import MonoCut, MultiCut, Recording
from lhotse.audio import AudioSource

from local.farfield.audio import Group, file_name
from local.farfield.parts import UNLABELLED, Wanted
from local.farfield.rooms import SAMPLING_RATE
from toolkit.corpus.manifest import make_cut, read_cuts, speaker_of, text_of, write_cuts
from toolkit.storage.files import write_atomically

Cuts = list[MonoCut | MultiCut]
TWINS = {"train": "clean", "val": "val-clean"}
"""The sets whose utterances are kept as they were in the source too, and where."""
SETS = "sets.json"
"""The names of the sets in their order; written last."""


def cuts_of(groups: Sequence[Group], out: Path) -> dict[str, Cuts]:
    """Give the cuts by set of finished groups; of train and val the clean twins too."""
    config = groups[0].config
    names = ["train", TWINS["train"], UNLABELLED, "val", TWINS["val"], *config.placements]
    names += [f"{name}-array" for name in config.placements] if config.array_hours else []
    sets: dict[str, Cuts] = {name: [] for name in names}
    for group in groups:
        wanted = {item.id: item for item in group.wanted}
        folder = group.folder.relative_to(out)
        for made in json.loads(group.done.read_text(encoding="utf-8"))["made"]:
            item = wanted[made["id"]]
            cut = _cut(item, made, folder, config.encoding)
            sets[item.split].append(cut)
            if item.split in TWINS:
                sets[TWINS[item.split]].append(item.source)
            if item.array:
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


def below(cuts: Iterable[MonoCut], folder: str) -> Iterable[MonoCut]:
    """Let paths of audio start from a subfolder of the sets' folder."""
    for cut in cuts:
        source = cut.recording.sources[0]
        inside = replace(source, source=str(Path(source.source).relative_to(folder)))
        yield replace(cut, recording=replace(cut.recording, sources=[inside]))


def _cut(wanted: Wanted, made: dict, folder: Path, encoding: str) -> MonoCut:
    text = "" if wanted.split == UNLABELLED else text_of(wanted.source)
    recording = _recording(made, "", folder, encoding)
    cut = make_cut(wanted.id, recording, text, speaker_of(wanted.source))
    cut.custom = made["custom"] | ({} if wanted.time is None else {"time": wanted.time})
    return cut


def _array_cut(mono: MonoCut, made: dict, folder: Path, encoding: str) -> MultiCut:
    """Give the cut of all channels; its custom fields say where the parts of the sound are."""
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
