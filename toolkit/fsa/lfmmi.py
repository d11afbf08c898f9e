"""The lattice-free MMI criterion (Povey et al. 2016), optionally boosted, and its gradient.

The denominator's forward-backward uses a leaky HMM (section 2.6): in every frame a share of the
probability leaks from all states to the initial ones, as if chunks restarted with a small weight.
The transitions are a sparse matrix; a compiled loop multiplies by it on the CPU, torch elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from toolkit.fsa.denominator import Denominator
from toolkit.fsa.forward_backward import pack, total_scores
from toolkit.fsa.fst import Lattice
from toolkit.kernels import njit


def leaky_forward_backward(
    denominator: Denominator, scores: Tensor, lengths: Tensor, leak: float
) -> tuple[Tensor, Tensor]:
    """Sum over all paths of chunks through an HMM, in the precision of the scores.

    Args:
      denominator: the denominator, with S states.
      scores: [N, T, P] log-likelihoods of the pdfs; rows beyond a chunk's frames must be finite.
      lengths: [N] int64 on the CPU, T_n of each chunk, at least 1.
      leak: the share that leaks (Kaldi's leaky-hmm-coefficient); 0 for none.

    Returns:
      totals: [N] float64, natural logarithm.
      posteriors: [N, T, P] in the dtype of the scores, of each pdf in each frame; they add up to 1
        in a chunk's frames and are 0 beyond. They are the gradient of `totals`.
    """
    device, frames = scores.device, scores.shape[1]
    into, out_of, initial, pdf = _tables(denominator, scores.dtype, device)
    ends = lengths.to(device)
    unread = _unread(denominator, scores.shape[2])
    if unread.any():  # a far higher score of one of these would make all others 0
        scores = scores.masked_fill(unread.to(device), -torch.inf)
    # Likelihoods relative to the best pdf of each frame.
    top = scores.amax(dim=2)  # [N, T]
    likelihoods = (scores - top[:, :, None]).exp().permute(1, 2, 0).contiguous()  # [T, P, N]
    # Forward: alpha_t(s) = b_t(s) sum_r w(r, s) (alpha_{t-1}(r) + leak pi(r)), [S, N], each scaled
    # to add up to 1. b_t(s) is the likelihood of the pdf of state s, w(r, s) a transition's weight.
    # Before each frame a share `leak` of alpha is added according to the initial probabilities pi.
    alphas, sums = [initial.expand(-1, len(scores))], []
    for t in range(frames):
        entered = into @ (alphas[-1] + leak * initial)
        alpha = entered * likelihoods[t, pdf]
        sums.append(alpha.sum(dim=0))
        alphas.append(alpha / sums[-1])
    # Backward, with the same scale: beta_{t-1}(r) = x(r) + leak sum_q pi(q) x(q) where
    # x(r) = sum_s w(r, s) b_t(s) beta_t(s) / sum_t. At a chunk's last frame beta is 1.
    posteriors = torch.zeros_like(likelihoods)
    beta = torch.ones_like(alphas[-1])
    for t in reversed(range(frames)):
        beta = torch.where(t == ends - 1, torch.ones_like(beta), beta)
        # State posteriors alpha beta [S, N], summed over the states of each pdf.
        posteriors[t].index_add_(0, pdf, alphas[t + 1] * beta)
        without_leak = out_of @ (beta * likelihoods[t, pdf] / sums[t])
        beta = without_leak + leak * (initial * without_leak).sum(dim=0)
    is_frame = torch.arange(frames, device=device) < ends[:, None]  # [N, T]
    # The total is the product of all scales; after the last frame it leaks once more.
    logs = torch.stack(sums, dim=1).double().log() + top.double()
    totals = logs.masked_fill(~is_frame, 0.0).sum(dim=1) + float(np.log1p(leak))
    return totals, posteriors.permute(2, 0, 1).masked_fill(~is_frame[:, :, None], 0.0)


@dataclass(frozen=True, eq=False)
class _Transitions:
    """A sparse transition matrix [S, S]."""

    matrix: Tensor
    """Coalesced sparse tensor: its entries are in the order of rows."""
    first: np.ndarray
    """[S + 1] the first entry of each row."""

    @classmethod
    def of(cls, matrix: Tensor) -> "_Transitions":
        """Make transitions from a sparse torch matrix."""
        matrix = matrix.coalesce()
        row = matrix.indices()[0].cpu().numpy()
        return cls(matrix, np.searchsorted(row, np.arange(len(matrix) + 1)))

    def __matmul__(self, x: Tensor) -> Tensor:
        """Multiply by x [S, N]; on the CPU four times as fast as torch for few columns."""
        if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64):
            return torch.sparse.mm(self.matrix, x)
        product = torch.zeros_like(x, memory_format=torch.contiguous_format)
        entries = self.matrix.indices()[1].numpy(), self.matrix.values().numpy()
        _multiply(self.first, *entries, x.contiguous().numpy(), product.numpy())
        return product


@njit(cache=True, nogil=True, fastmath={"contract"})
def _multiply(
    first: np.ndarray, column: np.ndarray, weight: np.ndarray, x: np.ndarray, product: np.ndarray
) -> None:
    """Add the product of a row-wise matrix and x [S, N] to `product`, in torch's order."""
    for row in range(len(first) - 1):
        for entry in range(first[row], first[row + 1]):
            source, factor = x[column[entry]], weight[entry]
            for n in range(x.shape[1]):
                product[row, n] += factor * source[n]


@lru_cache(maxsize=4)
def _unread(hmm: Denominator, pdfs: int) -> Tensor:
    """Return the pdfs that no state reads when it is entered: [P] bool on the CPU."""
    return torch.from_numpy(~np.isin(np.arange(pdfs), hmm.pdf[hmm.target]))


@lru_cache(maxsize=4)
def _tables(
    hmm: Denominator, dtype: torch.dtype, device: torch.device
) -> tuple[_Transitions, _Transitions, Tensor, Tensor]:
    """Return transitions into and out of states, initial weights [S, 1], and the states' pdfs."""
    indices = torch.from_numpy(np.stack([hmm.target, hmm.source])).long()
    weights = torch.from_numpy(hmm.weight).to(dtype)
    size = (hmm.num_states, hmm.num_states)
    options = {"check_invariants": True} if torch.__version__ >= "2" else {}
    incoming = torch.sparse_coo_tensor(indices, weights, size, device=device, **options)
    initial = torch.from_numpy(hmm.initial).to(device, dtype)[:, None]
    transitions = _Transitions.of(incoming), _Transitions.of(incoming.t())
    return *transitions, initial, torch.from_numpy(hmm.pdf).long().to(device)


@dataclass(frozen=True)
class LfmmiValue:
    """The criterion's value for a batch of chunks."""

    objective: Tensor
    """[N] float64 with gradient, to be maximised: log-likelihood of the numerator minus that of the
    denominator, at most 0; a boost lowers it."""
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
    """Compute the LF-MMI criterion; its gradient is numerator minus denominator posteriors.

    The numerators are summed in float64, the denominator in the precision of the scores.

    With a boost, denominator paths with more errors get more weight, as in boosted MMI (Povey et
    al. 2008). That paper counts wrong phones; here wrong frames count: a pdf's score is raised by
    `boost` * (1 - its numerator posterior), where the posterior is treated as a constant.

    Args:
      scores: [N, T, P] log-likelihoods of the pdfs, up to a constant per frame. Rows beyond a
        chunk's frames must be finite.
      lengths: [N] int64 on the CPU.
      numerators: the numerator of each chunk, see `NumeratorMaker`.
      denominator: made with the same pdfs.
      leak: see `leaky_forward_backward`.
      boost: added to the score of a wrong frame, in units of log-likelihood.
    """
    objective, posteriors = _Lfmmi.apply(scores, lengths, numerators, denominator, leak, boost)
    return LfmmiValue(objective, posteriors)


class _Lfmmi(torch.autograd.Function):
    """Differentiable LF-MMI criterion; the forward pass computes the gradient."""

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
        # Autocast would compute the products of the denominator in half precision.
        with torch.autocast(scores.device.type, enabled=False):
            numerator_logprobs, numerator_posteriors = _numerators(scores, numerators)
            numerator_posteriors = numerator_posteriors.to(scores.dtype)
            boosted_scores = scores + boost * (1 - numerator_posteriors) if boost else scores
            denominator_logprobs, denominator_posteriors = leaky_forward_backward(
                denominator, boosted_scores, lengths, leak
            )
        ctx.save_for_backward(numerator_posteriors - denominator_posteriors)
        ctx.mark_non_differentiable(numerator_posteriors)
        return numerator_logprobs - denominator_logprobs, numerator_posteriors

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return slope * gradient.to(slope.dtype)[:, None, None], *[None] * 5


def _numerators(scores: Tensor, lattices: Sequence[Lattice]) -> tuple[Tensor, Tensor]:
    """Return the numerators' total scores [N] and posteriors [N, T, P], float64."""
    # The gradients are also needed in validation.
    with torch.inference_mode(False), torch.enable_grad():
        packed = pack(lattices, scores.device)
        indices = (packed.utterance[packed.emitting], packed.frame, packed.pdf)
        arc_scores = scores[indices].double().requires_grad_()
        totals = total_scores(packed, packed.scores.index_add(0, packed.emitting, arc_scores))
        (arc_posteriors,) = torch.autograd.grad(totals.sum(), arc_scores)
    rows, frames, pdfs = scores.shape
    flat = (indices[0] * frames + indices[1]) * pdfs + indices[2]
    posteriors = arc_posteriors.new_zeros(rows * frames * pdfs).index_add(0, flat, arc_posteriors)
    return totals.detach(), posteriors.view(rows, frames, pdfs)
