"""Frame-level training: cross entropy with the targets of an alignment or of a teacher."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median_high
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from toolkit.features.config import LOW_RATE_FACTOR
from toolkit.features.normalise import Cmvn
from toolkit.features.shards import FeatureStore
from toolkit.models.scorer import save_priors
from toolkit.models.store import make_model, save_model
from toolkit.parallel.strategy import make_strategy
from toolkit.train.batches import (
    Batch,
    ChunkSampler,
    CorpusBatches,
    ShardGroups,
    UtteranceSampler,
    ValidationBatches,
)
from toolkit.train.checkpoints import finish_training, finished_headline, training_identity
from toolkit.train.config import (
    CrossEntropyConfig,
    TrainerConfig,
)
from toolkit.train.corpus import Alignments, as_list, open_corpora
from toolkit.train.monitor import Progress, phase_progress
from toolkit.train.specaugment import masked
from toolkit.train.trainer import Objective, fit, joined_history, write_history

logger = logging.getLogger(__name__)


def cross_entropy(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute the cross entropy between the targets and the model's softmax, in float32.

    See `Objective`. Sums: `weight`, the scored frames; `accuracy`, how many of them have the
    highest logit at their target. So the mean of `accuracy` is the frame accuracy.
    """
    logits, _ = model(batch.inputs, lengths=batch.lengths)
    logits = logits.flatten(0, 1).float()  # [N T, C]
    targets, weights = batch.targets.flatten(), batch.weights.flatten()  # [N T] each
    # -log softmax(y_t)[target_t] of each frame; frames of weight 0 have undefined targets.
    losses = functional.cross_entropy(logits, targets, reduction="none")
    is_correct = _is_highest(logits.detach(), targets)
    return (losses * weights).sum(), {
        "weight": weights.sum(),
        "accuracy": (is_correct * weights).sum(),
    }


def _is_highest(logits: Tensor, targets: Tensor) -> Tensor:
    """Return whether the target's logit is the highest of a frame's: [B, C], [B] -> [B].

    amax with gather takes a tenth of the time of argmax on the CPU.
    """
    return logits.gather(1, targets[:, None])[:, 0] >= logits.amax(dim=1)


@dataclass(frozen=True)
class KBestBatch(Batch):
    """Rows whose targets are a teacher's k best logits; `targets` has each frame's best senone."""

    senones: Tensor = field(default_factory=lambda: torch.empty(0))
    """[N, T, k] int64: senones of the k best logits; undefined where the weight is 0."""
    logits: Tensor = field(default_factory=lambda: torch.empty(0))
    """[N, T, k] float32: the teacher's logits of these senones, up to a constant per frame. Other
    senones count as large negative logits, which are zero after the softmax (C11)."""

    _computed: ClassVar[tuple[str, ...]] = (*Batch._computed, "senones", "logits")


def distillation_losses(outputs: Tensor, senones: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the cross entropy between a teacher's reconstructed posteriors and a student's.

    The teacher's posteriors p are the softmax over its k logits, so that with the student's
    posteriors q: -sum_i p_i log q_i = log sum_j exp(y_j) - sum_i p_i y_i, i over the k senones.

    Args:
      outputs: [B, C] float32, the student's logits y.
      senones: [B, k] int64, the senones of the teacher's logits; without repetitions.
      logits: [B, k] float32, the teacher's.

    Returns:
      The cross entropy of each frame, [B], with a gradient, and its minimum, the entropy of the
      teacher's posteriors, [B], which a student with the same posteriors reaches.
    """
    log_posteriors = logits.log_softmax(dim=-1)  # [B, k], log p_i
    posteriors = log_posteriors.exp()
    # log sum_j exp(y_j) - sum_i p_i y_i, the second sum over the k senones alone
    losses = outputs.logsumexp(dim=-1) - (posteriors * outputs.gather(-1, senones)).sum(dim=-1)
    return losses, -(posteriors * log_posteriors).sum(dim=-1)


def distillation(model: nn.Module, batch: KBestBatch) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute the cross entropy between a teacher's posteriors and the model's, in float32 (C10).

    See `Objective`. Sums: `weight`, the scored frames; `agreement`, how many of them have the
    highest logit at the teacher's best senone; `divergence`, the Kullback-Leibler divergence: the
    loss minus the entropy of the teacher's posteriors, 0 for a student that equals its teacher.
    """
    outputs, _ = model(batch.inputs, lengths=batch.lengths)
    outputs = outputs.flatten(0, 1).float()  # [N T, C]
    best, weights = batch.targets.flatten(), batch.weights.flatten()
    losses, entropy = distillation_losses(
        outputs, batch.senones.flatten(0, 1), batch.logits.flatten(0, 1)
    )
    is_agreeing = _is_highest(outputs.detach(), best)
    return (losses * weights).sum(), {
        "weight": weights.sum(),
        "agreement": (is_agreeing * weights).sum(),
        "divergence": ((losses.detach() - entropy) * weights).sum(),
    }


def train_cross_entropy(
    features: FeatureStore | Sequence[FeatureStore],
    alignments: Alignments | Sequence[Alignments],
    normaliser: Cmvn,
    config: CrossEntropyConfig,
    num_targets: int,
    out: Path,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    valid: tuple[FeatureStore, Alignments] | None = None,
    objective: Objective = cross_entropy,
) -> dict[str, float]:
    """Train a network on aligned utterances (C7), or continue what a killed run left in `out`.

    It is trained on chunks first, then for `config.whole_utterances.epochs` on whole utterances;
    these epochs are undone if they do worse on the held-out data. Writes into `out`: the model
    (`config.json`, `model.safetensors`), `priors.json` (counts of the training targets, for
    `load_log_priors`), `history.json`, `excluded.tsv`, `headline.json` and TensorBoard events.
    Checkpoints are removed at the end.

    Args:
      features: one store or several, such as the original utterances and their augmented copies.
      alignments: a store for each of `features`, with targets of the raw frames.
      normaliser: normaliser of the raw features.
      config: sizes, schedule, seed.
      num_targets: C, number of senones.
      out: folder of this training alone.
      device: where to train.
      progress: called from time to time with (steps done, steps in all).
      valid: held-out stores; without them training speakers, or utterances, are held out.
      objective: cross entropy, or another one with the sums `weight` and `accuracy`. The result of
        an earlier training with another objective, by the function's name, is not reused.

    Returns:
      `frame_accuracy` (0 to 1) of the model at low rate on held-out data (without held-out data:
      the last epoch's on training data), `loss` per frame of the last epoch on training data,
      `frames_per_second` (low-rate, median over the epochs on chunks), `utterances`,
      `held_out_speakers` (0: the held-out data are utterances of training speakers, or given);
      with epochs on whole utterances also `frame_accuracy_chunks`, the accuracy before them.

    Raises:
      TrainingDataError: stores do not belong together, or too little is left of them.
      TrainingError: the loss is not finite, or `out` holds a training with other settings.
    """
    out = Path(out)
    name = getattr(objective, "__qualname__", repr(objective))
    identity = training_identity(config, num_targets=num_targets, objective=name)
    headline = finished_headline(out, identity)
    if headline is not None:
        return headline
    # 1. The data: utterances with an alignment, some of them held out.
    sources = list(zip(as_list(features), as_list(alignments), strict=True))
    corpora = open_corpora(sources, normaliser, num_targets, config, out, valid)
    train, held_out = corpora.train, corpora.valid
    strategy = make_strategy(config.parallel, device)

    # 2. The network, whose inputs are three stacked frames.
    input_dim = LOW_RATE_FACTOR * train.load(train.utterances[0])[0].shape[1]
    torch.manual_seed(config.seed)
    model = make_model(replace(config.model, input_dim=input_dim, output_dim=num_targets))
    logger.info(
        "%d training utterances, %d held out, %d targets, %.1f M parameters",
        len(train.utterances),
        len(held_out.utterances),
        num_targets,
        sum(parameter.numel() for parameter in model.parameters()) / 1e6,
    )

    # 3. The phases: chunks, then whole utterances if there are epochs for them (C7). Both read the
    # same groups, so that a corpus that fits into memory is there only once.
    lookahead, seed, whole = config.model.lookahead, config.seed, config.whole_utterances
    groups = ShardGroups(train, config.chunks.shuffle_frames, seed)
    chunks = CorpusBatches(groups, ChunkSampler(config.chunks, lookahead), seed)
    phases: list[tuple[Path, TrainerConfig, CorpusBatches]] = [(out, config, chunks)]
    if whole.epochs:
        sampler = UtteranceSampler(whole, lookahead)
        utterances = CorpusBatches(groups, sampler, seed, first_epoch=config.epochs)
        phases.append((out / "whole", config.whole_phase(), utterances))
    num_steps = [
        sum(data.num_steps(epoch, strategy.world_size) for epoch in range(settings.epochs))
        for _, settings, data in phases
    ]
    # 4. Each phase begins with the weights that the previous phase selected, and keeps them if none
    # of its own epochs scores as well.
    results = []
    for number, (folder, settings, data) in enumerate(phases):
        results.append(
            fit(
                model,
                objective,
                masked(data, config.specaugment, seed + number),
                settings,
                folder,
                device=device,
                valid=ValidationBatches(held_out, lookahead),
                strategy=strategy,
                identity=identity,
                keep_initial=number > 0,
                progress=phase_progress(progress, num_steps, number),
            )
        )
    history = joined_history(results)
    write_history(out, history)
    save_model(out, model)
    save_priors(out, train.counts)

    # 5. A phase's score is the held-out accuracy, or without held-out data the training accuracy
    # of its last epoch.
    accuracies = [
        result.score if held_out.utterances else result.history[-1]["accuracy"]
        for result in results
    ]
    headline = {
        "frame_accuracy": accuracies[-1],
        "loss": history[-1]["loss"],
        "frames_per_second": median_high(
            record["frames_per_second"] for record in history[: config.epochs]
        ),
        "utterances": len(train.utterances),
        "held_out_speakers": corpora.held_out_speakers,
    }
    if whole.epochs:
        headline["frame_accuracy_chunks"] = accuracies[0]
    return finish_training(out, identity, headline)
