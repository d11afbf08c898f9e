"""Consistency regularisation: outputs for two differently masked views of a row should agree."""

import torch
from torch import Tensor

from toolkit.processes.devices import to_device


def view_divergence(log_probs: Tensor, lengths: Tensor) -> Tensor:
    """Compute the divergence between the outputs for two views of each utterance.

    Args:
      log_probs: [2 N, T, C], rows n and n + N for the same utterance.
      lengths: [2 N] int64 on the CPU, the same for both views.

    Returns:
      The sum over rows and valid frames of KL(other view || row), whose gradient goes into the row
      alone, as if the other view's outputs were labels.
    """
    other = log_probs.detach().roll(len(log_probs) // 2, dims=0)
    by_frame = (other.exp() * (other - log_probs)).sum(dim=2)
    frames = torch.arange(log_probs.shape[1], device=log_probs.device)
    valid = frames < to_device(lengths, log_probs.device)[:, None]
    return by_frame.masked_fill(~valid, 0).sum()


def check_consistency(consistency: float, masked: bool) -> None:
    """Check the weight of the divergence.

    Args:
      consistency: the weight.
      masked: whether the two views differ.

    Raises:
      ValueError: it is below 0, or the views are the same.
    """
    if consistency < 0 or (consistency > 0 and not masked):
        raise ValueError(
            f"consistency is {consistency}, needs to be 0 or more, and above 0 it needs masks, in"
            " which the two views differ"
        )
