"""The k best logits of a teacher per frame, and the reconstruction of posteriors (C11).

A frame is stored as k senone ids (uint16) and k logits (float16), best first, and the logarithm
of the total probability of all other senones (float16). This takes 4k + 2 bytes: 82 for k = 20,
whereas all 3,183 logits take 12,732 as float32. A softmax does not change when its logits are
shifted, so the logits are stored as log posteriors. Float16 is finest where the probabilities are
large, and the stored probabilities and the tail sum to one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from toolkit.errors import ToolkitError
from toolkit.storage.reading import NATURAL

MISSING = -1e4
"""Logit of a senone that was not stored: "large negative" (C11), zero after a softmax."""
MAX_SENONES = 1 << 16
"""Largest number of senones that 16-bit ids can tell apart."""
MANIFEST = "targets.json"
ADVICE = "make the targets again"
FIELDS = {"senones": NATURAL, "offset": NATURAL}
"""Schema of the fields that the manifest must have; it may have others."""


class TargetError(ToolkitError):
    """Targets cannot be computed, stored or read."""


@dataclass(frozen=True)
class KBest:
    """Targets of one utterance, as stored."""

    ids: np.ndarray
    """[T, k] uint16: the k most probable senones, best first."""
    logits: np.ndarray
    """[T, k] float16: their log posteriors, natural logarithm."""
    log_tail: np.ndarray
    """[T] float16: log of the probability of all other senones; -inf when there are none."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def k(self) -> int:
        """Number of senones stored per frame."""
        return self.ids.shape[1]

    @property
    def tail(self) -> np.ndarray:
        """[T] float32: total probability of the senones that are not stored."""
        return np.exp(self.log_tail.astype(np.float32))

    def split(self, frames: Sequence[int]) -> list["KBest"]:
        """Split concatenated targets into those of utterances with the given numbers of frames."""
        parts = (
            np.split(x, np.cumsum(frames)[:-1]) for x in (self.ids, self.logits, self.log_tail)
        )
        return [KBest(*arrays) for arrays in zip(*parts, strict=True)]

    def probabilities(self) -> Tensor:
        """Return the reconstructed posteriors of the stored senones: [T, k] float32, rows sum to 1.

        The cross entropy over these and `ids` equals the one over all senones after `rebuild`.
        """
        return torch.from_numpy(self.logits.astype(np.float32)).softmax(dim=-1)

    def rebuild(self, num_senones: int, missing: float = MISSING) -> Tensor:
        """Fill in the logits that were not stored (C11).

        Args:
          num_senones: C.
          missing: logit of the senones that were not stored.

        Returns:
          [T, C] float32 logits; their softmax is the target.

        Raises:
          TargetError: a stored id is C or more.
        """
        ids = torch.from_numpy(self.ids.astype(np.int64))
        if ids.numel() and int(ids.max()) >= num_senones:
            raise TargetError(
                f"targets have senone {int(ids.max())}, but there are only {num_senones} senones"
            )
        # fill(z)_c = z_c if stored, else `missing`; its softmax gives the latter no mass (C11).
        full = torch.full((len(ids), num_senones), missing, dtype=torch.float32)
        return full.scatter_(1, ids, torch.from_numpy(self.logits.astype(np.float32)))

    def pack(self) -> np.ndarray:
        """Pack for storage: [T, 2k + 1] uint16, ids, then the bits of logits and log tail."""
        columns = (self.ids, self.logits.view(np.uint16), self.log_tail.view(np.uint16)[:, None])
        return np.concatenate(columns, axis=1)

    @classmethod
    def unpack(cls, packed: np.ndarray) -> "KBest":
        """Restore the targets that `pack` packed, without loss."""
        if packed.dtype != np.uint16 or packed.ndim != 2 or packed.shape[1] % 2 == 0:
            raise TargetError(
                f"an array of type {packed.dtype} and shape {packed.shape} cannot contain targets"
            )
        # Columns: k ids, k logits, the log tail
        k = packed.shape[1] // 2
        logits, tail = packed[:, k : 2 * k], packed[:, 2 * k]
        return cls(
            ids=packed[:, :k].copy(),
            logits=np.ascontiguousarray(logits).view(np.float16),
            log_tail=np.ascontiguousarray(tail).view(np.float16),
        )


def k_best(logits: Tensor, k: int) -> KBest:
    """Keep the k highest logits of every frame.

    Args:
      logits: [T, C], up to a constant per frame; on any device.
      k: at least 1; limited to C.

    Raises:
      TargetError: there are more senones than 16-bit ids, or logits are not finite.
    """
    num_senones = logits.shape[1]
    if num_senones > MAX_SENONES:
        raise TargetError(f"{num_senones} senones are too many: 16-bit ids allow {MAX_SENONES}")
    if k < 1:
        raise TargetError(f"k is {k}: it must be 1 or more")
    logits = logits.detach().float()
    # log p_c = z_c - log sum_j exp z_j
    log_sum = logits.logsumexp(dim=-1, keepdim=True)  # [T, 1]
    if not torch.isfinite(log_sum).all():
        raise TargetError("the teacher's logits are not finite numbers")
    values, ids = logits.topk(min(k, num_senones), dim=-1)
    # Log of the mass that is not stored, summed over the other senones. 1 - sum_k p_k, a difference
    # of numbers near 1, would lose all digits.
    log_tail = logits.scatter(1, ids, -torch.inf).logsumexp(dim=-1) - log_sum[:, 0]
    return KBest(
        ids=ids.cpu().numpy().astype(np.uint16),
        logits=(values - log_sum).half().cpu().numpy(),
        log_tail=log_tail.half().cpu().numpy(),
    )
