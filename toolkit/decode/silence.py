"""Posteriors of silence from an acoustic model's scores."""

import torch
from torch import Tensor

from toolkit.hmm.senones import Senones


class SilencePosteriors:
    """Computes the posterior of silence and noise, summed over their senones.

    Args:
      senones: those of the acoustic model.
      log_priors: [P] the log-priors that turned the model's posteriors into likelihoods.
    """

    def __init__(self, senones: Senones, log_priors: Tensor) -> None:
        topology = senones.topology
        silent = [topology.is_silence(int(phone)) for phone in senones.phone_of_pdf]
        self._silent = torch.tensor(silent)
        self._log_priors = log_priors

    def __call__(self, log_likelihoods: Tensor) -> Tensor:
        """Map [T, P] log p(x | s), up to a constant per frame, to [T] p(silence | x)."""
        posteriors = (log_likelihoods + self._log_priors).softmax(dim=1)
        return posteriors[:, self._silent].sum(dim=1)
