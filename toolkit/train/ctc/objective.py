"""The CTC objective, connectionist temporal classification (A17)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from toolkit.processes.devices import to_device
from toolkit.train.config import LossPer
from toolkit.train.ctc.readers import CtcBatch
from toolkit.train.specaugment import view_divergence


class CtcLoss:
    """Negative log-likelihood of the labels over all alignments, in float32.

    Utterances with fewer frames than their labels require have no alignment: their loss is 0
    instead of infinite, they do not count in the weight, and `stats` reports their number.

    For batches of two views, a and b, the loss includes CR-CTC's consistency regularisation (Yao et
    al. 2024): `consistency` times the divergence of each view's outputs from the other view's. The
    other view's outputs count as constants in the gradient (`view_divergence`). Each view has its
    own CTC loss L, so that the mean over rows is the paper's
    0.5 * (L_a + L_b) + consistency * 0.5 * (KL(b || a) + KL(a || b)).

    `stats`: `weight`; `utterances`, rows with an alignment; `excluded`, those without;
    `divergence`, of batches of two views.

    Args:
      blank: the index of the blank.
      loss_per: unit of the mean loss: the utterances of a batch, as with TensorFlow's mean of its
        CTC losses, or their labels, which weights all labels equally.
      consistency: weight of the divergence between two views of an utterance.
    """

    def __init__(
        self, blank: int, loss_per: LossPer = "utterances", consistency: float = 0.0
    ) -> None:
        self._blank = blank
        self._loss_per = loss_per
        self._consistency = consistency

    def __call__(self, model: nn.Module, batch: CtcBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Implement `Objective.__call__`."""
        outputs, lengths = model(batch.inputs, batch.input_lengths)
        return self.from_outputs(outputs, lengths, batch)

    def from_outputs(
        self, log_probs: Tensor, lengths: Tensor, batch: CtcBatch
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss of a model's output.

        Args:
          log_probs: [N, T, C].
          lengths: [N] int64 on the CPU, at most T.
          batch: the batch, for its labels.

        Returns:
          Loss and stats, see `toolkit.train.trainer.Objective`.
        """
        losses, possible = ctc_losses(
            log_probs, lengths, batch.labels, batch.label_lengths, self._blank
        )
        counted = possible.float()  # [N] each utterance's share of the divisor: 1, or its labels
        stats = {"utterances": counted.sum(), "excluded": (~possible).sum()}
        if self._loss_per == "labels":
            counted = counted * to_device(batch.label_lengths, counted.device)
        weight = counted.sum().clamp(min=1)  # a batch without any alignment has loss 0
        loss = losses.sum()
        if batch.views == 2:
            divergence = view_divergence(log_probs, lengths)
            loss = loss + self._consistency * divergence
            stats["divergence"] = divergence.detach()
        return loss, {"weight": weight, **stats}


def ctc_losses(
    log_probs: Tensor, lengths: Tensor, labels: Tensor, label_lengths: Tensor, blank: int
) -> tuple[Tensor, Tensor]:
    """Compute each utterance's loss.

    Args:
      log_probs: [N, T, C], natural logarithms.
      lengths: [N] int64 on the CPU, number of valid frames.
      labels: [N, L] int64 on the device of `log_probs`.
      label_lengths: [N] int64 on the CPU.
      blank: the index of the blank.

    Returns:
      losses: [N], 0 where there is no alignment.
      possible: [N] bool, whether there is an alignment. It needs a frame for each label, and one
        for the blank between two equal labels; at least one frame in any case.
    """
    # -log p(labels | x) = -log sum over alignments of prod_t p(unit_t | x) (Graves et al. 2006).
    # An alignment needs a frame per label, and a blank between two equal neighbours.
    device = log_probs.device
    label_counts = to_device(label_lengths, device)
    repeated = labels[:, 1:] == labels[:, :-1]
    inside = torch.arange(1, 1 + repeated.shape[1], device=device) < label_counts[:, None]
    repeats = (repeated & inside).sum(dim=1)
    needed = (label_counts + repeats).clamp(min=1)
    possible = to_device(lengths, device) >= needed
    losses = functional.ctc_loss(
        log_probs.transpose(0, 1),  # torch wants [T, N, C]
        labels,
        lengths.clamp(min=1),
        label_lengths,
        blank=blank,
        reduction="none",
        zero_infinity=True,  # the gradient of an infinite loss is NaN
    )
    return losses.masked_fill(~possible, 0), possible
