"""Writing the features and transcripts of a split as record files, for CTC (A6, A7)."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from toolkit.features.augment import original_id
from toolkit.features.shards import MANIFEST
from toolkit.features.store import FeatureStore
from toolkit.lang.units.units import Units, UnitsError
from toolkit.processes.workers import map_in_processes
from toolkit.storage.files import write_atomically
from toolkit.train.corpus import write_excluded
from toolkit.train.ctc.record_file import FORMAT, Record, RecordError, read_index, write_file
from toolkit.train.ctc.record_folder import FILES, RECORDS, record_path
from toolkit.train.errors import TrainingDataError

EXCLUDED = "excluded.tsv"


@dataclass(frozen=True)
class RecordConfig:
    """Selection of the utterances, and size of the record files."""

    per_file: int = 64
    """Utterances per file (A7: 64), the unit of parallel work and of resuming."""
    max_seconds: float = 16.7
    """Longer utterances are left out (A6: 16.7, which is 1,670 frames)."""
    window: int = 11
    """Receptive field of the model's outputs in frames (A12: 11). An utterance with fewer outputs
    than CTC needs for its labels is left out."""
    stride: int = 2
    """Frames from one output of the model to the next, the subsampling factor (A12: 2)."""
    max_excluded: float = 0.05
    """Largest share of utterances left out for another reason than their length; with more,
    writing fails."""

    def __post_init__(self) -> None:
        for name in ("per_file", "window", "stride"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be at least 1")
        if not self.max_seconds > 0:
            raise ValueError(f"max_seconds is {self.max_seconds}, needs to be above 0")
        if not 0 <= self.max_excluded <= 1:
            raise ValueError(f"max_excluded is {self.max_excluded}, needs to be from 0 to 1")


def write_records(
    features: Path,
    texts: Mapping[str, str],
    units: Units,
    config: RecordConfig,
    out: Path,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, float]:
    """Write the raw features of a split, with its transcripts as labels, into record files.

    `out` gains `files/`, `excluded.tsv` (utterance, reason: too long, no transcript, ...) and
    `records.json`, written last. When called again, files whose content would be the same are
    kept. The bytes do not depend on `jobs`.

    Args:
      features: a feature store.
      texts: transcripts by utterance; an augmented copy (see `toolkit.features.augment`) without
        one has its original's.
      units: output units of the labels.
      config: limits and file size.
      out: output folder.
      jobs: number of processes.
      progress: called after every file with the numbers of utterances done and in total.

    Returns:
      `utterances` and `hours` written, `kept_percent` (their share of all utterances, A6),
      `too_long` and `excluded` (numbers of those left out for their length and for other reasons),
      and `MB_per_hour` of the files.

    Raises:
      TrainingDataError: no utterance is left, or too many were left out.
    """
    store = FeatureStore(features)
    kept, too_long, faulty = _select(store, texts, units, config)
    write_excluded(out / EXCLUDED, too_long | faulty)
    _require(kept, faulty, len(store), config, out)
    names = list(kept)
    groups = [names[i : i + config.per_file] for i in range(0, len(names), config.per_file)]
    plans = [_plan(i, store, {n: kept[n] for n in own}) for i, own in enumerate(groups)]
    (out / RECORDS).unlink(missing_ok=True)
    pending = [plan for plan in plans if not plan.is_done(out)]
    for path in set((out / FILES).glob("*")) - {record_path(out, plan.number) for plan in plans}:
        path.unlink()
    done = len(names) - sum(len(plan.labels) for plan in pending)
    work = partial(_write, features=features, out=out)
    for plan, _ in zip(pending, map_in_processes(work, pending, jobs), strict=True):
        done += len(plan.labels)
        if progress is not None:
            progress(done, len(names))
    frames = sum(map(store.num_frames, names))
    manifest = {
        "format": FORMAT,
        "frontend": store.manifest["frontend"],
        "dimension": store.dimension,
        "symbols": units.symbols,
        "config": asdict(config),
        "files": len(plans),
        "utterances": len(names),
        "frames": frames,
        "kept": len(names) / len(store),
        "too_long": len(too_long),
        "excluded": len(faulty),
    }
    write_atomically(out / RECORDS, json.dumps(manifest, ensure_ascii=False, indent=1) + "\n")
    hours = frames * store.manifest["frontend"]["frame_shift_ms"] / 3.6e6
    size = sum(record_path(out, plan.number).stat().st_size for plan in plans)
    facts = {name: manifest[name] for name in ("utterances", "too_long", "excluded")}
    percent = 100 * manifest["kept"]
    return {"hours": hours, **facts, "kept_percent": percent, "MB_per_hour": size / 1e6 / hours}


def count_too_long(features: Path, config: RecordConfig) -> int:
    """Count the utterances of a feature store that are too long for records (A6)."""
    store = FeatureStore(features)
    return sum(_is_too_long(store, name, config) for name in store.ids)


def _is_too_long(store: FeatureStore, name: str, config: RecordConfig) -> bool:
    shift = store.manifest["frontend"]["frame_shift_ms"]
    return store.num_frames(name) * shift > 1000 * config.max_seconds


@dataclass(frozen=True)
class _Plan:
    number: int
    digest: str
    labels: dict[str, list[int]]

    def is_done(self, out: Path) -> bool:
        try:
            return read_index(record_path(out, self.number)).plan == self.digest
        except RecordError:
            return False


def _select(
    store: FeatureStore, texts: Mapping[str, str], units: Units, config: RecordConfig
) -> tuple[dict[str, list[int]], dict[str, str], dict[str, str]]:
    """Return the labels of usable utterances; the reasons for too long and for unusable ones."""
    kept: dict[str, list[int]] = {}
    too_long: dict[str, str] = {}
    faulty: dict[str, str] = {}
    shift = store.manifest["frontend"]["frame_shift_ms"]
    for name in store.ids:
        frames = store.num_frames(name)
        if _is_too_long(store, name, config):
            too_long[name] = f"{frames * shift / 1000:.2f} s, longer than {config.max_seconds:g} s"
            continue
        try:
            labels = units.encode(
                texts[name] if name in texts else texts.get(original_id(name), "")
            )
        except UnitsError as error:
            faulty[name] = str(error)
            continue
        # One frame per label, and one for the blank between equal labels.
        needed = len(labels) + sum(a == b for a, b in pairwise(labels))
        outputs = (frames - config.window) // config.stride + 1
        if not labels:
            faulty[name] = "no transcript"
        elif outputs < needed:
            faulty[name] = f"{frames} frames, too few for {len(labels)} labels"
        else:
            kept[name] = labels
    return kept, too_long, faulty


def _require(
    kept: Sequence, faulty: Mapping[str, str], total: int, config: RecordConfig, out: Path
) -> None:
    if kept and len(faulty) <= config.max_excluded * total:
        return
    example = next(iter(sorted(faulty.items())), None)
    reason = f", such as {example[0]} ({example[1]})" if example else ""
    raise TrainingDataError(
        f"{len(faulty)} of {total} utterances cannot be trained on{reason}, and {len(kept)} are "
        f"left; allowed are {100 * config.max_excluded:g} %. All are listed in {out / EXCLUDED}"
    )


def _plan(number: int, store: FeatureStore, labels: dict[str, list[int]]) -> _Plan:
    content = [[name, store.num_frames(name), ids] for name, ids in labels.items()]
    plain = json.dumps([FORMAT, store.manifest["frontend"], content], sort_keys=True)
    return _Plan(number, hashlib.sha256(plain.encode()).hexdigest(), labels)


def _write(plan: _Plan, features: Path, out: Path) -> None:
    """Write one record file."""
    store = _opened(features, (features / MANIFEST).stat().st_mtime_ns)
    write_file(record_path(out, plan.number), plan.digest, _records(store, plan.labels))


@lru_cache(maxsize=1)
def _opened(features: Path, written: int) -> FeatureStore:
    """Open a feature store, once per process and time of its writing."""
    return FeatureStore(features)


def _records(store: FeatureStore, labels: Mapping[str, list[int]]) -> Iterator[tuple[str, Record]]:
    for name, ids in labels.items():
        state, raw = store.state(name), store.load(name).half().numpy()
        yield name, Record(raw, np.array(ids, dtype=np.int32), state.frames, state.sum.numpy())
