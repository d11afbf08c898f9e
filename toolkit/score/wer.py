"""Word and character error rates, with every total recomputed from the per-utterance table."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from toolkit.errors import ToolkitError
from toolkit.score.align import Pair, align

Unit = Literal["word", "char"]


class ScoreError(ToolkitError):
    """Transcripts that cannot be scored."""


@dataclass(frozen=True)
class UtteranceScore:
    """One reference and what the hypothesis made of it."""

    id: str
    pairs: tuple[Pair, ...]
    """The alignment: (reference unit, hypothesis unit), None where one side has nothing."""
    missing: bool = False
    """No hypothesis was given: all units count as deletions."""

    @cached_property
    def insertions(self) -> int:
        """Hypothesis units that align with nothing."""
        return sum(ref is None for ref, _ in self.pairs)

    @cached_property
    def deletions(self) -> int:
        """Reference units that align with nothing."""
        return sum(hyp is None for _, hyp in self.pairs)

    @cached_property
    def substitutions(self) -> int:
        """Reference units that align with another unit."""
        return sum(None not in pair and pair[0] != pair[1] for pair in self.pairs)

    @property
    def errors(self) -> int:
        """Insertions, deletions and substitutions together."""
        return self.insertions + self.deletions + self.substitutions

    @property
    def ref_units(self) -> int:
        """Units of the reference."""
        return len(self.pairs) - self.insertions


@dataclass(frozen=True)
class Score:
    """The error rate of a set of utterances."""

    unit: Unit
    utterances: tuple[UtteranceScore, ...]
    """One entry per reference, in the references' order."""
    extra: tuple[str, ...] = ()
    """Ids of hypotheses without a reference, sorted; they are not scored."""

    @cached_property
    def insertions(self) -> int:
        """Sum over utterances."""
        return sum(utterance.insertions for utterance in self.utterances)

    @cached_property
    def deletions(self) -> int:
        """Sum over utterances."""
        return sum(utterance.deletions for utterance in self.utterances)

    @cached_property
    def substitutions(self) -> int:
        """Sum over utterances."""
        return sum(utterance.substitutions for utterance in self.utterances)

    @cached_property
    def ref_units(self) -> int:
        """Sum over utterances; at least 1."""
        return sum(utterance.ref_units for utterance in self.utterances)

    @property
    def errors(self) -> int:
        """Insertions, deletions and substitutions together."""
        return self.insertions + self.deletions + self.substitutions

    @property
    def percent(self) -> float:
        """Errors per 100 reference units; may pass 100."""
        return 100.0 * self.errors / self.ref_units

    @property
    def missing(self) -> tuple[str, ...]:
        """Ids of references without a hypothesis."""
        return tuple(utterance.id for utterance in self.utterances if utterance.missing)

    @property
    def wrong_utterances(self) -> int:
        """Utterances with at least one error."""
        return sum(utterance.errors > 0 for utterance in self.utterances)

    def summary(self) -> str:
        """Return the three lines of Kaldi's `compute-wer --mode=all`, to the byte.

        The first begins with `%CER` when the unit is the character. `[PARTIAL]` ends it when a
        hypothesis was missing.
        """
        name = "%WER" if self.unit == "word" else "%CER"
        partial = " [PARTIAL]" if self.missing else ""
        wrong, number = self.wrong_utterances, len(self.utterances)
        return (
            f"{name} {_kaldi_percent(self.errors, self.ref_units)} "
            f"[ {self.errors} / {self.ref_units}, {self.insertions} ins, "
            f"{self.deletions} del, {self.substitutions} sub ]{partial}\n"
            f"%SER {_kaldi_percent(wrong, number)} [ {wrong} / {number} ]\n"
            f"Scored {number} sentences, {len(self.missing)} not present in hyp."
        )

    def remarks(self) -> list[str]:
        """Return what a reader should know before trusting the rate; empty when all is well."""
        found = []
        if self.missing:
            found.append(
                f"{len(self.missing)} of {len(self.utterances)} utterances have no hypothesis and "
                f"count as deletions, first {self.missing[0]}"
            )
        if self.extra:
            found.append(
                f"{len(self.extra)} hypotheses have no reference and were left out, "
                f"first {self.extra[0]}"
            )
        alike = sum(
            _bare(ref) == _bare(hyp)
            for utterance in self.utterances
            for ref, hyp in utterance.pairs
            if ref is not None and hyp is not None and ref != hyp
        )
        if self.unit == "word" and alike > 0.3 * self.substitutions:
            found.append(
                f"{alike} of {self.substitutions} substitutions differ in case or punctuation "
                "alone: normalise both sides alike before scoring"
            )
        return found


def score(refs: Mapping[str, str], hyps: Mapping[str, str], unit: Unit = "word") -> Score:
    """Score hypotheses against references.

    Every reference is scored: one without a hypothesis counts as deletions. Characters are those
    of the words joined by single spaces, the space being one of them (as in jiwer).

    Args:
      refs: transcript by utterance id.
      hyps: hypothesis by utterance id.
      unit: "word" for the word error rate, "char" for the character error rate.

    Raises:
      ScoreError: no reference, no word in any reference, or no id in common.
    """
    if unit not in ("word", "char"):
        raise ValueError(f'unit must be "word" or "char", not {unit!r}')
    if not refs:
        raise ScoreError("there is no reference to score against: the reference set is empty")
    if not any(text.split() for text in refs.values()):
        raise ScoreError(
            f"all {len(refs)} references are empty (first: {next(iter(refs))}): "
            "an error rate needs at least one reference word"
        )
    if hyps and not any(utterance in refs for utterance in hyps):
        raise ScoreError(
            f"references and hypotheses have no utterance id in common: the first are "
            f"{next(iter(refs))!r} and {next(iter(hyps))!r}; check that both are of one split "
            "and in the format they were read as"
        )
    return Score(
        unit=unit,
        utterances=tuple(
            UtteranceScore(
                id=utterance,
                pairs=tuple(align(_units(text, unit), _units(hyps.get(utterance, ""), unit))),
                missing=utterance not in hyps,
            )
            for utterance, text in refs.items()
        ),
        extra=tuple(sorted(set(hyps) - set(refs))),
    )


def _units(text: str, unit: Unit) -> list[str]:
    words = text.split()
    return words if unit == "word" else list(" ".join(words))


def _bare(word: str) -> str:
    return "".join(c for c in word.casefold() if c.isalnum())


def _kaldi_percent(errors: int, total: int) -> str:
    """Format as Kaldi does: counts and quotient are rounded to single precision on the way."""
    single = struct.Struct("f")
    errors, total = (single.unpack(single.pack(n))[0] for n in (errors, total))
    return f"{single.unpack(single.pack(100.0 * errors / total))[0]:.2f}"
