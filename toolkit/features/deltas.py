"""Time derivatives for the GMM front end (C4)."""

import torch
from torch import Tensor


def add_deltas(features: Tensor, order: int = 2, window: int = 2) -> Tensor:
    """Append regression deltas up to `order`, as Kaldi's add-deltas does.

    Each order is one filter on the original frames (the regression filter convolved with
    itself); frames past either end repeat the end frame.

    Args:
      features: [T, F].
      order: highest derivative.
      window: frames on either side of the regression.

    Returns:
      [T, F * (order + 1)]: the features, then their deltas, then delta-deltas, ...
    """
    num_frames = features.shape[0]
    if num_frames == 0:
        return features.new_empty(0, features.shape[1] * (order + 1))
    context = order * window
    times = torch.arange(-context, num_frames + context).clamp(0, num_frames - 1)
    padded = features[times]
    blocks = [features]
    for filter_ in _filters(order, window)[1:]:
        half = len(filter_) // 2
        block = torch.zeros_like(features)
        for shift, weight in enumerate(filter_, start=context - half):
            block += weight * padded[shift : shift + num_frames]
        blocks.append(block)
    return torch.cat(blocks, dim=1)


def _filters(order: int, window: int) -> list[list[float]]:
    """Filter of every order, each 2 * order * window + 1 weights, oldest frame first."""
    norm = sum(j * j for j in range(-window, window + 1))
    filters = [[1.0]]
    for _ in range(order):
        last = filters[-1]
        convolved = [0.0] * (len(last) + 2 * window)
        for i, weight in enumerate(last):
            for j in range(-window, window + 1):
                convolved[i + j + window] += weight * j / norm
        filters.append(convolved)
    return filters
