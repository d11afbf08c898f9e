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
"""The most states per frame; a search with more would need all of the memory."""


@dataclass(frozen=True)
class Beam(Settings):
    """Settings for pruning the search: beams and numbers of active states."""

    search: Positive = 15.0
    """Score below the best partial path at which a path is dropped, in scaled log units."""
    output: Positive = 6.0
    """Score below the best path within which the lattice keeps alternatives."""
    min_active: Annotated[int, Range(1, MAX_ACTIVE)] = 30
    """States per frame below which the beam widens by a quarter with every frame."""
    max_active: Annotated[int, Range(2, MAX_ACTIVE)] = 4000
    """States per frame beyond which the beam narrows by a fifth with every frame, until there are
    fewer: a frame may keep some more."""

    def check(self) -> None:
        """Raise a ValueError if settings contradict each other."""
        if math.isinf(self.search):
            raise ValueError(
                "search is infinite, but max_active can narrow only a finite beam: use 100"
            )
        if not self.min_active < self.max_active:
            raise ValueError(
                f"min_active is {self.min_active}, must be below max_active ({self.max_active})"
            )

    def widened(self, factor: float) -> "Beam":
        """Return a beam `factor` times as wide, for a retry; its numbers stay in their ranges."""
        min_active = min(max(int(self.min_active * factor), 1), MAX_ACTIVE - 1)
        max_active = min(max(int(self.max_active * factor), min_active + 1), MAX_ACTIVE)
        return Beam(self.search * factor, self.output, min_active, max_active)

    def with_retries(self, factors: Iterable[float]) -> list["Beam"]:
        """Return this beam, followed by it widened by each of `factors`.

        Raises:
          ValueError: a factor that is not positive and finite.
        """
        factors = tuple(factors)
        if not all(0 < factor < math.inf for factor in factors):
            raise ValueError(f"retries are {factors}, must be positive factors")
        return [self, *(self.widened(factor) for factor in factors)]


@dataclass(frozen=True)
class RescoreLimits(Settings):
    """Limits on the work and memory of rescoring a lattice."""

    beam: Positive = 10.0
    """Score below the best path at which a path is dropped, in the lattice's scaled log units;
    paths are scored by the new model up to the last known word, and by the old model from there on.
    A wider beam leaves more choice to word penalties that are tried later."""
    max_active: Annotated[int, Range(1, MAX_ACTIVE)] = 4000
    """Pairs of lattice state and language model state kept per frame at most."""


@dataclass(frozen=True)
class PhoneNgramConfig(Settings):
    """Order and number of states of the phone n-gram model."""

    order: Annotated[int, Range(2, 100)] = 4
    """Longest n-grams; those one shorter are all kept (Kaldi: 4, and all 3-grams)."""
    extra_states: NonNegativeInt = 2000
    """Histories of `order` - 1 phones that are kept as states of their own: those that predict
    most better than their shorter ones (Kaldi: 2,000)."""


@dataclass(frozen=True)
class Criterion(Settings):
    """The criterion to maximise, and the scales of a lattice's scores."""

    kind: Literal["smbr", "mpfe", "mmi"] = "smbr"
    """`smbr`: the expected number of frames with the right pdf; `mpfe`: with the right phone (MPE
    counted by frames, as Kaldi's networks are trained); `mmi`: the reference's log posterior."""
    acoustic_scale: Positive = 0.3
    """Factor kappa on log-likelihoods. Kaldi uses 0.1 at 100 frames per second. At 33, the best
    scale for decoding and for training is about three times that."""
    lm_scale: NonNegative = 1.0
    """Factor on the lattice's graph scores (Kaldi's lmwt: 1)."""
    one_silence_class: bool = True
    """`smbr`, `mpfe`: any silence pdf is right in a silent frame; otherwise no frame of silence
    counts, in which case deletions cost nothing and WER can explode (Kaldi's train_mpe.sh)."""
    boost: NonNegative = 0.0
    """`mmi`: added to the score of every frame of speech with a wrong phone (Kaldi: 0 or 0.1)."""
    drop_frames: bool = True
    """`mmi`: no gradient from frames whose reference the lattice lacks."""
