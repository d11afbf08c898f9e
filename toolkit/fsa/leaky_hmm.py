"""Forward-backward through a denominator with leaky HMM: total scores and pdf posteriors.

In every frame a share of the probability leaks from all states to the initial ones, as if chunks
began anew with a small weight (Povey et al. 2016, section 2.6). The transitions are a sparse
matrix, so that torch does the same on any device. On a CPU that is as fast as a compiled loop.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from toolkit.fsa.denominator import Denominator


def leaky_forward_backward(
    denominator: Denominator, scores: Tensor, lengths: Tensor, leak: float
) -> tuple[Tensor, Tensor]:
    """Sum over all paths of chunks through an HMM; computed in the precision of the scores.

    Args:
      denominator: of S states.
      scores: [N, T, P] log-likelihoods of the pdfs; rows beyond a chunk's frames must be finite.
      lengths: [N] int64 on the CPU, T_n of each chunk, at least 1.
      leak: the share that leaks (Kaldi's leaky-hmm-coefficient); 0 for none.

    Returns:
      totals: [N] float64, natural logarithm.
      posteriors: [N, T, P] in the dtype of the scores, of each pdf in each frame; they add up to 1
        in a chunk's frames and are 0 beyond. They are the gradient of `totals`.
    """
    device, frames = scores.device, scores.shape[1]
    forwards, backwards, initial, pdf = _tables(denominator, scores.dtype, device)
    ends = lengths.to(device)
    top = scores.amax(dim=2)
    likelihoods = (scores - top[:, :, None]).exp().permute(1, 2, 0).contiguous()  # [T, P, N]
    # The probabilities [S, N] after each frame, scaled to add up to 1, and what they added up to.
    alphas, sums = [initial.expand(-1, len(scores))], []
    for t in range(frames):
        moved = torch.sparse.mm(forwards, alphas[-1] + leak * initial)
        alpha = moved * likelihoods[t, pdf]
        sums.append(alpha.sum(dim=0))
        alphas.append(alpha / sums[-1])
    posteriors = torch.zeros_like(likelihoods)
    beta = torch.ones_like(alphas[-1])
    for t in reversed(range(frames)):
        beta = torch.where(t == ends - 1, torch.ones_like(beta), beta)
        posteriors[t].index_add_(0, pdf, alphas[t + 1] * beta)
        ahead = torch.sparse.mm(backwards, beta * likelihoods[t, pdf] / sums[t])
        beta = ahead + leak * (initial * ahead).sum(dim=0)
    real = torch.arange(frames, device=device) < ends[:, None]
    logs = torch.stack(sums, dim=1).double().log() + top.double()
    totals = logs.masked_fill(~real, 0.0).sum(dim=1) + float(np.log1p(leak))
    return totals, posteriors.permute(2, 0, 1).masked_fill(~real[:, :, None], 0.0)


@lru_cache(maxsize=4)
def _tables(
    hmm: Denominator, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Transitions into and out of each state, sparse [S, S]; initial [S, 1]; pdf of each state."""
    places = torch.from_numpy(np.stack([hmm.target, hmm.source])).long()
    weights = torch.from_numpy(hmm.weight).to(dtype)
    size = (hmm.num_states, hmm.num_states)
    options = {"check_invariants": True} if torch.__version__ >= "2" else {}
    into = torch.sparse_coo_tensor(places, weights, size, device=device, **options).coalesce()
    initial = torch.from_numpy(hmm.initial).to(device, dtype)[:, None]
    return into, into.t().coalesce(), initial, torch.from_numpy(hmm.pdf).long().to(device)
