"""Clusters recordings into speakers by their voices, for corpora without speaker names.

A recording is modelled by one Gaussian of its cepstra. Agglomerative clustering merges the pair of
clusters for which one Gaussian in place of two improves the Bayesian information criterion most,
until no pair improves it: Chen and Gopalakrishnan (1998), Speaker, environment and channel change
detection and clustering via the Bayesian information criterion.

The mean of a recording is not removed from its cepstra. So a cluster is a speaker at one
microphone; means and transforms by speaker compensate for both.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from lhotse import MonoCut
from torch import Tensor

from toolkit.corpus.manifest import NO_SPEAKER, has_audio, speaker_of
from toolkit.errors import ToolkitError
from toolkit.features.config import FrontendConfig
from toolkit.features.cut_audio import load_cut_audio
from toolkit.features.frontend import Frontend
from toolkit.features.silence import counted_frames
from toolkit.processes.workers import map_in_processes

CEPSTRA = FrontendConfig("mfcc", num_mel_bins=30, num_ceps=20)
"""The front end whose cepstra are clustered."""
MAX_DIMENSION = 20
"""Kaldi features with more values per frame are reduced to this many principal components."""
PENALTY = 1.0
"""Weight of the number of parameters (lambda). A larger weight leaves fewer clusters."""
PRIOR_FRAMES = 100
"""Weight, in frames, of the mean covariance of all recordings in each cluster's covariance. AN4's
recordings have 270 frames and a covariance has 210 parameters: without smoothing, recordings of the
same speaker hardly ever merge."""
MIN_FRAMES = 50
"""A recording with fewer frames, digital silence not counted, is a speaker of its own."""
MAX_RECORDINGS = 5000
"""Largest number of recordings, since time and memory grow with its square."""
logger = logging.getLogger(__name__)


ReadFeatures = Callable[[MonoCut], np.ndarray]
"""Reads the features [T, F] of a cut that has them in place of audio."""


class SpeakerClusteringError(ToolkitError):
    """Raised when recordings cannot be clustered into speakers."""


@dataclass(frozen=True)
class FrameStatistics:
    """Gaussian statistics of a recording's frames."""

    num_frames: int
    """T."""
    sum: np.ndarray
    """[D] float64: sum of frames."""
    outer: np.ndarray
    """[D, D] float64: sum of outer products of frames with themselves."""

    @classmethod
    def of(cls, frames: np.ndarray) -> "FrameStatistics":
        """Return the statistics of frames [T, D]."""
        frames = frames.astype(np.float64)
        return cls(len(frames), frames.sum(axis=0), frames.T @ frames)


def name_speakers(
    cuts: Sequence[MonoCut], jobs: int = 1, read_features: ReadFeatures | None = None
) -> tuple[int, int]:
    """Assign speakers to utterances that have none, by clustering their recordings.

    A cluster is named after its first recording. Cuts with a fault, and recordings that cannot be
    read or have fewer than `MIN_FRAMES` frames of sound, stay as they are: each is a speaker.

    Args:
      cuts: the cuts of a split; their speakers are changed. The result depends neither on the order
        of the cuts nor on `jobs`.
      jobs: processes that read recordings.
      read_features: reads cuts without audio, such as `toolkit.kaldi.feature_dir.read_features`;
        None: cuts without audio are not changed.

    Returns:
      Number of recordings without a speaker, and number of speakers that they now have.

    Raises:
      SpeakerClusteringError: there are more than `MAX_RECORDINGS`.
    """
    by_recording: dict[str, list[MonoCut]] = {}
    for cut in sorted(cuts, key=lambda cut: (speaker_of(cut), cut.start, cut.id)):
        custom = cut.custom or {}
        if NO_SPEAKER in custom and "fault" not in custom:
            by_recording.setdefault(speaker_of(cut), []).append(cut)
    if len(by_recording) > MAX_RECORDINGS:
        raise SpeakerClusteringError(
            f"{len(by_recording)} recordings have no speaker label, but at most {MAX_RECORDINGS} "
            "can be clustered. Add the speakers to the corpus, or set `corpus.speakers=recording`"
        )
    statistics = map_in_processes(
        partial(_statistics_of, read_features=read_features), list(by_recording.values()), jobs
    )
    usable = {
        recording: item
        for recording, item in zip(by_recording, statistics, strict=True)
        if item is not None and item.num_frames >= MIN_FRAMES
    }
    clusters = dict(zip(usable, cluster_recordings(list(usable.values())), strict=True))
    first: dict[int, str] = {}
    for recording, cluster in clusters.items():
        speaker = first.setdefault(cluster, recording)
        for cut in by_recording[recording]:
            cut.supervisions[0].speaker = speaker
            detail = f"the clustering of recordings assigns it to the speaker of {speaker}"
            cut.custom = {**cut.custom, NO_SPEAKER: detail}
    return len(by_recording), len(first) + len(by_recording) - len(usable)


def cluster_recordings(statistics: Sequence[FrameStatistics]) -> list[int]:
    """Cluster recordings by the Bayesian information criterion (BIC).

    Returns:
      For each recording the index of the first one of its cluster.
    """
    if len(statistics) < 2:
        return list(range(len(statistics)))
    # The costs of merging all pairs; after a merge, only those of the merged cluster change.
    clusters = _Clusters(statistics)
    size = len(statistics)
    costs = np.full((size, size), np.inf)  # [i, j] for i < j; inf where one has been merged
    for i in range(size - 1):
        costs[i, i + 1 :] = clusters.merging_costs(i, np.arange(i + 1, size))
    cluster_of = np.arange(size)
    while True:
        i, j = divmod(int(costs.argmin()), size)
        if not costs[i, j] < 0:
            return cluster_of.tolist()
        # Cluster j becomes part of cluster i, whose costs are computed again.
        clusters.merge(i, j)
        cluster_of[cluster_of == j] = i
        costs[j, :] = costs[:, j] = np.inf
        remaining = np.unique(cluster_of)
        lower, higher = remaining[remaining < i], remaining[remaining > i]
        costs[lower, i] = clusters.merging_costs(i, lower)
        costs[i, higher] = clusters.merging_costs(i, higher)


class _Clusters:
    """Gaussians of N clusters; a cluster is known by the index of its first recording."""

    def __init__(self, statistics: Sequence[FrameStatistics]) -> None:
        frames = np.array([item.num_frames for item in statistics], np.float64)  # [N]
        sums = np.stack([item.sum for item in statistics])  # [N, D]
        outers = np.stack([item.outer for item in statistics])  # [N, D, D]
        mean = sums.sum(axis=0) / frames.sum()
        total = outers.sum(axis=0) / frames.sum() - np.outer(mean, mean)
        # A linear transform of the frames does not change the criterion: components need no scale.
        components = np.linalg.eigh(total)[1][:, -MAX_DIMENSION:]  # [D, K]
        self._frames = frames
        self._sums = sums @ components
        self._outers = components.T @ outers @ components
        scatters = _scatter(self._frames, self._sums, self._outers)
        dimension = components.shape[1]
        floor = 1e-6 * np.trace(components.T @ total @ components) / dimension
        self._mean_covariance = scatters.sum(axis=0) / frames.sum() + floor * np.eye(dimension)
        self._num_parameters = dimension + dimension * (dimension + 1) / 2
        self._log_dets = self._log_det(self._frames, self._sums, self._outers)

    def merging_costs(self, i: int, candidates: np.ndarray) -> np.ndarray:
        """Return the rise of the BIC when cluster `i` is merged with each candidate.

        That is n/2 log|S| - n1/2 log|S1| - n2/2 log|S2| - lambda/2 P log n. The two clusters have
        n1 and n2 frames and covariances S1 and S2, the merged one n frames and covariance S, and a
        Gaussian has P parameters. A value below 0 is an improvement.
        """
        # The statistics of a merged cluster are the sums of those of its two parts.
        frames = self._frames[i] + self._frames[candidates]
        log_dets = self._log_det(
            frames,
            self._sums[i] + self._sums[candidates],
            self._outers[i] + self._outers[candidates],
        )
        apart = (
            self._frames[i] * self._log_dets[i]
            + self._frames[candidates] * self._log_dets[candidates]
        )
        penalty = PENALTY * self._num_parameters * np.log(frames)
        return 0.5 * (frames * log_dets - apart - penalty)

    def merge(self, i: int, j: int) -> None:
        """Merge cluster `j` into cluster `i`."""
        for values in (self._frames, self._sums, self._outers):
            values[i] += values[j]
        merged = slice(i, i + 1)
        self._log_dets[merged] = self._log_det(
            self._frames[merged], self._sums[merged], self._outers[merged]
        )

    def _log_det(self, frames: np.ndarray, sums: np.ndarray, outers: np.ndarray) -> np.ndarray:
        """Return the log determinants [N] of smoothed covariances."""
        scatters = _scatter(frames, sums, outers) + PRIOR_FRAMES * self._mean_covariance
        return np.linalg.slogdet(scatters / (frames + PRIOR_FRAMES)[:, None, None])[1]


def _scatter(frames: np.ndarray, sums: np.ndarray, outers: np.ndarray) -> np.ndarray:
    """Return the scatter matrices (sums of squared deviations): [N, D, D]."""
    return outers - sums[:, :, None] * sums[:, None, :] / frames[:, None, None]


def _statistics_of(
    cuts: Sequence[MonoCut], read_features: ReadFeatures | None
) -> FrameStatistics | None:
    """Return the statistics of a recording's cuts; None if no cut can be read."""
    compute = Frontend(CEPSTRA)
    frames = []
    for cut in cuts:
        try:
            if has_audio(cut):
                frames.append(_sounding_frames(cut, compute))
            elif read_features is not None:
                frames.append(read_features(cut))
        except ToolkitError as error:
            logger.debug("%s: not used in the clustering of speakers: %s", cut.id, error)
    return FrameStatistics.of(np.concatenate(frames)) if frames else None


def _sounding_frames(cut: MonoCut, compute: Frontend) -> np.ndarray:
    """Return a cut's frames [T, D] without digital silence."""
    cepstra: Tensor = compute(load_cut_audio(cut, CEPSTRA.sampling_rate))
    return cepstra[counted_frames(cepstra, CEPSTRA.kind)].numpy()
