"""Acoustic scores of a recording, and the confidence of its alignment: phone posteriors."""

from collections.abc import Callable

import torch
from torch import Tensor

from toolkit.hmm.phone_sets import base_phone_groups
from toolkit.hmm.senones import Senones

BLOCK_FRAMES = 1500
"""Frames scored at a time: with 15,000 Gaussians 90 MB."""
SCALE = 0.5
"""Factor on log-likelihoods in phone posteriors."""
SAMPLE_STEP = 3
"""Every third frame is a sample, in which all pdfs are scored, not only those of a window's words.
With HMMs of three states every phone has at least one."""


def samples_among(begin: int, end: int) -> range:
    """The numbers of the samples among frames begin, ..., end - 1; sample n is frame 3 n + 1."""
    before = [(frame + SAMPLE_STEP - 2) // SAMPLE_STEP for frame in (begin, end)]
    return range(*before)


class PhonePosteriors:
    """Posterior probabilities of phones, frame by frame.

    A phone's likelihood is the sum over its pdfs, raised to `scale`: neighbouring frames are
    correlated, so that unscaled posteriors would be nearly all 0 or 1. All phones have the same
    prior. Phones that share a pdf count as one, the first of them.

    Args:
      senones: of the acoustic model.
      scale: factor on log-likelihoods.
    """

    def __init__(self, senones: Senones, scale: float = SCALE) -> None:
        self._scale = scale
        first = torch.zeros(1 + len(senones.topology.phones), dtype=torch.int64)
        for family in base_phone_groups(senones.topology):
            first[list(family)] = family[0]
        self.phone_of_pdf = first[senones.phone_of_pdf]
        self.pdfs = torch.arange(senones.num_pdfs)
        self.size = 1 + int(self.phone_of_pdf.max())
        self._member = (self.phone_of_pdf[:, None] == torch.arange(self.size)).float()

    def __call__(self, log_likelihoods: Tensor) -> Tensor:
        """Log-likelihoods of all pdfs [T, P] -> posteriors [T, size] by phone id."""
        best = log_likelihoods.max(dim=1, keepdim=True).values
        likelihoods = (log_likelihoods - best).exp_() @ self._member
        shares = likelihoods.pow_(self._scale)
        return shares / shares.sum(dim=1, keepdim=True)


class RecordingScores:
    """Scores of a recording, of which only what a window needs is ever in memory.

    Args:
      features: (first frame, frame behind the last) -> [frames, D].
      log_likelihoods: (x [n, D], pdfs [L]) -> [n, L].
      num_frames: T, at least 2.
      posteriors: computes the phone posteriors.
    """

    def __init__(
        self,
        features: Callable[[int, int], Tensor],
        log_likelihoods: Callable[[Tensor, Tensor], Tensor],
        num_frames: int,
        posteriors: PhonePosteriors,
    ) -> None:
        self.num_frames = num_frames
        self._features = features
        self._log_likelihoods = log_likelihoods
        self._of_phones = posteriors
        self._posteriors = torch.zeros(len(samples_among(0, num_frames)), posteriors.size)

    def window(self, begin: int, end: int, pdfs: Tensor) -> Tensor:
        """Log-likelihoods [end - begin, L] of pdfs [L]; keeps the posteriors of the phones."""
        columns = torch.empty(end - begin, len(pdfs))
        for first in range(begin, end, BLOCK_FRAMES):
            behind = min(first + BLOCK_FRAMES, end)
            x = self._features(first, behind)
            columns[first - begin : behind - begin] = self._log_likelihoods(x, pdfs)
            samples = torch.tensor(samples_among(first, behind), dtype=torch.int64)
            sampled = x[SAMPLE_STEP * samples + 1 - first]
            scores = self._log_likelihoods(sampled, self._of_phones.pdfs)
            self._posteriors[samples] = self._of_phones(scores)
        return columns

    def log_posteriors(self, begin: int, pdfs: Tensor) -> Tensor:
        """log p(phone | x) at the samples among the frames aligned to pdfs[n] from `begin` on."""
        samples = torch.tensor(samples_among(begin, begin + len(pdfs)), dtype=torch.int64)
        aligned = pdfs[SAMPLE_STEP * samples + 1 - begin].long()
        phones = self._of_phones.phone_of_pdf[aligned]
        # The floor stands for phones whose share underflows.
        return self._posteriors[samples, phones].clamp(min=1e-30).log()


def span_confidences(log_posteriors: Tensor, starts: list[int], ends: list[int]) -> list[float]:
    """Geometric means of posteriors over spans of frames.

    Args:
      log_posteriors: at every sample of a recording.
      starts: first frame of each span.
      ends: the frame behind each span, beyond its start.

    Returns:
      A confidence within [0, 1] for each span; one without a sample has that of the next one.
    """
    sums = torch.cat([torch.zeros(1, dtype=torch.float64), log_posteriors.double().cumsum(0)])
    spans = [samples_among(start, end) for start, end in zip(starts, ends, strict=True)]
    first = torch.tensor([span.start for span in spans]).clamp(max=len(log_posteriors) - 1)
    behind = torch.tensor([span.stop for span in spans]).maximum(first + 1)
    return ((sums[behind] - sums[first]) / (behind - first)).exp().clamp(0, 1).tolist()
