"""Vocal tract length perturbation of log-mel energies (Jaitly and Hinton 2013)."""

import torch
from torch import Tensor

from toolkit.features.filterbank import hertz, mel, mel_points

KNEE = 0.8
"""Share of the upper edge up to which frequencies are multiplied by the factor; from there on a
straight line leads to the edge, as in Kaldi's VTLN."""


def warp_mel(inputs: Tensor, factors: Tensor, bins: int, edges: tuple[float, float]) -> Tensor:
    """Move the spectrum of each row along the frequency axis, as another vocal tract would.

    Filters are not computed again, as they are in the paper: a bin gets the value that lies at its
    centre's new place, on a straight line between the centres of two others, or that of the first
    or last beyond them.

    Args:
      inputs: [N, T, D], of which the first `bins` columns are log energies of mel filters in order,
        normalised or not: a mean and variance of each bin move with them.
      factors: [N], where 1 changes nothing; below 1 / `KNEE`.
      bins: number of filters.
      edges: lower edge of the first and upper edge of the last filter in Hz.

    Returns:
      [N, T, D]; columns after `bins` are those of the inputs.
    """
    low, high = edges
    points = mel_points(bins, low, high)
    centres = hertz(points[1:-1])
    factors = factors.double()[:, None]
    upwards = (high - factors * KNEE * high) / (high - KNEE * high)
    moved = torch.where(centres < KNEE * high, factors * centres, high - upwards * (high - centres))
    place = (mel(moved) - points[1]) / (points[2] - points[1])
    place = place.clamp(0, bins - 1)
    left = place.long().clamp(max=bins - 2)
    part = (place - left).to(inputs.dtype)[:, None]
    left = left[:, None].expand(-1, inputs.shape[1], -1)
    energies = inputs[..., :bins]
    warped = torch.lerp(energies.gather(2, left), energies.gather(2, left + 1), part)
    return torch.cat([warped, inputs[..., bins:]], dim=2)
