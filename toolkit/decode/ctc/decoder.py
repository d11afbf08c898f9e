"""CTC decoding: what all decoders of frame-wise symbol probabilities have in common (A21)."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from toolkit.errors import ToolkitError

LogProbs = Tensor | np.ndarray
"""[T, C] log-probabilities of one utterance, blank included."""


class CtcDecodeError(ToolkitError):
    """Posteriors, units or dictionary with which nothing can be decoded."""


@dataclass(frozen=True)
class Hypothesis:
    """A text and what a decoder gives for it."""

    text: str
    """Words parted by single spaces."""
    score: float
    """Natural logarithm; what it sums is said by each decoder."""


class Decoder(ABC):
    """Turns posteriors into texts.

    Everything that decides the result is given on construction: the same posteriors give the same
    hypotheses in any order and any number of jobs.
    """

    @abstractmethod
    def decode(self, log_probs: LogProbs) -> list[Hypothesis]:
        """Decode one utterance.

        Args:
          log_probs: [T, C] log-probabilities (natural), C as in the units. They need not be
            normalised; -inf is impossible.

        Returns:
          At least one hypothesis, the best first. Where the decoder's rules leave no whole text its
          score is -inf, and its text what was finished, if anything.

        Raises:
          CtcDecodeError: not [T, C], or NaN.
        """

    def decode_many(
        self, utterances: Sequence[LogProbs], jobs: int = 1
    ) -> Iterator[list[Hypothesis]]:
        """Decode many utterances, and yield the hypotheses of each in order.

        By threads: compiled search holds no interpreter lock, and dictionary and language model
        are shared.

        Args:
          utterances: see `decode`.
          jobs: threads.
        """
        if jobs <= 1 or len(utterances) <= 1:
            yield from map(self.decode, utterances)
            return
        with ThreadPoolExecutor(min(jobs, len(utterances))) as pool:
            yield from pool.map(self.decode, utterances)


def as_array(log_probs: LogProbs, size: int) -> np.ndarray:
    """[T, C] float32 in one piece of memory.

    Raises:
      CtcDecodeError: C is not `size`, or a value is NaN.
    """
    if isinstance(log_probs, Tensor):
        log_probs = log_probs.detach().cpu().float().numpy()
    # Writable, since compiled code would be made once more for arrays that are not.
    array = np.require(log_probs, np.float32, ["C", "W"])
    if array.ndim != 2 or array.shape[1] != size:
        raise CtcDecodeError(
            f"posteriors of shape {list(array.shape)}, needed [frames, {size}]: do the model and"
            " the units come from one run?"
        )
    if np.isnan(array).any():
        raise CtcDecodeError(
            f"posteriors are NaN from frame {int(np.isnan(array).any(axis=1).argmax())} on: the"
            " training has diverged"
        )
    return array
