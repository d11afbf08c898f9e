"""Extracts a split's features into shards of whole speakers in time order (C17); can be resumed."""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from toolkit.corpus.manifest import audio_of, speaker_of, to_relative_paths, write_cuts
from toolkit.errors import ToolkitError
from toolkit.features.audio import AudioError
from toolkit.features.config import ExtractConfig, FrontendConfig
from toolkit.features.cut_audio import AddNoise, Reverberate, load_cut_audio
from toolkit.features.frontend import (
    Frontend,
    FrontendError,
    TooShortError,
    engine_version,
    feature_backend,
)
from toolkit.features.shards import (
    FAILED_CUTS,
    MANIFEST,
    SHARDS,
    FeatureFormat,
    cuts_path,
    features_path,
    plan_shards,
    total_seconds,
    write_manifest,
    write_shard,
)
from toolkit.processes.devices import one_thread
from toolkit.processes.workers import map_in_processes, map_in_threads
from toolkit.storage.files import link_or_copy, write_atomically
from toolkit.storage.paths import PathAliases, places_of
from toolkit.storage.reading import NATURAL, read_json

if TYPE_CHECKING:
    from lhotse.cut import MonoCut
    from torch import Tensor

logger = logging.getLogger(__name__)

KALDI = "Kaldi"
"""Engine of imported features in markers and manifests."""
MARKERS = "done"
FAILED = "failed.tsv"
MARKER_FIELDS = {
    "plan": str,
    "engine": str,
    "bytes": [NATURAL],
    "utterances": NATURAL,
    "frames": NATURAL,
    "failed": [[str]],
    "short": NATURAL,
}
"""Contents of a shard's marker; see `_write_shard`."""


class ExtractError(ToolkitError):
    """Raised when a split's features cannot be extracted."""


class ImportedFormat(FeatureFormat, Protocol):
    """Format of features computed by another program, with their reader."""

    def read(self, cut: "MonoCut") -> np.ndarray:
        """Read the features [T, F] float32 of a cut.

        Raises:
          ToolkitError: the features cannot be read.
        """


def extract(
    cuts: "Iterable[MonoCut]",
    config: ExtractConfig,
    out: Path,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
    audio: Mapping[str, str] | None = None,
    previous: Path | None = None,
    device: str = "cpu",
    imported: ImportedFormat | None = None,
) -> dict[str, float]:
    """Extract raw features into shards that `FeatureStore` and lhotse can read.

    `out` gains `shards/` (lhotse's Shar layout), `features.json` (what the shards hold and what
    computed it; written last), `failed.tsv` (utterance, reason), `failed.jsonl` (the same cuts,
    whose words count as deletions in decoding) and `done/` (one marker per shard).
    A repeated call keeps every shard whose cuts, digests in `audio` and configuration are
    unchanged, whichever engine computed the shard. The bytes of shards do not depend on `jobs`.

    Args:
      cuts: with unique ids and one supervision each, in any order.
      config: front end, shard size and limit on failures.
      out: folder to write.
      jobs: number of processes; for a GPU, number of threads that read audio ahead of it.
      progress: called after every shard with the number of utterances done and their total.
      audio: digests of audio files by path; a shard with a changed digest is extracted again.
      previous: a folder that an earlier run wrote as its `out`. Its unchanged shards of the same
        engine are linked into `out`; requires `audio`.
      device: where to compute; results on different devices differ by rounding.
      imported: describes and reads the features that the cuts have instead of audio (such as
        `toolkit.kaldi.feature_dir.KaldiFormat`). They are copied as they are; `config.frontend` is
        not used. None: the front end computes features from audio.

    Returns:
      `hours` of audio extracted, `utterances`, `failed`, and, if any shard was computed, `xRT`
      (seconds of audio per second, all processes together).

    Raises:
      ExtractError: there are no cuts, ids are not unique, too many cuts failed, or all did.
    """
    from toolkit.processes.bars import Bar

    out = Path(out)
    if imported is None:
        # Created here too, so that a missing engine is reported at once and not by a worker.
        log_engine(Frontend(config.frontend).engine)
    features: FrontendConfig | ImportedFormat = imported or config.frontend
    engine = engine_version(feature_backend()) if imported is None else KALDI
    # 1. Plan the shards, each with a digest of its cuts, audio and settings.
    shards = pack_shards(cuts, config.hours_per_shard)
    digest = partial(_digest, form=features, places=places_of(out), audio=audio or {})
    plans = [_Plan(i, digest(shard), shard) for i, shard in enumerate(shards)]
    total = sum(len(plan.cuts) for plan in plans)
    # 2. Keep the shards whose marker has that digest, and remove all others.
    if previous is not None:
        _link_previous(previous, out, plans, engine)
    markers = {plan.index: _finished(out, plan) for plan in plans}
    pending = [plan for plan in plans if markers[plan.index] is None]
    (out / MANIFEST).unlink(missing_ok=True)
    remove_strays(out, {plan.index for plan in plans} - {plan.index for plan in pending})
    done = total - sum(len(plan.cuts) for plan in pending)
    # 3. Compute the missing shards: each in a process, or one after the other on a GPU.
    start = time.perf_counter()
    extract_shard = partial(_extract_shard, form=features, out=out)
    with Bar(total=total, initial=done, unit="utt", desc=f"features {out.name}") as bar:
        if device == "cpu" or imported is not None:
            new_markers = map_in_processes(extract_shard, pending, jobs)
        else:
            new_markers = _extract_on_device(pending, config.frontend, out, device, jobs)
        for plan, marker in zip(pending, new_markers, strict=True):
            markers[plan.index] = marker
            done += len(plan.cuts)
            bar.update(len(plan.cuts))
            if progress is not None:
                progress(done, total)
    elapsed = time.perf_counter() - start
    # 4. List the utterances that failed.
    failed = [line for i in sorted(markers) for line in markers[i]["failed"]]
    write_atomically(out / FAILED, "".join(f"{name}\t{reason}\n" for name, reason in failed))
    lost = {name for name, _ in failed}
    failed_cuts = [cut for plan in plans for cut in plan.cuts if cut.id in lost]
    write_cuts(failed_cuts, out / FAILED_CUTS)
    # Utterances that are too short do not count as failures.
    counted = len(failed) - sum(marker["short"] for marker in markers.values())
    if counted > config.max_failed_share * total or len(failed) == total:
        num_short = len(failed) - counted
        short = f", {num_short} of them shorter than a window" if num_short else ""
        raise ExtractError(
            f"{len(failed)} of {total} utterances have no features{short}. The share of utterances "
            "without features, not counting those shorter than a window, may be at most "
            f"`max_failed_share` = {config.max_failed_share:g}, and at least one utterance must "
            f"have features. The first utterance without features is {': '.join(failed[0])}. "
            f"All are listed in {out / FAILED}"
        )
    if failed:
        logger.warning(
            "%s: %d of %d utterances have no features, such as %s (%s). Training leaves them out, "
            "and scoring counts their words as deletions. All are listed in %s",
            out.name,
            len(failed),
            total,
            *failed[0],
            out / FAILED,
        )
    # 5. The manifest comes last: it marks the features as finished.
    done_shards = [markers[i] for i in sorted(markers)]
    # There are several engines if a run was resumed in another environment.
    engines = sorted({marker["engine"] for marker in done_shards})
    write_manifest(out, features, done_shards, len(failed), ", ".join(engines))
    num_seconds = sum(cut.duration for plan in plans for cut in plan.cuts if cut.id not in lost)
    headline = {
        "hours": num_seconds / 3600,
        "utterances": total - len(failed),
        "failed": len(failed),
    }
    if pending:
        headline["xRT"] = sum(cut.duration for plan in pending for cut in plan.cuts) / elapsed
    return headline


@cache
def log_engine(engine: str) -> None:
    """Log which engine computes the features, once per process."""
    logger.info("features are computed by %s", engine_version(engine))


def pack_shards(cuts: "Iterable[MonoCut]", hours: float) -> "list[list[MonoCut]]":
    """Distribute whole speakers over shards of similar duration; the order of `cuts` is irrelevant.

    Speakers are taken by falling duration, each into the shard with the least audio so far. Within
    a shard speakers are sorted by name, and a speaker's cuts by `custom["time"]` if all of them
    have one (C17: creation time), else by id.
    """
    speakers: dict[str, list[MonoCut]] = {}
    ids = set()
    for cut in cuts:
        if cut.id in ids:
            raise ExtractError(
                f"{cut.id}: two cuts have this id. Exclude one of them (the data check lists "
                "repeated ids)"
            )
        ids.add(cut.id)
        speakers.setdefault(speaker_of(cut), []).append(cut)
    if not speakers:
        raise ExtractError("there are no cuts to extract features from")
    durations = {
        s: total_seconds(cut.duration for cut in speaker_cuts)
        for s, speaker_cuts in speakers.items()
    }
    return [
        [cut for speaker in shard for cut in _in_time_order(speakers[speaker])]
        for shard in plan_shards(durations, hours)
    ]


def _in_time_order(cuts: "list[MonoCut]") -> "list[MonoCut]":
    """Sort a speaker's cuts by time; see `pack_shards`."""
    if all((cut.custom or {}).get("time") is not None for cut in cuts):
        return sorted(cuts, key=lambda cut: (cut.custom["time"], cut.id))
    return sorted(cuts, key=lambda cut: cut.id)


@dataclass(frozen=True)
class _Plan:
    """Cuts and digest of a shard to extract."""

    index: int
    digest: str
    """Digest of everything that determines the shard's content, see `_digest`."""
    cuts: "list[MonoCut]"


def _digest(
    cuts: "list[MonoCut]",
    form: FeatureFormat,
    places: PathAliases | None,
    audio: Mapping[str, str],
) -> str:
    """Return the digest of a shard's format, cuts and audio files."""
    # Paths relative to `places`, so that a moved run directory keeps its shards.
    content = [asdict(form), [to_relative_paths(cut.to_dict(), places) for cut in cuts]]
    if audio:
        content.append([audio.get(audio_of(cut), "") for cut in cuts])
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _marker_path(out: Path, index: int) -> Path:
    """Return the path of a shard's marker."""
    return out / MARKERS / f"{index:06d}.json"


def _finished(out: Path, plan: _Plan) -> dict | None:
    """Read a shard's marker; None unless the shard is complete and matches the plan."""
    try:
        marker = read_json(_marker_path(out, plan.index), MARKER_FIELDS)
        tar_size = features_path(out / SHARDS, plan.index).stat().st_size
        cuts_size = cuts_path(out / SHARDS, plan.index).stat().st_size
    except (OSError, ValueError, RecursionError):
        return None
    same = marker["plan"] == plan.digest and marker["bytes"] == [cuts_size, tar_size]
    return marker if same else None


def _link_previous(previous: Path, out: Path, plans: list[_Plan], engine: str) -> None:
    """Link finished shards from another folder if plan and engine match.

    Shards with added noise or reverberation are not linked, since the plan has no digests of the
    noise and room files.
    """
    for plan in plans:
        marker = None if _finished(out, plan) else _finished(previous, plan)
        degraded = any(map(_is_degraded, plan.cuts))
        if marker is not None and marker["engine"] == engine and not degraded:
            names = [cuts_path, features_path]
            pairs = [(f(previous / SHARDS, plan.index), f(out / SHARDS, plan.index)) for f in names]
            pairs.append((_marker_path(previous, plan.index), _marker_path(out, plan.index)))
            for old, new in pairs:  # the marker last: it makes the shard valid
                new.parent.mkdir(parents=True, exist_ok=True)
                new.unlink(missing_ok=True)
                link_or_copy(old, new)


def _is_degraded(cut: "MonoCut") -> bool:
    """Whether noise or reverberation was added to the cut."""
    transforms = cut.recording.transforms or []
    return any(isinstance(transform, AddNoise | Reverberate) for transform in transforms)


def remove_strays(out: Path, shards_to_keep: set[int]) -> None:
    """Remove files of shards outside the plan, since lhotse would read them too.

    Such files are left by an earlier plan or a killed process.

    Args:
      out: the folder of features.
      shards_to_keep: numbers of the shards to keep.
    """
    expected = {cuts_path(out / SHARDS, i) for i in shards_to_keep}
    expected |= {features_path(out / SHARDS, i) for i in shards_to_keep}
    expected |= {_marker_path(out, i) for i in shards_to_keep}
    for folder in (out / SHARDS, out / MARKERS):
        for path in folder.iterdir() if folder.is_dir() else ():
            if path not in expected:
                path.unlink()


def _extract_shard(plan: _Plan, form: FrontendConfig | ImportedFormat, out: Path) -> dict:
    """Compute and write one shard."""
    if isinstance(form, FrontendConfig):
        compute = Frontend(form)
        features = (_features(cut, compute) for cut in plan.cuts)
        engine = engine_version(feature_backend())
    else:
        features, engine = (_imported(cut, form) for cut in plan.cuts), KALDI
    with one_thread():
        return _write_shard(plan, features, form, out, engine)


def _imported(cut: "MonoCut", form: ImportedFormat) -> "Tensor | Exception":
    """Read a cut's features, or return the reason why they cannot be read."""
    try:
        return torch.from_numpy(form.read(cut))
    except ToolkitError as error:
        return AudioError(str(error))


def _extract_on_device(
    plans: list[_Plan], frontend: FrontendConfig, out: Path, device: str, jobs: int
) -> Iterator[dict]:
    """Write shards one by one while the device computes the next batches."""
    cuts = chain.from_iterable(plan.cuts for plan in plans)
    computed = features_on_device(cuts, Frontend(frontend, device=device), jobs)
    for plan in plans:
        with one_thread():
            features = islice(computed, len(plan.cuts))
            engine = engine_version(feature_backend())
            marker = _write_shard(plan, features, frontend, out, engine)
        yield marker


def _write_shard(
    plan: _Plan,
    computed: "Iterator[Tensor | Exception]",
    form: FeatureFormat,
    out: Path,
    engine: str,
) -> dict:
    """Write the features of a shard's cuts, then its marker."""
    failed: list[tuple[str, AudioError | FrontendError]] = []
    utterances, frames = write_shard(
        out / SHARDS, plan.index, _usable(plan.cuts, computed, failed), form
    )
    paths = [cuts_path(out / SHARDS, plan.index), features_path(out / SHARDS, plan.index)]
    marker = {
        "plan": plan.digest,
        "engine": engine,
        "bytes": [path.stat().st_size for path in paths],
        "utterances": utterances,
        "frames": frames,
        "failed": [(name, " ".join(str(error).split())) for name, error in failed],
        "short": sum(isinstance(error, TooShortError) for _, error in failed),
    }
    write_atomically(_marker_path(out, plan.index), json.dumps(marker, indent=1) + "\n")
    return marker


def _features(cut: "MonoCut", compute: Frontend) -> "Tensor | Exception":
    """Compute a cut's features, or return the exception."""
    try:
        return compute(load_cut_audio(cut, compute.config.sampling_rate))
    except Exception as error:
        return error


def _usable(
    cuts: "list[MonoCut]",
    computed: "Iterator[Tensor | Exception]",
    failed: list[tuple[str, AudioError | FrontendError]],
) -> Iterator[tuple]:
    """Yield (cut, speaker, features) of usable cuts; add the other cuts to `failed`."""
    # Faults of the audio are expected and listed; any other exception is a bug, and ends the run.
    for cut, features in zip(cuts, computed, strict=True):
        if isinstance(features, AudioError | FrontendError):
            failed.append((cut.id, features))
        elif isinstance(features, Exception):
            raise ExtractError(f"{cut.id}: {features!r} during feature extraction") from features
        else:
            yield cut, speaker_of(cut), features


BATCH = 32
"""Largest number of utterances per batch."""
BATCH_SECONDS = 320.0
"""Seconds of audio at which a batch is closed: some 200 MB of the device's memory."""
BATCHES_AHEAD = 2
"""Number of batches that the device computes ahead."""


def features_on_device(
    cuts: "Iterable[MonoCut]", frontend: Frontend, jobs: int
) -> Iterator[Tensor | Exception]:
    """Yield the features of cuts in order, computed in batches on a device.

    Args:
      cuts: any number; they are read as needed.
      frontend: the front end, on the device to compute on.
      jobs: threads that read audio.

    Yields:
      For each cut [T, F] float32 on the CPU, or the exception that its audio or front end raised.
    """
    rate = frontend.config.sampling_rate

    def load(cut: "MonoCut") -> Tensor | Exception:
        try:
            return load_cut_audio(cut, rate)
        except Exception as error:
            return error

    def compute(batch: list[Tensor | Exception]) -> list[Tensor | Exception]:
        # Exceptions of `load` stay at their positions among the features.
        computed = iter(frontend.batch([x for x in batch if isinstance(x, Tensor)]))
        return [next(computed) if isinstance(x, Tensor) else x for x in batch]

    # Threads read audio ahead, enough for the next two batches; one thread feeds the device.
    loaded = map_in_threads(load, cuts, jobs, jobs + 2 * BATCH)
    batches = _batches(loaded, BATCH_SECONDS * rate)
    return chain.from_iterable(map_in_threads(compute, batches, 1, BATCHES_AHEAD))


def _batches(
    loaded: Iterator[Tensor | Exception], most: float
) -> Iterator[list[Tensor | Exception]]:
    """Yield batches, closed at `BATCH` utterances or `most` samples, whichever comes first."""
    batch: list[Tensor | Exception] = []
    samples = 0
    for samples_or_error in loaded:
        batch.append(samples_or_error)
        samples += len(samples_or_error) if isinstance(samples_or_error, Tensor) else 0
        if len(batch) == BATCH or samples >= most:
            yield batch
            batch, samples = [], 0
    if batch:
        yield batch
