"""The objective of LF-MMI training, with its regularisers."""

import torch
from torch import Tensor, nn

from toolkit.fsa.denominator import Denominator
from toolkit.fsa.lfmmi import lfmmi
from toolkit.train.consistency import view_divergence
from toolkit.train.lfmmi.data import LfmmiBatch


class LfmmiObjective:
    """Minus the LF-MMI criterion; in training also cross entropy and the outputs' squares.

    The network has 2 P outputs: the first P are the criterion's scores, the softmax of the others
    learns the numerator's posteriors from the same trunk (Povey et al. 2016, section 2.7).

    Batches of two views have the consistency regularisation of CR-CTC (Yao et al. 2024) besides:
    `consistency` times the divergence of the second head's outputs for each view from those for the
    other, which count as given. Where CTC has one distribution per frame, here the second head has.

    `stats`: `weight`, the scored frames; `objective`, the criterion, boosted in training;
    `cross_entropy`; `divergence`, of batches of two views.

    Args:
      denominator: of P pdfs.
      leak: of the leaky HMM.
      cross_entropy: weight of the second head's cross entropy.
      l2: weight of half the squared norm of a frame's scores.
      consistency: weight of the divergence between two views of a chunk.
      boost: of boosted MMI, in training, see `toolkit.fsa.lfmmi.lfmmi`.
    """

    def __init__(
        self,
        denominator: Denominator,
        leak: float,
        cross_entropy: float,
        l2: float,
        consistency: float = 0.0,
        boost: float = 0.0,
    ) -> None:
        self._denominator = denominator
        self._leak = leak
        self._cross_entropy = cross_entropy
        self._l2 = l2
        self._consistency = consistency
        self._boost = boost

    def __call__(self, model: nn.Module, batch: LfmmiBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """See `toolkit.train.objectives.Objective`."""
        if not batch.numerators:
            return _nothing(model)
        logits, _ = model(batch.inputs, lengths=batch.lengths)
        frames = int(batch.chunk_lengths.max())
        scored = slice(batch.left_context, batch.left_context + frames)
        scores, other = logits[:, scored].float().chunk(2, dim=2)
        graphs = batch.numerators, self._denominator
        boost = self._boost if model.training else 0.0
        found = lfmmi(scores, batch.chunk_lengths, *graphs, self._leak, boost)
        objective = found.objective.sum()
        log_probs = other.log_softmax(dim=2)
        entropy = -(found.numerator_posteriors * log_probs).sum()
        loss = -objective
        if model.training:
            squares = scores.square().sum(dim=2) * batch.weights[:, scored]
            loss = loss + self._cross_entropy * entropy + self._l2 / 2 * squares.sum()
        stats = {
            "weight": torch.full((), float(batch.frames), device=scores.device),
            "objective": objective.detach(),
            "cross_entropy": entropy.detach(),
        }
        if model.training and batch.views == 2:
            divergence = view_divergence(log_probs, batch.chunk_lengths)
            loss = loss + self._consistency * divergence
            stats["divergence"] = divergence.detach()
        return loss, stats


def _nothing(model: nn.Module) -> tuple[Tensor, dict[str, Tensor]]:
    """Gradients of 0; the weight of one frame, as sums are divided by that of the weights."""
    loss = sum(0.0 * parameter.sum() for parameter in model.parameters())
    one, zero = torch.ones((), device=loss.device), torch.zeros((), device=loss.device)
    return loss, {"weight": one, "objective": zero, "cross_entropy": zero}
