"""Recursions over the steps of packed lattices: on the CPU step by step, elsewhere in groups.

Both compute the same in float64. A compiled loop (numba) is what a CPU does best; on a GPU, torch
takes all steps of a frame at once, those of all utterances and of both directions.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numba import njit
from torch import Tensor

from toolkit.fsa.packed import PackedLattices


@dataclass(frozen=True, eq=False)
class Steps:
    """The 2A steps of packed lattices, in their order, between 2S states."""

    source: Tensor
    """[2A] int64, the state that each step leaves."""
    target: Tensor
    """[2A] int64, the state that it enters."""
    begin: Tensor
    """[2N] int64, the states where paths begin."""
    sizes: tuple[int, ...]
    """See `PackedLattices`."""
    num_states: int
    """2S."""

    @classmethod
    def of(cls, lattices: PackedLattices) -> "Steps":
        """The steps of packed lattices."""
        source, target, s = lattices.source, lattices.target, lattices.num_states
        return cls(
            torch.cat([source, target + s])[lattices.order],
            torch.cat([target, source + s])[lattices.order],
            torch.cat([lattices.starts, lattices.ends + s]),
            lattices.sizes,
            2 * s,
        )

    def groups(self, *of_steps: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Source, target and the given tensors [2A] of the steps of one frame after the other."""
        parts = (x.split(self.sizes) for x in (self.source, self.target, *of_steps))
        return zip(*parts, strict=True)


def runs_compiled(tensor: Tensor) -> bool:
    """Whether a recursion over a tensor is the compiled loop, step by step; on the CPU alone."""
    return tensor.device.type == "cpu"


def log_sums(steps: Steps, scores: Tensor) -> Tensor:
    """[2S] the log of the summed exponentials of the scores of the paths into each state.

    Args:
      steps: 2A of them.
      scores: [2A] float64.

    Returns:
      float64; -inf where no path leads.
    """
    # The best path into each state, and all of them in multiples of it.
    best = scores.new_full((steps.num_states,), -torch.inf)
    multiple = torch.zeros_like(best)
    best.index_fill_(0, steps.begin, 0.0)
    multiple.index_fill_(0, steps.begin, 1.0)
    if runs_compiled(scores):
        tensors = (steps.source, steps.target, scores, best, multiple)
        _log_sums(*(x.numpy() for x in tensors))
    else:
        _log_sums_by_frame(steps, scores, best, multiple)
    return best + multiple.log()


def _log_sums_by_frame(steps: Steps, scores: Tensor, best: Tensor, multiple: Tensor) -> None:
    lowest = torch.finfo(best.dtype).min  # in place of -inf, which cannot be subtracted
    for source, target, score in steps.groups(scores):
        into = best[source] + multiple[source].log() + score
        best.scatter_reduce_(0, target, into, "amax")
        multiple.index_add_(0, target, (into - best[target].clamp(min=lowest)).exp())


def mean_sums(steps: Steps, shares: Tensor, values: Tensor) -> Tensor:
    """[2S] what the values on a path into each state add up to, expected over these paths.

    Args:
      steps: 2A of them.
      shares: [2A] float64, the share of the paths into a state that comes by each step.
      values: [2A] float64.
    """
    means = shares.new_zeros(steps.num_states)
    if runs_compiled(shares):
        _mean_sums(*(x.numpy() for x in (steps.source, steps.target, shares, values, means)))
    else:
        _mean_sums_by_frame(steps, shares, values, means)
    return means


def _mean_sums_by_frame(steps: Steps, shares: Tensor, values: Tensor, means: Tensor) -> None:
    means.index_add_(0, steps.target, shares * values)
    for source, target, share in steps.groups(shares):
        means.index_add_(0, target, share * means[source])


@njit(cache=True, nogil=True)
def _log_sums(
    source: np.ndarray,
    target: np.ndarray,
    scores: np.ndarray,
    best: np.ndarray,
    multiple: np.ndarray,
) -> None:
    total = 0.0
    for a in range(len(source)):
        if a == 0 or source[a] != source[a - 1]:
            total = best[source[a]] + np.log(multiple[source[a]])
        into, at = total + scores[a], target[a]
        if into == -np.inf:
            continue
        if into <= best[at]:
            multiple[at] += np.exp(into - best[at])
        else:
            multiple[at] = 1.0 + multiple[at] * np.exp(best[at] - into)
            best[at] = into


@njit(cache=True, nogil=True)
def _mean_sums(
    source: np.ndarray,
    target: np.ndarray,
    shares: np.ndarray,
    values: np.ndarray,
    means: np.ndarray,
) -> None:
    for a in range(len(source)):
        means[target[a]] += shares[a] * (means[source[a]] + values[a])
