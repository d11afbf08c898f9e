"""Settings of searches, rescoring, phone language models and sequence criteria."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from toolkit.config.fields import (
    NonNegative,
    NonNegativeInt,
    Positive,
    Range,
    Settings,
)

MAX_ACTIVE = 10_000_000
"""Largest number of states per frame; a search with more would use up the memory."""


@dataclass(frozen=True)
class Beam(Settings):
    """Settings for pruning the search: beams and numbers of active states."""

    search: Positive = 15.0
    """Partial paths that score more than this below the best one are dropped; in scaled log
    units."""
    output: Positive = 6.0
    """The lattice keeps paths that score at most this much below the best path."""
    min_active: Annotated[int, Range(1, MAX_ACTIVE)] = 30
    """With fewer states in a frame, the beam widens by a quarter with every frame."""
    max_active: Annotated[int, Range(2, MAX_ACTIVE)] = 4000
    """With more states in a frame, the beam narrows by a fifth with every frame until there are
    fewer; so a frame may keep somewhat more states than this."""

    def check(self) -> None:
        """Raise a ValueError if settings contradict each other."""
        if math.isinf(self.search):
            raise ValueError(
                "the beam `search` is infinite, but `max_active` can narrow only a finite beam: "
                "set `search` to a number such as 100"
            )
        if not self.min_active < self.max_active:
            raise ValueError(
                f"`min_active` is {self.min_active} but must be below `max_active`, which is "
                f"{self.max_active}"
            )

    def widened(self, factor: float) -> "Beam":
        """Return a beam `factor` times as wide, for a retry; the limits stay in their ranges."""
        min_active = min(max(int(self.min_active * factor), 1), MAX_ACTIVE - 1)
        max_active = min(max(int(self.max_active * factor), min_active + 1), MAX_ACTIVE)
        return Beam(self.search * factor, self.output, min_active, max_active)

    def with_retries(self, factors: Iterable[float]) -> list["Beam"]:
        """Return this beam, followed by a copy widened by each of `factors`.

        Raises:
          ValueError: a factor that is not positive and finite.
        """
        factors = tuple(factors)
        if not all(0 < factor < math.inf for factor in factors):
            raise ValueError(f"`retries` is {factors}, but its factors must be positive and finite")
        return [self, *(self.widened(factor) for factor in factors)]


@dataclass(frozen=True)
class RescoreLimits(Settings):
    """Limits on the work and memory of rescoring a lattice."""

    beam: Positive = 10.0
    """Paths that score more than this below the best one are dropped (scaled log units). The new
    model scores a path up to its last word so far, and the old model scores the rest. A wider beam
    keeps more paths to choose from when word penalties are tried later."""
    max_active: Annotated[int, Range(1, MAX_ACTIVE)] = 4000
    """Largest number of pairs (lattice state, language model state) kept per frame."""


@dataclass(frozen=True)
class PhoneNgramConfig(Settings):
    """Order and number of states of the phone n-gram model."""

    order: Annotated[int, Range(2, 100)] = 4
    """Length n of the longest n-grams; all (n - 1)-grams are kept (Kaldi: 4, and all 3-grams)."""
    extra_states: NonNegativeInt = 2000
    """Number of histories of `order` - 1 phones that keep states of their own: those that improve
    most on the predictions of the next shorter history (Kaldi: 2,000)."""


@dataclass(frozen=True)
class Criterion(Settings):
    """The criterion to maximise, and the scales of a lattice's scores."""

    kind: Literal["smbr", "mpfe", "mmi"] = "smbr"
    """`smbr`: the expected number of frames with the right pdf; `mpfe`: with the right phone (MPE
    counted in frames, as in Kaldi's network training); `mmi`: the reference's log posterior."""
    acoustic_scale: Positive = 0.3
    """Factor kappa on log-likelihoods. Kaldi uses 0.1 at 100 frames per second. At 33 frames per
    second, the best scale for decoding and for training is about three times that."""
    lm_scale: NonNegative = 1.0
    """Factor on the lattice's graph scores (Kaldi's lmwt: 1)."""
    one_silence_class: bool = True
    """Whether any silence pdf is right in a silent frame (`smbr`, `mpfe` only). Otherwise silence
    is never right: insertions then cost nothing, and WER can become very high (Kaldi's
    train_mpe.sh)."""
    boost: NonNegative = 0.0
    """Added to a path's score for each frame with a wrong speech phone (`mmi` only; Kaldi: 0 or
    0.1)."""
    drop_frames: bool = True
    """Whether frames whose reference pdf is not in the lattice give no gradient (`mmi` only)."""
