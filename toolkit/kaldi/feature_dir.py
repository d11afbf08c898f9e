"""Reads and checks Kaldi data directories with features (feats.scp) and without audio.

The cuts of such a directory name an archive in place of an audio file. Feature extraction then
copies the matrices. Manifests, checks and stages treat archives like audio files: a change of their
content is detected.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
from lhotse import MonoCut

from toolkit.corpus.check import FeatureFaults
from toolkit.corpus.manifest import FEATURE_MATRIX, ManifestError, audio_of, text_of
from toolkit.corpus.pairing import NOT_UTF8, AudioSegment, FeatureMatrix
from toolkit.corpus.wav_scp import TableLine, read_lines, read_pairs
from toolkit.kaldi.archive import (
    RANGE,
    ArchiveError,
    Entry,
    kaldi_native_io,
    read_matrix,
    read_shape,
    scp_entry,
)
from toolkit.kaldi.data_dir import pair_with_text
from toolkit.processes.workers import map_in_processes
from toolkit.storage.paths import PathMap
from toolkit.storage.reading import NATURAL, validated

HALF_MAX = 65504.0
"""Largest 16-bit float, the type of the values in feature stores."""
FRAME_SHIFT_MS = 10.0
"""Frame shift of the features for which the recipes are made."""
SHIFT_TOLERANCE = 0.05
"""Largest relative difference from `FRAME_SHIFT_MS`. The shift is computed as the duration divided
by the number of frames, and durations are up to 25 ms longer than the frames."""
MIN_FRAMES = 100
"""Smallest number of frames of an utterance from which the frame shift is computed."""
EDGE_SECONDS = 0.1
"""Largest difference between the times and the frames of an utterance, in addition to one percent
of its duration; windows at the edges and rounding cause it."""
_PLACE = {"offset": NATURAL, "range": str, "dimension": NATURAL}


@dataclass(frozen=True)
class KaldiFormat:
    """Format of features that Kaldi computed, for a store's manifest."""

    dimension: int
    """Values per frame."""
    kind: str = "kaldi"
    """Type of features."""
    frame_shift_ms: float = 10.0
    """Step in milliseconds."""
    sampling_rate: int = 16000
    """Sampling rate of the audio, in Hz."""

    def read(self, cut: MonoCut) -> np.ndarray:
        """Read the features of a cut; see `read_features`."""
        return read_features(cut)


def read_feature_dir(folder: Path, path_map: PathMap = ()) -> list[MonoCut]:
    """Read a data directory with feats.scp, text, and optionally utt2spk and others.

    - An archive in feats.scp is mapped by `path_map`; a relative path is looked up in the working
      directory, then in the folder and the folders above it. Commands are never run.
    - The frame shift must be 10 ms; another value, from frame_shift or utt2dur, is an error.
    - The check reports numbers of frames that contradict utt2num_frames, segments or utt2dur.
    - Speakers are read as by `toolkit.kaldi.data_dir.read_kaldi_dir`.
    - cmvn.scp is not read: means by speaker are computed from the features.

    Returns:
      Cuts whose recordings name archives; faults are recorded in them for the check to report.

    Raises:
      ManifestError: feats.scp or text is missing, or the frame shift is not 10 ms.
    """
    for name in ("feats.scp", "text"):
        if not (folder / name).is_file():
            raise ManifestError(f"{folder} has no features: there is no file {name!r}")
    features = [
        (line.id, _features(line, folder, path_map)) for line in read_lines(folder / "feats.scp")
    ]
    num_frames = {id: item.features.num_frames for id, item in features if item.features}
    _check_frame_shift(folder, num_frames)
    segments = {id: fields.split() for id, fields in _pairs(folder / "segments")}
    expected = _ExpectedFrames(folder, segments)
    features = [(id, expected.noted(id, item)) for id, item in features]
    # Utterances with a text and no features are faults.
    named = {id for id, _ in features}
    for line in read_lines(folder / "text"):
        if line.id not in named:
            fault = ("missing-features", f"{folder / 'feats.scp'} has no line for it")
            features.append((line.id, AudioSegment(line.id, fault=fault)))
            named.add(line.id)
    recordings = {id: fields[0] for id, fields in segments.items() if fields}
    return pair_with_text(folder, features, recordings)


def read_features(cut: MonoCut) -> np.ndarray:
    """Read the features [T, F] float32 of a cut from `read_feature_dir`.

    Raises:
      ArchiveError: the features cannot be read, or their shape has changed since the cut was made.
    """
    entry = feature_entry(cut)
    matrix = read_matrix(entry)
    size = round(cut.recording.duration * 1000 / FRAME_SHIFT_MS), feature_dimension(cut)
    if matrix.shape != size:
        raise ArchiveError(
            f"{cut.id}: {entry.path} now contains {matrix.shape} values for this id, not {size}: "
            "the file has changed. Prepare the data again"
        )
    return matrix


def feature_entry(cut: MonoCut) -> Entry:
    """Return the location of a cut's features.

    Raises:
      ArchiveError: the cut has no location of features.
    """
    try:
        place = validated((cut.custom or {}).get(FEATURE_MATRIX), _PLACE, FEATURE_MATRIX)
        if not RANGE.fullmatch(place["range"]):
            raise ValueError(f"{place['range']!r} is not a range")
    except ValueError as error:
        raise ArchiveError(f"{cut.id}: {error}: prepare the data again") from error
    return Entry(cut.id, Path(audio_of(cut)), place["offset"], place["range"])


def feature_dimension(cut: MonoCut) -> int:
    """Return the number of values per frame of a cut from `read_feature_dir`."""
    return cut.custom[FEATURE_MATRIX]["dimension"]


def _features(line: TableLine, folder: Path, path_map: PathMap) -> AudioSegment:
    """Locate the features of a feats.scp line, and read their shape."""
    if line.fault:
        return AudioSegment(line.id, fault=(NOT_UTF8, line.fault))
    try:
        where = str(folder / "feats.scp")
        entry = scp_entry(line.id, line.value, folder, where, path_map=path_map)
        rows, columns = read_shape(entry)
    except ArchiveError as error:
        return AudioSegment(line.id, fault=("unreadable-features", str(error)))
    if not rows or not columns:
        return AudioSegment(
            line.id, fault=("empty-features", f"{entry.path}: {rows} x {columns} values")
        )
    matrix = FeatureMatrix(rows, columns, entry.offset, entry.range)
    return AudioSegment(str(entry.path), features=matrix)


def _pairs(path: Path) -> list[tuple[str, str]]:
    """Read the lines of an optional file in a data directory."""
    return read_pairs(path) if path.is_file() else []


def _number(text: str) -> float | None:
    """Parse a finite number; None if the text is anything else."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _check_frame_shift(folder: Path, num_frames: Mapping[str, int]) -> None:
    """Check that the frame shift is 10 ms, from the file frame_shift or else from utt2dur.

    Raises:
      ManifestError: the frame shift is not 10 ms.
    """
    path, shift_ms = folder / "frame_shift", None
    if path.is_file():
        seconds = [_number(line.id) for line in read_lines(path)]
        shift_ms = 1000 * seconds[0] if seconds and seconds[0] is not None else math.nan
    elif (folder / "utt2dur").is_file():
        path = folder / "utt2dur"
        durations = {id: _number(text) for id, text in read_pairs(path)}
        shifts = [
            1000 * duration / num_frames[id]
            for id, duration in durations.items()
            if duration is not None and num_frames.get(id, 0) >= MIN_FRAMES
        ]
        shift_ms = median(shifts) if shifts else None
    if shift_ms is None:
        return
    if not abs(shift_ms - FRAME_SHIFT_MS) <= SHIFT_TOLERANCE * FRAME_SHIFT_MS:
        raise ManifestError(
            f"{path}: the features have a frame every {shift_ms:.4g} ms. HMMs and networks of the "
            f"recipes are made for {FRAME_SHIFT_MS:g} ms: compute the features with that shift"
        )


class _ExpectedFrames:
    """The numbers of frames of utterances according to other files of a data directory."""

    def __init__(self, folder: Path, segments: Mapping[str, list[str]]) -> None:
        self._num_frames = dict(_pairs(folder / "utt2num_frames"))
        self._durations = dict(_pairs(folder / "utt2dur"))
        self._segments = segments

    def noted(self, id: str, item: AudioSegment) -> AudioSegment:
        """Return an utterance's features, with a note if their frame count is unexpected."""
        if item.features is None:
            return item
        num_frames = item.features.num_frames
        expected = _number(self._num_frames.get(id, ""))
        if expected is not None and expected != num_frames:
            return _with_note(item, f"{expected:g} in utt2num_frames")
        durations = {
            "segments": self._segment_seconds(id),
            "utt2dur": _number(self._durations.get(id, "")),
        }
        for name, seconds in durations.items():
            if seconds is not None:
                difference = abs(num_frames * FRAME_SHIFT_MS / 1000 - seconds)
                if difference > EDGE_SECONDS + 0.01 * seconds:
                    return _with_note(item, f"{seconds:.2f} s in {name}")
        return item

    def _segment_seconds(self, id: str) -> float | None:
        """Return the duration of a segment; None if unknown."""
        times = [_number(field) for field in self._segments.get(id, [])[1:3]]
        if len(times) < 2 or times[0] is None or times[1] is None or times[1] < 0:
            return None  # an end of -1 is the end of the recording
        return times[1] - times[0]


def _with_note(item: AudioSegment, expected: str) -> AudioSegment:
    """Return features with a note on the frame count."""
    detail = f"{item.features.num_frames} frames in {item.path}, but {expected}"
    return replace(item, note=("other-frames", detail))


MATRICES_PER_TASK = 256


@dataclass(frozen=True)
class _Utterance:
    """An utterance with features to read."""

    key: tuple[str, str, int]
    """Split, utterance id and which cut of this id, as in `FeatureFaults`."""
    cut: MonoCut


def find_feature_faults(
    splits: Mapping[str, Sequence[MonoCut]],
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> FeatureFaults:
    """Read all features, and find unusable features and repeated utterances.

    Args:
      splits: cuts of `read_feature_dir` by split. Those with a fault are not read.
      jobs: number of processes; the result does not depend on it.
      progress: called with (utterances read, utterances).

    Returns:
      Faults of the kinds unreadable-features, other-dimension and same-audio-and-text of
      `toolkit.corpus.findings.FINDING_KINDS`.

    Raises:
      ArchiveError: kaldi_native_io is not installed.
    """
    kaldi_native_io()  # if it is missing, fail here and not for every utterance
    utterances = list(_readable(splits))
    dimensions = Counter(feature_dimension(item.cut) for item in utterances)
    usual = dimensions.most_common(1)[0][0] if dimensions else 0
    tasks = [
        [feature_entry(item.cut) for item in utterances[start : start + MATRICES_PER_TASK]]
        for start in range(0, len(utterances), MATRICES_PER_TASK)
    ]
    faults: dict[tuple[str, str, int], list[tuple[str, str]]] = {}
    first: dict[tuple[str, str], tuple[str, str, int]] = {}
    remaining = iter(utterances)
    done = 0
    for results in map_in_processes(_read_all, tasks, jobs):
        for digest, fault in results:
            item = next(remaining)
            dimension, path = feature_dimension(item.cut), audio_of(item.cut)
            if fault:
                faults[item.key] = [("unreadable-features", fault)]
            elif dimension != usual:
                detail = f"{path}: {dimension} values per frame; most utterances have {usual}"
                faults[item.key] = [("other-dimension", detail)]
            elif text := text_of(item.cut):
                original = first.setdefault((digest, text), item.key)
                if original[:2] != item.key[:2]:
                    detail = f"same features as utterance {original[1]} in {original[0]}"
                    faults[item.key] = [("same-audio-and-text", detail)]
        done += len(results)
        if progress is not None:
            progress(done, len(utterances))
    return faults


def _readable(splits: Mapping[str, Sequence[MonoCut]]) -> Iterator[_Utterance]:
    """Yield the utterances without a fault."""
    for split, cuts in splits.items():
        copies: Counter[str] = Counter()
        for cut in cuts:
            copies[cut.id] += 1
            if "fault" not in (cut.custom or {}):
                yield _Utterance((split, cut.id, copies[cut.id]), cut)


def _read_all(entries: list[Entry]) -> list[tuple[str, str]]:
    """Read the matrices of one task, in a worker process."""
    return [_read(entry) for entry in entries]


def _read(entry: Entry) -> tuple[str, str]:
    """Return a matrix's digest and its fault; one of the two is empty."""
    try:
        matrix = read_matrix(entry)
    except ArchiveError as error:
        return "", str(error)
    usable = np.isfinite(matrix) & (np.abs(matrix) <= HALF_MAX)
    if not usable.all():
        frames = np.flatnonzero(~usable.all(axis=1))
        return "", (
            f"{entry.path}: values that are not finite, or larger than {HALF_MAX:g}, "
            f"in {len(frames)} frames, first {frames[0]}"
        )
    return hashlib.blake2b(matrix.tobytes(), digest_size=16).hexdigest(), ""
