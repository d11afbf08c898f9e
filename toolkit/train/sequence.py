"""Sequence-discriminative training of a network on lattices: sMBR, MPFE, MMI (C7, C8)."""

import hashlib
import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_high

import numpy as np
import torch
from torch import Tensor, nn

from toolkit.align.store import PdfAlignments
from toolkit.features.low_frame_rate import LOW_RATE_FACTOR, low_rate_length
from toolkit.features.normalise import Cmvn
from toolkit.features.shards import FeatureStore
from toolkit.fsa.config import Criterion
from toolkit.fsa.discriminative import PdfClasses, sequence_objective
from toolkit.fsa.fst import Lattice
from toolkit.fsa.lattice_store import LatticeStore
from toolkit.models.scorer import PRIORS, load_log_priors
from toolkit.models.store import WEIGHTS, load_model, save_model
from toolkit.storage.files import write_atomically
from toolkit.train.batches import Batch, by_length, whole_utterances
from toolkit.train.checkpoints import (
    finish_training,
    finished_headline,
    held_out_metrics,
    selection_score,
    training_identity,
)
from toolkit.train.config import LatticeBatchConfig, SequenceConfig
from toolkit.train.corpus import (
    Corpus,
    Utterance,
    as_list,
    open_corpora,
)
from toolkit.train.monitor import Progress
from toolkit.train.trainer import fit, write_history

logger = logging.getLogger(__name__)
SHARDS_TOGETHER = 16
"""Number of shards shuffled together; a lattice store caches about as many."""
BUCKET_BATCHES = 50
"""Number of batches whose utterances are sorted by length together, after shuffling."""


@dataclass(frozen=True)
class LatticeBatch(Batch):
    """Whole utterances with their lattices."""

    lattices: Sequence[Lattice] = ()
    """One lattice per row, in the host's memory even if the batch is on a GPU."""


class LatticeBatches:
    """Batches of whole utterances, stacked at offset 0, with their lattices; see `BatchSource`.

    The order is a function of (seed, epoch): shards are permuted, then the utterances within groups
    of shards. Buckets of utterances are sorted by length, so that batches need little padding, and
    the batches of each bucket are permuted. Iterating over the object itself goes from the longest
    utterance to the shortest, for validation.

    Args:
      corpus: the utterances, without those that `unusable_lattices` lists.
      lattices: the stores of lattices, one for each source of the corpus.
      config: batch size.
      lookahead: low-rate frames of input beyond the last output.
      seed: seed of the order.
    """

    def __init__(
        self,
        corpus: Corpus,
        lattices: Sequence[LatticeStore],
        config: LatticeBatchConfig,
        lookahead: int,
        seed: int,
    ) -> None:
        self._corpus = corpus
        self._lattices = lattices
        self._config = config
        self._lookahead = lookahead
        self._seed = seed
        self._utterances = corpus.utterances

    def __iter__(self) -> Iterator[LatticeBatch]:
        return map(self._collate, self._cut(by_length(self._utterances)))

    def num_steps(self, epoch: int, world_size: int = 1) -> int:
        """Implement `BatchSource.num_steps`."""
        return -(-len(self._utterances) // self._config.utterances_per_batch) // world_size

    def batches(
        self, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[LatticeBatch]:
        """Implement `BatchSource.batches`."""
        batches = self._order(epoch)
        # Step s of a rank is batch s * world_size + rank, see `BatchSource`.
        for step in range(start, self.num_steps(epoch, world_size)):
            yield self._collate(batches[step * world_size + rank])

    def _order(self, epoch: int) -> list[list[Utterance]]:
        """Return the batches of an epoch in random order."""
        rng = np.random.default_rng([self._seed, epoch])

        def shuffled(items: list) -> list:
            return [items[i] for i in rng.permutation(len(items))]

        # Shuffle shards, then utterances of neighbouring shards (a store caches these), then
        # batches of similar lengths.
        shards, utterances = shuffled(self._corpus.shards), []
        for first in range(0, len(shards), SHARDS_TOGETHER):
            group = shards[first : first + SHARDS_TOGETHER]
            utterances += shuffled([u for shard in group for u in shard])
        # A bucket is a run of shuffled utterances, which `by_length` sorts from long to short.
        bucket = BUCKET_BATCHES * self._config.utterances_per_batch
        batches: list[list[Utterance]] = []
        for first in range(0, len(utterances), bucket):
            batches += shuffled(self._cut(by_length(utterances[first : first + bucket])))
        return batches

    def _cut(self, utterances: list[Utterance]) -> list[list[Utterance]]:
        """Cut a sequence of utterances into batches."""
        size = self._config.utterances_per_batch
        return [utterances[i : i + size] for i in range(0, len(utterances), size)]

    def _collate(self, utterances: list[Utterance]) -> LatticeBatch:
        """Make a batch of utterances with their lattices."""
        batch = whole_utterances(self._corpus, utterances, self._lookahead)
        lattices = [self._lattices[u.source].load(u.name) for u in utterances]
        return LatticeBatch(**vars(batch), lattices=lattices)


class UpsampledReferences:
    """Reference pdfs, stored at the raw or the low frame rate, as targets of raw frames.

    Args:
      features: raw features, for the lengths.
      references: the reference pdf of every raw frame, or of every low-rate frame at offset 0.
    """

    def __init__(self, features: FeatureStore, references: PdfAlignments) -> None:
        self._features = features
        self._references = references

    @property
    def ids(self) -> Sequence[str]:
        """The utterances with a reference."""
        return self._references.ids

    def num_frames(self, name: str) -> int:
        """Count an utterance's raw frames; if the reference fits neither rate, count its frames."""
        frames, raw = self._references.num_frames(name), self._features.num_frames(name)
        return raw if frames == low_rate_length(raw) else frames

    def load(self, name: str) -> Tensor:
        """Read an utterance's reference: [T] integers."""
        reference, raw = self._references.load(name), self._features.num_frames(name)
        if len(reference) != raw and len(reference) == low_rate_length(raw):
            # [T / 3] to [T]: every target is that of its three raw frames.
            return reference.repeat_interleave(LOW_RATE_FACTOR)[:raw]
        return reference


def unusable_lattices(
    features: FeatureStore, lattices: LatticeStore, max_frames: int
) -> dict[str, str]:
    """Return the unusable utterances, id -> reason, without reading a lattice.

    Args:
      features: raw features.
      lattices: lattices of the same utterances at offset 0.
      max_frames: low-rate frames above which an utterance is left out.
    """
    ids = set(lattices.ids)
    reasons = {}
    for name in (name for shard in features.shards for name in shard):
        frames = low_rate_length(features.num_frames(name))
        if not frames:
            reasons[name] = "no frames"
        elif frames > max_frames:
            reasons[name] = f"{frames} frames of 30 ms, more than {max_frames}"
        elif name not in ids:
            reasons[name] = "no lattice"
        elif (length := lattices.num_frames(name)) != frames:
            reasons[name] = f"lattice of {length} frames, features of {frames}"
    return reasons


class SequenceLoss:
    """Negative lattice criterion, smoothed with cross entropy (f-smoothing, the H-criterion).

    `stats`: `weight`, the number of frames; the criterion, named `accuracy` (the expected accuracy
    of the frames over the lattice) or, for MMI, `objective`; `cross_entropy`; `missing`, the number
    of frames whose reference is not in the lattice.

    Args:
      criterion: the criterion to maximise.
      classes: the phone of each pdf, and whether it is silence; on the device of the model.
      log_priors: [C] log priors of the model, on the same device.
      smoothing: h, the weight of the cross entropy: the loss is h times the cross entropy minus
        (1 - h) times the criterion.
    """

    def __init__(
        self, criterion: Criterion, classes: PdfClasses, log_priors: Tensor, smoothing: float
    ) -> None:
        self._criterion = criterion
        self._classes = classes
        self._log_priors = log_priors
        self._smoothing = smoothing

    def __call__(self, model: nn.Module, batch: LatticeBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Implement `Objective.__call__`."""
        logits, _ = model(batch.inputs, lengths=batch.lengths)
        log_posteriors = logits.float().log_softmax(dim=-1)  # [N, T, C]
        lengths = batch.lengths.tolist()
        # sMBR: the expected frame accuracy sum_t sum_s gamma_t(s) A_t(s) over the lattice, with
        # accuracies A, and arc posteriors gamma from the scores log p(s|x) - log p(s) (C8).
        result = sequence_objective(
            batch.lattices,
            log_posteriors - self._log_priors,
            [row[:n] for row, n in zip(batch.targets, lengths, strict=True)],
            self._criterion,
            self._classes,
        )
        objective = result.objective.sum()
        # [N, T] log-posteriors of the reference pdfs
        at_targets = log_posteriors.gather(2, batch.targets[:, :, None])[:, :, 0]
        cross_entropy = -(at_targets * batch.weights).sum()
        # The H-criterion of Su et al. 2013: (1 - h) (-F) + h CE; -F alone overfits the lattices.
        h = self._smoothing
        loss = h * cross_entropy - (1 - h) * objective
        stats = {
            "weight": torch.full((), float(sum(lengths)), device=logits.device),
            "cross_entropy": cross_entropy.detach(),
            "missing": result.missing.sum(),
            "objective" if self._criterion.kind == "mmi" else "accuracy": objective.detach(),
        }
        return loss, stats


def train_sequence(
    model: Path,
    features: FeatureStore | Sequence[FeatureStore],
    lattices: LatticeStore | Sequence[LatticeStore],
    references: PdfAlignments | Sequence[PdfAlignments],
    classes: PdfClasses,
    normaliser: Cmvn,
    config: SequenceConfig,
    out: Path,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    valid: tuple[FeatureStore, LatticeStore, PdfAlignments] | None = None,
) -> dict[str, float]:
    """Train a network on lattices, or continue what a killed run left in `out`.

    Writes into `out` what `train_cross_entropy` does, but `priors.json` is the given model's. The
    weights kept are those that do best on the held-out utterances: an epoch's, the average, or the
    given ones (epoch 0 of `history.json`) if no epoch improved the criterion.

    Args:
      model: the folder of the network and its priors.
      features: one store or several.
      lattices: a store for each of `features`, of the same utterances at offset 0.
      references: a store for each of `features`, with the reference pdf of every raw or every
        low-rate frame.
      classes: the phone of each pdf, and whether it is silence.
      normaliser: normaliser of the raw features.
      config: criterion, rates, seed.
      out: folder of this training alone.
      device: where the network is trained, and the criterion computed.
      progress: called from time to time with (steps done, steps in all).
      valid: held-out features, lattices and references; by default training utterances are set
        aside.

    Returns:
      Headline numbers: `before` and `after`, the held-out criterion per frame of the given and of
      the kept weights; `frames_per_second`, `utterances`, `missing` (share of the frames whose
      reference is not in the lattice), `held_out_speakers` (0: the held-out utterances are of
      training speakers, or given).

    Raises:
      TrainingDataError: too few utterances can be used.
      TrainingError: the training failed, or `out` holds another training.
    """
    out = Path(out)
    digest = hashlib.sha256((Path(model) / WEIGHTS).read_bytes()).hexdigest()
    identity = training_identity(config, **{"initial weights": digest})
    headline = finished_headline(out, identity)
    if headline is not None:
        return headline
    network = load_model(model)
    # 1. The data. Utterances without a lattice, or with one of another length, are excluded before
    # any are held out.
    stores, lattice_stores = as_list(features), as_list(lattices)
    max_frames = config.batches.max_frames
    excluded: dict[str, str] = {}
    for store, lattice_store in zip(stores, lattice_stores, strict=True):
        excluded |= unusable_lattices(store, lattice_store, max_frames)
    corpora = open_corpora(
        [(x, UpsampledReferences(x, y)) for x, y in zip(stores, as_list(references), strict=True)],
        normaliser,
        len(classes.phones),
        config,
        out,
        (valid[0], UpsampledReferences(valid[0], valid[2])) if valid else None,
        excluded=excluded,
        valid_excluded=unusable_lattices(*valid[:2], max_frames) if valid else None,
        count_targets=False,
    )
    lookahead = network.config.lookahead
    data = LatticeBatches(corpora.train, lattice_stores, config.batches, lookahead, config.seed)
    valid_stores = [valid[1]] if valid else lattice_stores
    held_out = LatticeBatches(corpora.valid, valid_stores, config.batches, lookahead, config.seed)
    num_utterances = len(corpora.train.utterances)
    logger.info(
        "training on %d utterances (%d more are held out) with the criterion %s",
        num_utterances,
        len(corpora.valid.utterances),
        config.criterion,
    )
    # 2. Training. The acoustic score of a pdf is log p(pdf | x) - log p(pdf), up to log p(x): the
    # priors stay those of the given network.
    log_priors = load_log_priors(model).to(device)
    result = fit(
        network,
        SequenceLoss(config.criterion, classes.to(device), log_priors, config.smoothing),
        data,
        config,
        out,
        device=device,
        valid=held_out,
        identity=identity,
        keep_initial=True,
        progress=progress,
    )
    # 3. The results. The given weights are epoch 0 of the history.
    initial = {f"valid_{name}": value for name, value in result.initial.items()}
    history = [{"epoch": 0, **initial}, *result.history]
    write_history(out, history)
    if result.initial:
        _log_criterion(history)
    save_model(out, network)
    write_atomically(out / PRIORS, (Path(model) / PRIORS).read_text(encoding="utf-8"))
    headline = {
        "before": selection_score(result.initial),
        "after": result.score,
        "frames_per_second": median_high(r["frames_per_second"] for r in result.history),
        "utterances": num_utterances,
        "missing": result.history[-1]["missing"],
        "held_out_speakers": corpora.held_out_speakers,
    }
    return finish_training(out, identity, headline)


def _log_criterion(history: list[dict[str, float]]) -> None:
    """Log the held-out criterion of every epoch, and warn about epochs that lowered it."""
    scores = [selection_score(held_out_metrics(record)) for record in history]
    logger.info("held-out criterion by epoch: %s", ", ".join(f"{s:.5f}" for s in scores))
    for epoch, (previous, score) in enumerate(itertools.pairwise(scores), 1):
        if score < previous:
            logger.warning(
                "epoch %d lowered the held-out criterion from %.5f to %.5f", epoch, previous, score
            )
