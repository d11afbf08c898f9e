"""The objective of sequence-discriminative training, on lattices."""

import torch
from torch import Tensor, nn

from toolkit.fsa.discriminative import Criterion, PdfClasses, sequence_objective
from toolkit.train.discriminative.data import LatticeBatch


class SequenceObjective:
    """Negative lattice criterion, smoothed with cross entropy (f-smoothing, the H-criterion).

    `stats`: `weight`, the number of frames; the criterion as `accuracy`, their expected accuracy
    over the lattice, or for MMI as `objective`; `cross_entropy`; `missing`, the number of frames
    whose reference is not in the lattice.

    Args:
      criterion: the criterion to maximise.
      classes: silence and phones of the pdfs, on the device of the model.
      log_priors: [C] log priors of the model, on the same device.
      smoothing: h, the weight of the cross entropy: the loss is (1 - h) times minus the criterion
        plus h times the cross entropy.
    """

    def __init__(
        self, criterion: Criterion, classes: PdfClasses, log_priors: Tensor, smoothing: float
    ) -> None:
        self._criterion = criterion
        self._classes = classes
        self._log_priors = log_priors
        self._smoothing = smoothing

    def __call__(self, model: nn.Module, batch: LatticeBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """See `toolkit.train.objectives.Objective`."""
        logits, _ = model(batch.inputs, lengths=batch.lengths)
        log_posteriors = logits.float().log_softmax(dim=-1)
        lengths = batch.lengths.tolist()
        value = sequence_objective(
            batch.lattices,
            log_posteriors - self._log_priors,
            [row[:n] for row, n in zip(batch.targets, lengths, strict=True)],
            self._criterion,
            self._classes,
        )
        objective = value.objective.sum()
        right = log_posteriors.gather(2, batch.targets[:, :, None])[:, :, 0]
        cross_entropy = -(right * batch.weights).sum()
        h = self._smoothing
        loss = h * cross_entropy - (1 - h) * objective
        stats = {
            "weight": torch.full((), float(sum(lengths)), device=logits.device),
            "cross_entropy": cross_entropy.detach(),
            "missing": value.missing.sum(),
            "objective" if self._criterion.kind == "mmi" else "accuracy": objective.detach(),
        }
        return loss, stats
