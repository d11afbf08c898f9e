"""Training objectives: their protocol, and frame-level cross entropy."""

from typing import Any, Protocol

from torch import Tensor, nn
from torch.nn import functional

from toolkit.train.batches import Batch


class Objective(Protocol):
    """A loss of a model on a batch, each of the kind that the objective is for."""

    def __call__(self, model: Any, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss.

        Returns:
          loss_sum: scalar with a gradient, summed over the batch.
          stats: scalars without gradient, which are summed over batches. `weight` is required: the
            loop minimises loss_sum / weight and reports the sums divided by that of `weight`.
        """


class CrossEntropy:
    """Cross entropy between the targets and the model's softmax, in float32.

    `stats`: `weight`, the scored frames; `accuracy`, how many of them have the highest logit at
    their target, so that its mean is the frame accuracy.
    """

    def __call__(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """See `Objective`."""
        logits, _ = model(batch.inputs, lengths=batch.lengths)
        logits = logits.flatten(0, 1).float()
        targets, weights = batch.targets.flatten(), batch.weights.flatten()
        losses = functional.cross_entropy(logits, targets, reduction="none")
        # amax with gather takes a tenth of the time of argmax on the CPU
        detached = logits.detach()
        correct = detached.gather(1, targets[:, None])[:, 0] >= detached.amax(dim=1)
        stats = {"weight": weights.sum(), "accuracy": (correct * weights).sum()}
        return (losses * weights).sum(), stats
