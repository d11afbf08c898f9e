"""Statistics of batch normalisation for weights that no training step had."""

from collections.abc import Callable, Iterable
from itertools import islice

import torch
from torch import nn

from toolkit.models.batch_norm import MaskedBatchNorm
from toolkit.train.batches import Batch

ENOUGH = 200
"""Batches from which the statistics are estimated, at most."""


def estimate_statistics(
    model: nn.Module,
    batches: Iterable[Batch],
    device: torch.device,
    compute: Callable[[Batch], object],
) -> None:
    """Estimate the running means and variances of a model's batch normalisations anew.

    Those in an average of weights are averages of other networks' statistics. As in Kaldi's
    nnet3-combine they are of training data, without dropout; there over given examples, here over
    the first `ENOUGH` batches, each of which counts alike. Every rank uses the same ones, so that
    all have the same statistics. A model without batch normalisation is left alone.

    Args:
      model: in evaluation mode afterwards.
      batches: of training data, of which no more than needed are taken; not of the first epoch,
        where that begins with the shortest utterances.
      device: of the model.
      compute: runs the model on a batch.
    """
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d | MaskedBatchNorm)]
    model.eval()
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    try:
        for norm in norms:
            norm.train()
        with torch.no_grad():
            for number, batch in enumerate(islice(batches, ENOUGH), 1):
                for norm in norms:
                    norm.momentum = 1 / number  # the mean of all so far
                compute(batch.to(device))
    finally:
        model.eval()
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
