"""Context windows for the LDA front end (C4)."""

import torch
from torch import Tensor


def splice(features: Tensor, left: int, right: int) -> Tensor:
    """Join every frame with its neighbours, as Kaldi's splice-feats does.

    Args:
      features: [T, D].
      left, right: frames before and after; past either end the end frame repeats.

    Returns:
      [T, D * (left + 1 + right)]: the oldest frame first.
    """
    times = torch.arange(len(features), device=features.device)
    offsets = torch.arange(-left, right + 1, device=features.device)
    window = (times[:, None] + offsets).clamp(0, max(len(features) - 1, 0))
    return features[window].flatten(1)
