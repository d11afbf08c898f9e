"""Alignment of recordings by a CTC network, for `toolkit.align.folder.align_folder`."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from toolkit.align.folder import RecordingTimes, SpeakerAdaptation
from toolkit.align.inputs import Recording
from toolkit.decode.bundle import UNITS
from toolkit.decode.ctc.recogniser import CtcRecogniser
from toolkit.features.stream import extract_file
from toolkit.hmm.transforms import FmllrStatistics
from toolkit.lang.policy import EnglishRules, LetterRules, TextPolicy
from toolkit.lang.units import Characters, Units, load_units


@dataclass(frozen=True)
class CtcAlignerFiles:
    """The bundle of a CTC network as an aligner, see `toolkit.align.folder.AlignerFiles`."""

    bundle: Path
    """The folder."""
    unit_tier: ClassVar[str] = "units"
    by_speaker: ClassVar[bool] = False
    adapts: ClassVar[bool] = False

    def spoken(self, recording: Recording) -> tuple[list[str], str]:
        """The words of a recording by the units' policy, and what was left out."""
        return recording.spoken(_policy(self.bundle), unknown=False)

    def with_pronunciations(self, words: Collection[str]) -> "CtcAlignerFiles":
        """The same: units spell any word."""
        return self

    def guessed(self, words: Collection[str]) -> tuple[list[str], list[str]]:
        """No words: none is pronounced."""
        return [], []

    def open(self) -> "CtcAligner":
        """Load the network."""
        return CtcAligner(CtcRecogniser(self.bundle))


class CtcAligner:
    """Aligns recordings with a CTC network, see `toolkit.align.folder.Aligner`."""

    def __init__(self, recogniser: CtcRecogniser) -> None:
        self._recogniser = recogniser

    def features(self, audio: Path, channel: int | None = None) -> Tensor:
        """Features [T, F] of a file, see `toolkit.align.folder.Aligner.features`."""
        return extract_file(audio, self._recogniser.frontend, channel)

    def feature_sum(self, features: Tensor) -> tuple[Tensor, int]:
        """The sum [F] float64 of all frames, and their number."""
        return features.sum(dim=0, dtype=torch.float64), len(features)

    def speaker_statistics(
        self, features: Tensor, mean: Tensor, words: Sequence[str]
    ) -> FmllrStatistics:
        """Not needed: the network does not adapt to speakers."""
        raise NotImplementedError

    def align(
        self, features: Tensor, words: Sequence[str], speaker: SpeakerAdaptation | None = None
    ) -> RecordingTimes:
        """Align one recording; it is normalised on its own.

        Raises:
          CtcDecodeError: there are fewer frames than labels.
          UnitsError: the units cannot write a word.
        """
        log_probs = self._recogniser.scorer.log_probs(features)
        alignment = self._recogniser.word_aligner(words, log_probs)
        return RecordingTimes(
            words=alignment.words,
            units=alignment.units,
            log_likelihood_per_frame=alignment.log_likelihood_per_frame,
            confidence=alignment.confidence,
        )


@lru_cache(maxsize=1)
def _policy(bundle: Path) -> TextPolicy:
    """The policy of a bundle's units."""
    units = load_units(bundle / UNITS)
    return units.policy or _guessed_policy(units)


def _guessed_policy(units: Units) -> TextPolicy:
    """The policy for units that name none: English for English's 30 symbols (A16)."""
    english = units.kind == "characters" and units.symbols == Characters().symbols
    return TextPolicy(EnglishRules.id if english else LetterRules.id)
