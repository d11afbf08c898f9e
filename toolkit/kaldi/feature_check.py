"""Finds what is wrong with the features of a corpus that has features instead of audio."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from lhotse import MonoCut

from toolkit.corpus.check.utterances import FeatureFaults
from toolkit.corpus.manifest import audio_of, text_of
from toolkit.kaldi.feature_dir import HALF_MAX, feature_dimension, feature_entry
from toolkit.kaldi.tables import Entry, KaldiIoError, native, read_matrix
from toolkit.processes.workers import map_in_processes

MATRICES_PER_TASK = 256


@dataclass(frozen=True)
class _Utterance:
    key: tuple[str, str, int]
    """Split, utterance id and copy of the id, as in `FeatureFaults`."""
    cut: MonoCut


def find_feature_faults(
    splits: Mapping[str, Sequence[MonoCut]],
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> FeatureFaults:
    """Read all features and find those that cannot be used, and repeated utterances.

    Args:
      splits: cuts of `read_feature_dir` by split. Those with a fault already are left out.
      jobs: processes that read; the result does not depend on their number.
      progress: called with (utterances read, utterances).

    Returns:
      Kinds of `toolkit.corpus.check.findings.KINDS`: unreadable-features, other-dimension (than
      most utterances of the corpus have) and same-audio-and-text.

    Raises:
      KaldiIoError: kaldi_native_io is not installed.
    """
    native()  # better missing here than in every utterance
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
                detail = f"{path}: {dimension} values per frame, where most have {usual}"
                faults[item.key] = [("other-dimension", detail)]
            elif text := text_of(item.cut):
                original = first.setdefault((digest, text), item.key)
                if original[:2] != item.key[:2]:
                    detail = f"the features are those of {original[1]} in {original[0]}"
                    faults[item.key] = [("same-audio-and-text", detail)]
        done += len(results)
        if progress is not None:
            progress(done, len(utterances))
    return faults


def _readable(splits: Mapping[str, Sequence[MonoCut]]) -> Iterator[_Utterance]:
    for split, cuts in splits.items():
        copies: Counter[str] = Counter()
        for cut in cuts:
            copies[cut.id] += 1
            if "fault" not in (cut.custom or {}):
                yield _Utterance((split, cut.id, copies[cut.id]), cut)


def _read_all(entries: list[Entry]) -> list[tuple[str, str]]:
    return [_read(entry) for entry in entries]


def _read(entry: Entry) -> tuple[str, str]:
    """Return the digest of a matrix and an empty text; or what is wrong with it."""
    try:
        matrix = read_matrix(entry)
    except KaldiIoError as error:
        return "", str(error)
    usable = np.isfinite(matrix) & (np.abs(matrix) <= HALF_MAX)
    if not usable.all():
        frames = np.flatnonzero(~usable.all(axis=1))
        what = f"that are no numbers, or larger than {HALF_MAX:g}"
        return "", f"{entry.path}: values {what}, in {len(frames)} frames, first {frames[0]}"
    return hashlib.blake2b(matrix.tobytes(), digest_size=16).hexdigest(), ""
