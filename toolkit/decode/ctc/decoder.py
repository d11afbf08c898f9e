"""The interface of CTC decoders: frame-wise symbol probabilities to hypotheses (A21)."""

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
    """Posteriors, units or dictionary that cannot be used for decoding."""


@dataclass(frozen=True)
class Hypothesis:
    """A text and its score."""

    text: str
    """Words separated by single spaces."""
    score: float
    """In natural log units; each decoder documents its terms."""


class Decoder(ABC):
    """Turns posteriors into texts.

    Everything that affects the result is given on construction: the same posteriors give the same
    hypotheses in any order of utterances and with any number of jobs.
    """

    @abstractmethod
    def decode(self, log_probs: LogProbs) -> list[Hypothesis]:
        """Decode one utterance.

        Args:
          log_probs: [T, C] natural log-probabilities, one column per unit. They need not be
            normalised; -inf rules a symbol out.

        Returns:
          At least one hypothesis, the best first. If no complete text is possible, one with the
          score -inf and the words that were finished, if any.

        Raises:
          CtcDecodeError: the shape is not [T, C], or a value is NaN.
        """

    def decode_many(
        self, utterances: Sequence[LogProbs], jobs: int = 1
    ) -> Iterator[list[Hypothesis]]:
        """Decode many utterances, and yield the hypotheses of each in order.

        Uses threads: the compiled search releases the interpreter lock, and dictionary and
        language model are shared.

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
    """Return the log-probabilities as a contiguous float32 array [T, C].

    Raises:
      CtcDecodeError: C is not `size`, or a value is NaN.
    """
    if isinstance(log_probs, Tensor):
        log_probs = log_probs.detach().cpu().float().numpy()
    # Writable, because read-only arrays would make numba compile a second version.
    array = np.require(log_probs, np.float32, ["C", "W"])
    if array.ndim != 2 or array.shape[1] != size:
        raise CtcDecodeError(
            f"posteriors have shape {list(array.shape)}, expected [frames, {size}]: do the model"
            " and the units come from the same run?"
        )
    if np.isnan(array).any():
        raise CtcDecodeError(
            f"posteriors are NaN at frame {int(np.isnan(array).any(axis=1).argmax())}: the"
            " training has diverged"
        )
    return array
