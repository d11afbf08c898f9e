"""Scorers: acoustic models that score the utterances of a feature store.

Scores are computed one by one on the CPU, and in batches ahead of the searches on a GPU.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Protocol, TypeVar

from torch import Tensor

from toolkit.features.gmm_features import GmmFeaturesError, load_transforms
from toolkit.features.shards import FeatureStore, map_shards
from toolkit.fsa.search_kernels import FrameScores
from toolkit.hmm.gmm import LazyGmmScores
from toolkit.hmm.gmm_system import GmmSystem
from toolkit.processes.workers import map_in_threads


class Scorer(Protocol):
    """An acoustic model that scores the utterances of a feature store.

    Scorers are sent to worker processes: they hold paths, and open the files on first use.
    """

    frame_shift: float
    """Seconds between two rows of the scores."""

    @property
    def store(self) -> FeatureStore:
        """The feature store."""

    def log_likelihoods(self, utterance: str) -> Tensor:
        """Return log p(x_t | pdf) [T, P], up to a constant per frame."""

    def scores_of(self, utterance: str, pdfs: Tensor) -> FrameScores:
        """Return the columns `pdfs` of `log_likelihoods`: [T, len(pdfs)]."""


@dataclass
class GmmScorer:
    """A GMM system that scores stored cepstra at 100 frames per second."""

    model: Path
    """The system's folder, see `GmmSystem.save`."""
    features: Path
    """A feature store of cepstra."""
    transforms: Path | None = None
    """The speakers' fMLLR transforms, for a system trained with them."""
    frame_shift: float = 0.01
    """Seconds between frames."""

    @cached_property
    def _system(self) -> GmmSystem:
        """The loaded GMM system, with its speaker transforms."""
        system = GmmSystem.load(self.model, self.features)
        modelled, stored = system.cepstra, system.features.store.dimension
        if stored != modelled:
            raise GmmFeaturesError(
                f"{self.features} has {stored:g} values per frame, but {self.model} was trained on "
                f"{modelled:g}: give the cepstra of the same run, such as plp/dev"
            )
        if self.transforms is None:
            return system
        transforms, dimension = load_transforms(self.transforms), system.gmm.means.shape[1]
        for speaker, transform in transforms.items():
            # W = [A b], applied as A x + b.
            if transform.shape != (dimension, dimension + 1):
                raise GmmFeaturesError(
                    f"{self.transforms}: the transform of {speaker} has the shape "
                    f"{list(transform.shape)}, but the features of {self.model} have {dimension} "
                    "dimensions: estimate the transforms again"
                )
        return system.adapted(transforms)

    @property
    def store(self) -> FeatureStore:
        """The store of raw cepstra."""
        return self._system.features.store

    def log_likelihoods(self, utterance: str) -> Tensor:
        """Return the log densities of every pdf: [T, P]."""
        return self._system.gmm.log_likelihoods(self._system.features.load(utterance))

    def scores_of(self, utterance: str, pdfs: Tensor) -> LazyGmmScores:
        """Return the log densities of some pdfs, computed on access: [T, len(pdfs)]."""
        return LazyGmmScores(self._system.gmm, self._system.features.load(utterance), pdfs)

    def __getstate__(self) -> dict:
        """Pickle the paths only, not the loaded models."""
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_")}


Result = TypeVar("Result")
Work = Callable[[Scorer, int, tuple[int, Sequence[str]]], Result]
"""Function that takes a scorer, the number of search threads, and a shard (number and ids)."""
BATCH = 32
"""Maximum number of utterances per batch on a GPU."""
BATCH_FRAMES = 24_000
"""Maximum number of raw frames (10 ms) per batch on a GPU, with padding: 100 MB of scores for 3,183
pdfs. A longer utterance is a batch of its own."""
BATCHES_AHEAD = 2


class BatchScorer(Scorer, Protocol):
    """A scorer that scores several utterances at once, also on a GPU."""

    device: str
    """Where it computes."""

    def batch_log_likelihoods(self, utterances: Sequence[str]) -> list[Tensor]:
        """Return `log_likelihoods` of several utterances, as tensors on the CPU."""


@dataclass(frozen=True)
class ScoredUtterance:
    """An utterance with its scores."""

    utterance: str
    """Its id."""
    log_likelihoods: Tensor
    """[T, P], see `Scorer.log_likelihoods`; on the CPU."""
    seconds: float
    """Time for the scores: CPU seconds, or the utterance's share of the GPU's seconds."""
    clock: Callable[[], float]
    """CPU clock in seconds for measuring the search: that of the process, or of the thread if
    several threads are in use."""


def on_gpu(scorer: Scorer) -> bool:
    """Whether a scorer computes on a device other than the CPU."""
    return getattr(scorer, "device", "cpu") != "cpu"


def map_scored_shards(
    function: Work,
    scorer: Scorer,
    jobs: int,
    title: str,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Result]:
    """Apply a function to every shard of a scorer's store and yield the results in order.

    On the CPU, `jobs` processes share the work, each with one thread. A scorer on a GPU stays in
    this process, which works on one shard after the other, with `jobs` threads.

    Args:
      function: picklable; uses `map_utterances`.
      scorer: the acoustic model.
      jobs: worker processes or threads.
      title: title of the progress bar.
      progress: called with (shards done, shards).
    """
    # A GPU is used by one process; its searches run in threads.
    threads, processes = (jobs, 1) if on_gpu(scorer) else (1, jobs)
    on_shard = _OnShard(function, scorer, threads)
    return map_shards(on_shard, scorer.store, processes, title, progress)


@dataclass(frozen=True)
class _OnShard:
    """Applies a function to one shard; picklable if `function` is."""

    function: Work
    scorer: Scorer
    threads: int

    def __call__(self, shard: tuple[int, Sequence[str]]) -> Result:
        return self.function(self.scorer, self.threads, shard)


def map_utterances(
    function: Callable[[ScoredUtterance], Result], scorer: Scorer, ids: Sequence[str], threads: int
) -> Iterator[Result]:
    """Score utterances, apply a function to each, and yield the results in order.

    On a GPU, one thread scores batches ahead of the `threads` threads that apply the function.

    Args:
      function: for example a search; several threads call it at once if the scorer is on a GPU.
      scorer: the acoustic model.
      ids: the utterances.
      threads: number of threads for the function; 1 for scorers on the CPU.
    """
    if on_gpu(scorer):
        yield from map_in_threads(function, _ahead(scorer, ids), threads, 2 * threads)
    else:
        yield from map(function, (_alone(scorer, utterance) for utterance in ids))


def _alone(scorer: Scorer, utterance: str) -> ScoredUtterance:
    """Score one utterance on the CPU."""
    start = time.process_time()
    scores = scorer.log_likelihoods(utterance)
    return ScoredUtterance(utterance, scores, time.process_time() - start, time.process_time)


def _ahead(scorer: BatchScorer, ids: Sequence[str]) -> Iterator[ScoredUtterance]:
    """Yield scored utterances; batches are scored in a thread ahead of the consumer."""
    lengths = [scorer.store.num_frames(utterance) for utterance in ids]

    def score(rows: slice) -> list[ScoredUtterance]:
        start = time.perf_counter()
        batch = scorer.batch_log_likelihoods(ids[rows])
        # The batch's time is divided among its utterances in proportion to their frames.
        share = (time.perf_counter() - start) / max(1, sum(lengths[rows]))
        return [
            ScoredUtterance(utterance, scores, share * frames, time.thread_time)
            for utterance, scores, frames in zip(ids[rows], batch, lengths[rows], strict=True)
        ]

    # One thread scores at most BATCHES_AHEAD batches before the searches take them.
    batches = map_in_threads(score, batches_in_order(lengths), 1, BATCHES_AHEAD)
    return chain.from_iterable(batches)


def batches_in_order(lengths: Sequence[int]) -> list[slice]:
    """Divide utterances into batches of neighbours; return the rows of each batch.

    Args:
      lengths: number of raw frames of each utterance.

    Returns:
      The rows of each batch, see `BATCH` and `BATCH_FRAMES`.
    """
    batches: list[slice] = []
    longest = 0
    for row, length in enumerate(lengths):
        longest = max(longest, length)
        # Batches are padded to their longest utterance; the first row opens a batch.
        size = 1 + row - batches[-1].start if batches else BATCH + 1
        if size > BATCH or size * longest > BATCH_FRAMES:
            batches.append(slice(row, row))
            longest = length
        batches[-1] = slice(batches[-1].start, row + 1)
    return batches
