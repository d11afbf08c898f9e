"""Forward-backward over packed lattices: total scores, and expected sums over paths."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from toolkit.fsa.fst import Lattice
from toolkit.fsa.packed import PackedLattices, pack
from toolkit.fsa.recursions import Steps, log_sums, mean_sums


def total_scores(lattices: PackedLattices, scores: Tensor) -> Tensor:
    """[N] float64: the log of the summed exponentials of the scores of all paths of each lattice.

    Args:
      lattices: N lattices of A arcs.
      scores: [A] float64, of the arcs. Their gradient is the arc's posterior.
    """
    return _PathSums.apply(scores, None, lattices)


def expected_sums(lattices: PackedLattices, scores: Tensor, values: Tensor) -> Tensor:
    """[N] float64: what the values on a path add up to, expected over the paths of each lattice.

    Args:
      lattices: N lattices of A arcs.
      scores: [A] float64, of the arcs. Their gradient is gamma (c - c_hat): the arc's posterior
        times the sum expected on paths through it, less that expected on all paths.
      values: [A] float64, constants.
    """
    return _PathSums.apply(scores, values, lattices)


def pdf_posteriors(lattice: Lattice) -> tuple[Tensor, Tensor, Tensor]:
    """The posteriors of the pdfs in each frame, from all paths of a lattice by their own scores.

    Returns:
      Frames [K] int64 ascending, pdfs [K] int64, and their posteriors [K] float64, above 0; those
      of a frame sum to one.
    """
    packed = pack([lattice], torch.device("cpu"))
    scores = packed.scores.requires_grad_()
    (of_arcs,) = torch.autograd.grad(total_scores(packed, scores).sum(), scores)
    place = (packed.frame * (1 + int(packed.pdf.max())) + packed.pdf).numpy()
    places, number = np.unique(place, return_inverse=True)
    found = torch.from_numpy(np.bincount(number, of_arcs[packed.emitting].numpy()))
    frames, pdfs = np.divmod(places, 1 + int(packed.pdf.max()))
    kept = found > 0
    return torch.from_numpy(frames)[kept], torch.from_numpy(pdfs)[kept], found[kept]


class _PathSums(torch.autograd.Function):
    """Total scores where `values` is None, expected sums otherwise.

    The gradient is computed in closed form along with the result, not through the recursion.
    """

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, values: Tensor | None, lattices: PackedLattices
    ) -> Tensor:
        x = lattices
        steps = Steps.of(x)
        weight = scores.repeat(2)[x.order]
        logs = log_sums(steps, weight)
        before, behind = logs.split(x.num_states)
        result = before[x.ends]
        slope = (before[x.source] + scores + behind[x.target] - result[x.utterance]).exp()
        if values is not None:
            # The share that a step has in the paths into the state that it enters.
            entered = logs[steps.target]
            share = (logs[steps.source] + weight - entered).exp()
            share.masked_fill_(entered.isneginf(), 0.0)
            before, behind = mean_sums(steps, share, values.repeat(2)[x.order]).split(x.num_states)
            result = before[x.ends]
            slope *= before[x.source] + values + behind[x.target] - result[x.utterance]
        ctx.save_for_backward(slope, x.utterance)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        slope, utterance = ctx.saved_tensors
        return slope * gradient[utterance], None, None
