"""One utterance scored: its texts and their alignment."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from toolkit.score.align import CORRECT, DELETION, INSERTION, SUBSTITUTION, Pair, pairs_of

Unit = Literal["word", "char"]


@dataclass(frozen=True)
class UtteranceScore:
    """One reference and what the hypothesis made of it."""

    id: str
    ref_text: str
    """Words parted by single spaces."""
    hyp_text: str
    """Likewise; empty where there is no hypothesis."""
    steps: bytes
    """The alignment: a step of `toolkit.score.align` per byte."""
    unit: Unit = "word"
    missing: bool = False
    """No hypothesis was given: all units count as deletions."""
    speaker: str | None = None
    """Who spoke, when known."""
    source: str | None = None
    """The sentence that it is a copy of, where one is heard several times: their errors are not
    independent."""

    @property
    def block(self) -> str:
        """What is resampled as a whole where speakers are not: the copies of a sentence."""
        return self.source or self.id

    @property
    def ref(self) -> list[str]:
        """Units of the reference."""
        return units_of(self.ref_text, self.unit)

    @property
    def hyp(self) -> list[str]:
        """Units of the hypothesis."""
        return units_of(self.hyp_text, self.unit)

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The alignment: (reference unit, hypothesis unit), None where one side has nothing."""
        return tuple(pairs_of(self.steps, self.ref, self.hyp))

    @property
    def insertions(self) -> int:
        """Hypothesis units that align with nothing."""
        return self.steps.count(INSERTION)

    @property
    def deletions(self) -> int:
        """Reference units that align with nothing."""
        return self.steps.count(DELETION)

    @property
    def substitutions(self) -> int:
        """Reference units that align with another unit."""
        return self.steps.count(SUBSTITUTION)

    @property
    def correct(self) -> int:
        """Reference units that align with the same unit."""
        return self.steps.count(CORRECT)

    @property
    def errors(self) -> int:
        """Insertions, deletions and substitutions together."""
        return len(self.steps) - self.correct

    @property
    def ref_units(self) -> int:
        """Number of units of the reference."""
        return len(self.steps) - self.insertions


def units_of(text: str, unit: Unit) -> Sequence[str]:
    """Split a text of words parted by single spaces into words, or its characters."""
    return text.split() if unit == "word" else list(text)
