"""Silence in an acoustic model's scores: its posterior, and no words in digital silence."""

import torch
from torch import Tensor

from toolkit.features.silence import SilentSpans
from toolkit.hmm.senones import Senones

PENALTY = 100.0
"""Log-likelihood by which all but silence is less likely than silence in a row of digital silence:
at the acoustic scales in use, from 0.05 to 1, 5 and more where beams are 13 to 17."""


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


def silence_pdfs(senones: Senones) -> Tensor:
    """Return which pdfs are those of pauses between words: [P] bool.

    Those of noise are not among them, unless both phones share a root of the tree.
    """
    topology = senones.topology
    pauses = torch.tensor(topology.phone_of_state_id) == topology.silence
    silent = torch.zeros(senones.num_pdfs, dtype=torch.bool)
    silent[senones.table[pauses].unique().long()] = True
    return silent


class SilenceGate:
    """Keeps words out of the digital silence of an utterance or stream.

    In the spans that `toolkit.features.silence.SilentSpans` finds, the scores of all outputs but
    those of silence are lowered to `PENALTY` below the best of silence. Features are taken before
    the rows of scores that a model makes of them, in any pieces.

    Args:
      kind: of the raw features, see `FrontendConfig.kind`.
      silence: [P] bool, which outputs stand for silence.
      factor: frames from one row of scores to the next.
      offset: the frame in the middle of what the first row stands for.
    """

    def __init__(self, kind: str, silence: Tensor, factor: int, offset: int = 0) -> None:
        self._spans, self._silence = SilentSpans(kind), silence
        self._factor, self._offset = factor, offset
        self.begin_utterance()

    def begin_utterance(self) -> None:
        """The next frame is that of a new utterance's first row; spans of silence go on."""
        self._silent = torch.zeros(0, dtype=torch.bool)  # by frame of the utterance
        self._row = 0

    def push(self, features: Tensor) -> None:
        """Take the utterance's next raw features [T, F]."""
        self._silent = torch.cat([self._silent, self._spans.push(features)])

    def __call__(self, scores: Tensor) -> Tensor:
        """Return the next rows [T', P] of unscaled scores, without words in digital silence."""
        rows = torch.arange(self._row, self._row + len(scores))
        self._row += len(scores)
        if not self._silent.any():
            return scores
        middle = (rows * self._factor + self._offset).clamp(max=len(self._silent) - 1)
        silent = self._silent[middle]
        gated = scores.clone()
        best = scores[silent][:, self._silence].amax(dim=1, keepdim=True)
        lowered = torch.minimum(scores[silent], best) - PENALTY
        gated[silent] = torch.where(self._silence, scores[silent], lowered)
        return gated
