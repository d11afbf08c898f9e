"""Any clean corpus as far-field sets: rooms, noise, playback, device placements (C1, C32).

On disk, all paths relative, so that the folder can be moved:

    <root>/cuts/<set>.jsonl     lhotse cuts of train, clean, unlabelled, val, DP1..DP5 and
                                DP1-array..DP5-array
    <root>/audio/<set>/NNNN/    a hundred utterances each; of arrays also what the microphones hear
                                of the speech and of the echo alone
    <root>/lake/                the unlabelled audio and its metadata, see `toolkit.pipeline.lake`
    <root>/left_out.tsv         utterances of the source that could not be used, and why

`clean` has the ids of `train` and the source's audio. Unlabelled cuts have no text: transcripts of
unlabelled speech are nowhere in the folder. Far-field audio keeps the time of the clean one:
alignments carry over.
"""

import json
import shutil
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import soundfile
from lhotse import MonoCut, MultiCut, Recording
from lhotse.audio import AudioSource

from local.farfield_config import FarfieldConfig
from local.farfield_lake import write_lake
from local.farfield_mix import Heard, hear
from local.farfield_parts import Wanted, divide
from local.farfield_pools import Pool, make_pools
from local.farfield_rooms import SAMPLING_RATE, FarfieldError
from toolkit.corpus.manifest import make_cut, read_cuts, speaker_of, text_of, write_cuts
from toolkit.features.audio import AudioError, load_cut_audio
from toolkit.pipeline.objects import ObjectStore
from toolkit.stages.config import to_plain
from toolkit.stages.digest import digest_bytes
from toolkit.stages.files import write_atomically
from toolkit.stages.workers import map_in_processes

GROUP_UTTERANCES = 100
"""What is made, and kept after an interruption, as one."""
MAX_FAILED = 0.05
"""Share of the utterances whose audio may be unreadable."""
UNLABELLED = "unlabelled"


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
      parts: clean cuts by part or split, as the readers of `local` return them.
      config: amounts, rooms, placements.
      jobs: processes.
      progress: called with (groups done, groups), rooms and noise counting as groups.

    Returns:
      Hours by set.

    Raises:
      FarfieldError: the corpus cannot be divided so, or too much of its audio cannot be read.
    """
    from tqdm import tqdm

    division = divide(parts, config)
    _claim(out, config, division.wanted)
    groups = _groups(division.wanted, config, out)
    missing = [group for group in groups if not (group.folder / "done.json").exists()]
    rooms = out / ".pools"
    pools = make_pools(config, division.talk, rooms, jobs, progress) if missing else {}
    missing = [replace(group, pool=pools[group.wanted[0].pool]) for group in missing]
    done = len(groups) - len(missing)
    with tqdm(total=len(groups), initial=done, unit="group", desc="far field", disable=None) as bar:
        for count, _ in enumerate(map_in_processes(_make_group, missing, jobs), done + 1):
            bar.update()
            if progress is not None:
                progress(count, len(groups))
    hours = _write_cuts(groups, division.left_out, out)
    shutil.rmtree(rooms, ignore_errors=True)
    return hours


def manifests(root: Path) -> dict[str, list[MonoCut]]:
    """Read the cuts by set that `make_farfield` left in `root`, with the paths of today.

    Sets of microphone arrays, `DP1-array` and so on, hold `MultiCut`s: the microphones, then the
    playback channel; `toolkit.features.array` reads them.
    """
    root = Path(root).absolute()
    sets = {}
    for name in json.loads((root / "cuts" / "sets.json").read_text(encoding="utf-8")):
        sets[name] = [_absolute(cut, root) for cut in read_cuts(root / "cuts" / f"{name}.jsonl")]
    return sets


@dataclass(frozen=True)
class _Group:
    """Utterances of one set that are made one after the other."""

    number: int
    split: str
    folder: Path
    out: Path
    config: FarfieldConfig
    wanted: tuple[Wanted, ...]
    pool: Pool | None = None


def _claim(out: Path, config: FarfieldConfig, wanted: list[Wanted]) -> None:
    """Note what `out` is made of, or see that what is there is made of the same."""
    sources = [[w.split, w.id, w.array, w.source.to_dict()] for w in wanted]
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


def _groups(wanted: list[Wanted], config: FarfieldConfig, out: Path) -> list[_Group]:
    splits: dict[str, list[Wanted]] = {}
    for item in wanted:
        splits.setdefault(item.split, []).append(item)
    groups = []
    for split, items in splits.items():
        audio = out / ("lake/audio" if split == UNLABELLED else f"audio/{split}")
        for number, start in enumerate(range(0, len(items), GROUP_UTTERANCES)):
            own = tuple(items[start : start + GROUP_UTTERANCES])
            groups.append(_Group(number, split, audio / f"{number:04d}", out, config, own))
    return groups


def _make_group(group: _Group) -> None:
    """Write the audio of a group, and what its cuts will say as `done.json`."""
    partial = group.folder.with_name(f".{group.folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    made, failed = [], []
    for wanted in group.wanted:
        try:
            made.append(_make(wanted, group, partial))
        except AudioError as error:
            failed.append([wanted.id, " ".join(str(error).split())])
        except Exception as error:
            raise FarfieldError(f"{wanted.id}: {error!r} when put into a room") from error
    (partial / "done.json").write_text(json.dumps({"made": made, "failed": failed}, indent=1))
    shutil.rmtree(group.folder, ignore_errors=True)
    partial.rename(group.folder)


def _make(wanted: Wanted, group: _Group, folder: Path) -> dict:
    """Write the audio of one utterance; give what is known of it."""
    dry = load_cut_audio(wanted.source, SAMPLING_RATE).numpy()
    heard, about = _hear(wanted, dry, group.config, group.pool)
    _write(folder / wanted.id, heard.microphones[:1], group.config.encoding)
    if wanted.array:
        channels = np.concatenate([heard.microphones, heard.playback[None]])
        _write(folder / f"{wanted.id}.array", channels, group.config.encoding)
        _write(folder / f"{wanted.id}.speech", heard.speech, group.config.encoding)
        if heard.echo is not None:
            _write(folder / f"{wanted.id}.echo", heard.echo, group.config.encoding)
        about = about | {"microphones": len(heard.microphones), "echo": heard.echo is not None}
    return {"id": wanted.id, "samples": len(dry), "about": about}


def _hear(
    wanted: Wanted, dry: np.ndarray, config: FarfieldConfig, pool: Pool
) -> tuple[Heard, dict]:
    """Draw a room, noise, playback and levels by the utterance's id, and mix."""
    rng = np.random.default_rng([config.seed, zlib.crc32(wanted.id.encode())])
    names = list(config.placements)
    name = wanted.placement or names[int(rng.integers(len(names)))]
    placement = config.placements[name]
    room = pool.room(name, int(rng.integers(pool.rooms)))
    talker = int(rng.integers(len(room.talkers)))
    microphones = slice(None if wanted.array else 1)
    tail = room.noise.shape[1]
    noise = _excerpt(pool.noise, len(dry) + tail, rng)
    playback = _excerpt(pool.playback, len(dry), rng)
    plays = bool(rng.random() < placement.playback_share)
    snr, echo = rng.uniform(*placement.snr_db), rng.uniform(*placement.echo_db)
    heard = hear(
        dry,
        room.talkers[talker, microphones],
        noise,
        room.noise[microphones],
        playback if plays else None,
        room.echo[microphones],
        snr_db=snr,
        echo_db=echo,
        level_db=rng.uniform(*config.level_dbfs),
        rng=rng,
    )
    about = {"placement": name, "t60": room.t60, "snr_db": round(snr, 2)}
    return heard, about | ({"echo_db": round(echo, 2)} if plays else {})


def _excerpt(sounds: np.ndarray, length: int, rng: np.random.Generator) -> np.ndarray:
    """Take part of a sound, which begins again where it is too short."""
    row = sounds[int(rng.integers(len(sounds)))]
    start = int(rng.integers(len(row)))
    return np.take(row, np.arange(start, start + length), mode="wrap")


def _write(path: Path, channels: np.ndarray, encoding: str) -> None:
    """Write float32[M, S] as 16 bit."""
    samples = np.clip(np.rint(channels.T * 32768), -32768, 32767).astype(np.int16)
    name = path.with_name(f"{path.name}.{encoding.lower()}")
    soundfile.write(name, samples, SAMPLING_RATE, format=encoding, subtype="PCM_16")


def _write_cuts(
    groups: list[_Group], left_out: list[tuple[str, str]], out: Path
) -> dict[str, float]:
    """Write the cuts of all sets and the lake's metadata; give hours by set."""
    config = groups[0].config
    sets: dict[str, list[MonoCut | MultiCut]] = {
        "train": [],
        "clean": [],
        UNLABELLED: [],
        "val": [],
    }
    sets |= {name: [] for name in config.placements}
    sets |= {f"{name}-array": [] for name in config.placements} if config.array_hours else {}
    failed: list[tuple[str, str]] = []
    for group in groups:
        done = json.loads((group.folder / "done.json").read_text(encoding="utf-8"))
        failed += map(tuple, done["failed"])
        wanted = {item.id: item for item in group.wanted}
        folder = str(group.folder.relative_to(out))
        for made in done["made"]:
            item = wanted[made["id"]]
            sets[group.split].append(_cut(item, made, folder, config))
            if group.split == "train":
                sets["clean"].append(item.source)
            if item.array:
                sets[f"{group.split}-array"].append(_array_cut(item, made, folder, config))
    total = sum(len(group.wanted) for group in groups)
    lines = [f"{id}\t{reason}\n" for id, reason in sorted({*left_out, *failed})]
    write_atomically(out / "left_out.tsv", "".join(lines))
    if len(failed) > MAX_FAILED * total:
        raise FarfieldError(
            f"the audio of {len(failed)} of {total} utterances cannot be read; first:"
            f" {': '.join(failed[0])}; all: {out / 'left_out.tsv'}"
        )
    for name, cuts in sets.items():
        cuts.sort(key=lambda cut: cut.id)
        write_cuts(cuts, out / "cuts" / f"{name}.jsonl")
    lake = [cut.with_recording_path_prefix("") for cut in sets[UNLABELLED]]
    write_lake(map(_in_lake, lake), ObjectStore(), str(out / "lake"))
    write_atomically(out / "cuts" / "sets.json", json.dumps(list(sets)) + "\n")
    return {name: sum(cut.duration for cut in cuts) / 3600 for name, cuts in sets.items()}


def _in_lake(cut: MonoCut) -> MonoCut:
    """Let the audio's path start from the lake."""
    source = cut.recording.sources[0]
    inside = replace(source, source=str(Path(source.source).relative_to("lake")))
    return replace(cut, recording=replace(cut.recording, sources=[inside]))


def _cut(wanted: Wanted, made: dict, folder: str, config: FarfieldConfig) -> MonoCut:
    path = f"{folder}/{wanted.id}.{config.encoding.lower()}"
    text = "" if wanted.split == UNLABELLED else text_of(wanted.source)
    recording = _recording(wanted.id, path, 1, made["samples"])
    cut = make_cut(wanted.id, recording, text, speaker_of(wanted.source))
    keys = ("placement", "t60", "snr_db", "echo_db")
    custom = {key: made["about"][key] for key in keys if key in made["about"]}
    cut.custom = custom | ({} if wanted.time is None else {"time": wanted.time})
    return cut


def _array_cut(wanted: Wanted, made: dict, folder: str, config: FarfieldConfig) -> MultiCut:
    """Name the microphones' file; its custom fields say what it holds and where its parts are."""
    mono, suffix = _cut(wanted, made, folder, config), config.encoding.lower()
    channels = made["about"]["microphones"] + 1
    recording = _recording(
        wanted.id, f"{folder}/{wanted.id}.array.{suffix}", channels, made["samples"]
    )
    supervision = replace(mono.supervisions[0], channel=list(range(channels)))
    parts = ["speech", "echo"] if made["about"]["echo"] else ["speech"]
    components = {part: f"{folder}/{wanted.id}.{part}.{suffix}" for part in parts}
    return MultiCut(
        id=wanted.id,
        start=0.0,
        duration=mono.duration,
        channel=list(range(channels)),
        supervisions=[supervision],
        recording=recording,
        custom=mono.custom | {"components": components},
    )


def _recording(id: str, path: str, channels: int, samples: int) -> Recording:
    source = AudioSource(type="file", channels=list(range(channels)), source=path)
    return Recording(id, [source], SAMPLING_RATE, samples, samples / SAMPLING_RATE)


def _absolute(cut: MonoCut | MultiCut, root: Path) -> MonoCut | MultiCut:
    cut = cut.with_recording_path_prefix(str(root))
    parts = (cut.custom or {}).get("components")
    if parts:
        cut.custom = cut.custom | {"components": {k: str(root / v) for k, v in parts.items()}}
    return cut
