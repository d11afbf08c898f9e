"""The means of a criterion and its statistics over held-out batches."""

from collections.abc import Callable, Iterable
from math import isfinite

import torch
from torch import Tensor, nn

from toolkit.parallel.strategy import Strategy
from toolkit.train.batches import Batch
from toolkit.train.errors import TrainingError
from toolkit.train.metrics import accumulate, means


def held_out_means(
    model: nn.Module,
    batches: Iterable[Batch],
    compute: Callable[[Batch], tuple[Tensor, dict[str, Tensor]]],
    strategy: Strategy,
    epoch: int,
) -> dict[str, float]:
    """Average over the held-out batches of all ranks.

    Args:
      model: put in evaluation mode by this call.
      batches: this rank's, on its device.
      compute: returns a batch's loss, summed, and its statistics.
      strategy: sums over ranks.
      epoch: for messages, counted from 0.

    Returns:
      `loss` per weight and every statistic's mean, such as `accuracy`; empty without batches.

    Raises:
      TrainingError: the loss is no finite number, so that no epoch could be chosen by it.
    """
    sums: dict[str, Tensor] = {}
    losses: list[tuple[Tensor, list[str]]] = []
    model.eval()
    with torch.inference_mode():
        for batch in batches:
            loss, stats = compute(batch)
            losses.append((loss, batch.ids))
            accumulate(sums, {"loss": loss, **stats})
    strategy.barrier()  # ranks may take different times
    found = means(strategy.sum_over_ranks(sums))
    if not isfinite(found.get("loss", 0.0)):
        bad = [ids for loss, ids in losses if not bool(loss.isfinite())]
        where = f"in the batch of {', '.join(bad[0][:3])}" if bad else "on another rank or in sum"
        raise TrainingError(
            f"the loss of the held-out data is not finite in epoch {epoch + 1}, {where}, so that no"
            " epoch can be chosen by it: look for broken features or transcripts there, or for"
            " weights that are all 0"
        )
    return found
