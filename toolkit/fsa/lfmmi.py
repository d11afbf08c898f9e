"""The lattice-free MMI criterion (Povey et al. 2016), boosted if wanted: value and gradient."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from toolkit.fsa.denominator import Denominator
from toolkit.fsa.forward_backward import total_scores
from toolkit.fsa.fst import Lattice
from toolkit.fsa.leaky_hmm import leaky_forward_backward
from toolkit.fsa.packed import pack


@dataclass(frozen=True)
class LfmmiValue:
    """The criterion of a batch of chunks."""

    objective: Tensor
    """[N] float64 with gradient, to be maximised: the log-likelihood of the numerator less that of
    the denominator, at most 0. With a boost also less than without."""
    numerator_posteriors: Tensor
    """[N, T, P] without gradient, of each pdf in each frame; 0 beyond a chunk's frames."""


def lfmmi(
    scores: Tensor,
    lengths: Tensor,
    numerators: Sequence[Lattice],
    denominator: Denominator,
    leak: float,
    boost: float = 0.0,
) -> LfmmiValue:
    """Compute the criterion and its gradient, posteriors of the numerator less the denominator's.

    The numerators are summed in float64, the denominator in the precision of the scores.

    With a boost the denominator's paths count the more, the more wrong frames they have, as in
    boosted MMI (Povey et al. 2008): a pdf's score is raised by `boost` times one less its
    posterior in the numerator, which counts as given. There the errors are those of phones.

    Args:
      scores: [N, T, P] log-likelihoods of the pdfs, in any scale that the frame decides: what is
        constant over a frame changes nothing. Rows beyond a chunk's frames must be finite.
      lengths: [N] int64 on the CPU.
      numerators: of each chunk, see `NumeratorMaker`.
      denominator: of the same pdfs.
      leak: see `leaky_forward_backward`.
      boost: of a wrong frame, in units of log-likelihood.
    """
    objective, posteriors = _Lfmmi.apply(scores, lengths, numerators, denominator, leak, boost)
    return LfmmiValue(objective, posteriors)


class _Lfmmi(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        lengths: Tensor,
        numerators: Sequence[Lattice],
        denominator: Denominator,
        leak: float,
        boost: float,
    ) -> tuple[Tensor, Tensor]:
        scores = scores.detach()
        # Autocast would take the products of the denominator in half precision.
        with torch.autocast(scores.device.type, enabled=False):
            totals, right = _numerators(scores, numerators)
            right = right.to(scores.dtype)
            heard = scores + boost * (1 - right) if boost else scores
            others, expected = leaky_forward_backward(denominator, heard, lengths, leak)
        ctx.save_for_backward(right - expected)
        ctx.mark_non_differentiable(right)
        return totals - others, right

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return slope * gradient.to(slope.dtype)[:, None, None], *[None] * 5


def _numerators(scores: Tensor, lattices: Sequence[Lattice]) -> tuple[Tensor, Tensor]:
    """Totals [N] of numerators, and their posteriors [N, T, P]; float64."""
    # Their gradients are needed in validation too.
    with torch.inference_mode(False), torch.enable_grad():
        packed = pack(lattices, scores.device)
        places = (packed.utterance[packed.emitting], packed.frame, packed.pdf)
        heard = scores[places].double().requires_grad_()
        totals = total_scores(packed, packed.scores.index_add(0, packed.emitting, heard))
        (share,) = torch.autograd.grad(totals.sum(), heard)
    rows, frames, pdfs = scores.shape
    flat = (places[0] * frames + places[1]) * pdfs + places[2]
    posteriors = share.new_zeros(rows * frames * pdfs).index_add(0, flat, share)
    return totals.detach(), posteriors.view(rows, frames, pdfs)
