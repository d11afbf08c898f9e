"""The score of one utterance: its texts and their alignment."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from toolkit.score.align import DELETION, INSERTION, SUBSTITUTION, Pair, pairs_of

Unit = Literal["word", "char"]


@dataclass(frozen=True)
class UtteranceScore:
    """A reference, its hypothesis and their alignment."""

    id: str
    ref_text: str
    """Words separated by single spaces; of alternatives, those on the best path."""
    hyp_text: str
    """Words separated by single spaces; empty if there is no hypothesis."""
    steps: bytes
    """The alignment: one byte per step, see `toolkit.score.align`."""
    unit: Unit = "word"
    missing: bool = False
    """No hypothesis was given: all units count as deletions."""
    speaker: str | None = None
    """Speaker id, if known."""
    source: str | None = None
    """The sentence that this utterance is a copy of, if the test set has several copies of a
    sentence: their errors are not independent."""

    alternatives: str = ""
    """The reference as it was written, where it has marks such as alternatives: then `ref_text`
    depends on the hypothesis."""

    @property
    def block(self) -> str:
        """The unit of resampling by utterance: all copies of a sentence together."""
        return self.source or self.id

    @property
    def ref(self) -> Sequence[str]:
        """Units of the reference."""
        return units_of(self.ref_text, self.unit)

    @property
    def hyp(self) -> Sequence[str]:
        """Units of the hypothesis."""
        return units_of(self.hyp_text, self.unit)

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The alignment: (reference unit, hypothesis unit), with None for a gap."""
        return tuple(pairs_of(self.steps, self.ref, self.hyp))

    @property
    def insertions(self) -> int:
        """Number of hypothesis units without a reference unit."""
        return self.steps.count(INSERTION)

    @property
    def deletions(self) -> int:
        """Number of reference units without a hypothesis unit."""
        return self.steps.count(DELETION)

    @property
    def substitutions(self) -> int:
        """Number of reference units aligned with a different unit."""
        return self.steps.count(SUBSTITUTION)

    @property
    def correct(self) -> int:
        """Number of reference units aligned with the same unit, or rightly left out."""
        return len(self.steps) - self.errors

    @property
    def errors(self) -> int:
        """Sum of insertions, deletions and substitutions."""
        return self.insertions + self.deletions + self.substitutions

    @property
    def ref_units(self) -> int:
        """Number of units of the reference."""
        return len(self.steps) - self.insertions


def units_of(text: str, unit: Unit) -> Sequence[str]:
    """Split a text whose words are separated by single spaces into words or characters."""
    if unit == "char":
        return list(text)
    return text.split(" ") if text else []
