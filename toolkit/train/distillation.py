"""Distillation: cross entropy with a teacher's posteriors as soft targets (C10, C11)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from toolkit.train.batches import Batch
from toolkit.train.objectives import CrossEntropy


@dataclass(frozen=True)
class KBestBatch(Batch):
    """Rows whose targets are the k best logits of a teacher; `targets` are the best senones."""

    senones: Tensor = field(default_factory=lambda: torch.empty(0))
    """[N, T, k] int64: senones of the k best logits; undefined where the weight is 0."""
    logits: Tensor = field(default_factory=lambda: torch.empty(0))
    """[N, T, k] float32: the teacher's logits of these, up to a constant per frame. All others
    count as large negative numbers, zero after the softmax (C11)."""

    _computed: ClassVar[tuple[str, ...]] = (*Batch._computed, "senones", "logits")


def distillation_losses(outputs: Tensor, senones: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the cross entropy between a teacher's reconstructed posteriors and a student's.

    The teacher's posteriors p are the softmax over its k logits, so that with the student's
    posteriors q: -sum_i p_i log q_i = log sum_j exp(y_j) - sum_i p_i y_i, i over the k senones.

    Args:
      outputs: [B, C] float32, y: the student's logits.
      senones: [B, k] int64, the senones of the teacher's logits; without repetitions.
      logits: [B, k] float32, the teacher's.

    Returns:
      The cross entropy of each frame, [B], with a gradient, and its minimum, the entropy of the
      teacher's posteriors, [B], which a student with the same posteriors reaches.
    """
    log_posteriors = logits.log_softmax(dim=-1)
    posteriors = log_posteriors.exp()
    losses = outputs.logsumexp(dim=-1) - (posteriors * outputs.gather(-1, senones)).sum(dim=-1)
    return losses, -(posteriors * log_posteriors).sum(dim=-1)


class Distillation:
    """Cross entropy between a teacher's posteriors and the model's, in float32 (C10).

    `stats`: `weight`, the scored frames; `agreement`, how many of them have the highest logit at
    the teacher's best senone; `divergence`, the Kullback-Leibler divergence: the loss minus the
    entropy of the teacher's posteriors, 0 for a student that equals its teacher.
    """

    def __call__(self, model: nn.Module, batch: KBestBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """See `Objective`."""
        outputs, _ = model(batch.inputs, lengths=batch.lengths)
        outputs = outputs.flatten(0, 1).float()
        best, weights = batch.targets.flatten(), batch.weights.flatten()
        losses, entropy = distillation_losses(
            outputs, batch.senones.flatten(0, 1), batch.logits.flatten(0, 1)
        )
        detached = outputs.detach()
        agreeing = detached.gather(1, best[:, None])[:, 0] >= detached.amax(dim=1)
        stats = {
            "weight": weights.sum(),
            "agreement": (agreeing * weights).sum(),
            "divergence": ((losses.detach() - entropy) * weights).sum(),
        }
        return (losses * weights).sum(), stats


class HardOrSoft:
    """Objective for hard and soft targets: `Distillation` for `KBestBatch`, else `CrossEntropy`.

    The two report different statistics, which distinguishes the kinds in a history.
    """

    def __init__(self) -> None:
        self._soft: Callable = Distillation()
        self._hard: Callable = CrossEntropy()

    def __call__(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """See `Objective`."""
        return (self._soft if isinstance(batch, KBestBatch) else self._hard)(model, batch)
