"""Word and character error rates, with every total recomputed from the per-utterance table."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from toolkit.errors import ToolkitError
from toolkit.score import bootstrap
from toolkit.score.align import Pair, align
from toolkit.score.bootstrap import Interval

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
    speaker: str | None = None
    """Who spoke, when known."""

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
        """Errors per 100 reference units; may pass 100. A speaker who said nothing counts as 1."""
        return 100.0 * self.errors / max(1, self.ref_units)

    @property
    def missing(self) -> tuple[str, ...]:
        """Ids of references without a hypothesis."""
        return tuple(utterance.id for utterance in self.utterances if utterance.missing)

    @property
    def wrong_utterances(self) -> int:
        """Utterances with at least one error."""
        return sum(utterance.errors > 0 for utterance in self.utterances)

    @cached_property
    def resampled(self) -> bootstrap.Unit:
        """What is drawn as a whole: speakers if all are known and there are enough of them.

        The interval then holds for speakers like these; that of utterances, for these speakers.
        """
        speakers = {utterance.speaker for utterance in self.utterances}
        enough = len(speakers) >= bootstrap.FEWEST_SPEAKERS
        return "speaker" if enough and None not in speakers else "utterance"

    def by_speaker(self) -> dict[str, "Score"]:
        """Return the score of each speaker, by name in order; of unknown speakers nothing."""
        parts: dict[str, list[UtteranceScore]] = {}
        for utterance in self.utterances:
            if utterance.speaker is not None:
                parts.setdefault(utterance.speaker, []).append(utterance)
        return {name: Score(self.unit, tuple(parts[name])) for name in sorted(parts)}

    def blocks(self, *counts: Sequence[int]) -> np.ndarray:
        """Add up counts of the utterances by what is resampled.

        Args:
          counts: K sequences with an entry per utterance.

        Returns:
          [B, K] integers for B speakers or utterances, in the order of their names.
        """
        by_speaker = self.resampled == "speaker"
        names = [(u.speaker or "") if by_speaker else u.id for u in self.utterances]
        return bootstrap.block_sums(names, np.asarray(counts, dtype=np.int64).T)

    @cached_property
    def interval(self) -> Interval | None:
        """The confidence interval of `percent`; None for a single utterance, which tells nothing.

        It depends neither on the order of the utterances nor on anything drawn elsewhere.
        """
        blocks = self.blocks(
            [utterance.errors for utterance in self.utterances],
            [utterance.ref_units for utterance in self.utterances],
        )
        if len(blocks) < 2:
            return None
        rates = bootstrap.percent(*bootstrap.resample(blocks).T)
        return bootstrap.interval_of(rates, self.resampled, len(blocks))

    def interval_remarks(self) -> list[str]:
        """Return what the interval rests on, and what a reader should know before trusting it."""
        if self.interval is None:
            return ["one utterance alone has no confidence interval"]
        units = self.interval.units
        found = [
            f"the interval is that of {bootstrap.REPLICATES} bootstrap resamples of "
            f"{units} {self.resampled}s"
        ]
        speakers = len(self.by_speaker())
        if speakers and self.resampled == "utterance":
            found.append(
                f"{speakers} speakers are fewer than the {bootstrap.FEWEST_SPEAKERS} that can be "
                "resampled: the interval is for these very speakers"
            )
        if units < bootstrap.FEW:
            found.append(f"{units} {self.resampled}s are few: expect the interval to be too narrow")
        if not self.errors:
            found.append(
                "without any error the bootstrap sees no spread: if errors were independent, the "
                f"rate would be below {300 / self.ref_units:.2g} % with 95 % confidence"
            )
        return found

    def summary(self, interval: bool = False) -> str:
        """Return the three lines of Kaldi's `compute-wer --mode=all`, to the byte.

        The first begins with `%CER` when the unit is the character. `[PARTIAL]` ends it when a
        hypothesis was missing. With `interval`, the confidence interval follows on that line.
        """
        name = "%WER" if self.unit == "word" else "%CER"
        partial = " [PARTIAL]" if self.missing else ""
        between = f" {self.interval}" if interval and self.interval else ""
        wrong, number = self.wrong_utterances, len(self.utterances)
        return (
            f"{name} {_kaldi_percent(self.errors, self.ref_units)} "
            f"[ {self.errors} / {self.ref_units}, {self.insertions} ins, "
            f"{self.deletions} del, {self.substitutions} sub ]{partial}{between}\n"
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


def score(
    refs: Mapping[str, str],
    hyps: Mapping[str, str],
    unit: Unit = "word",
    speakers: Mapping[str, str] | None = None,
) -> Score:
    """Score hypotheses against references.

    Every reference is scored: one without a hypothesis counts as deletions. Characters are those
    of the words joined by single spaces, the space being one of them (as in jiwer).

    Args:
      refs: transcript by utterance id.
      hyps: hypothesis by utterance id.
      unit: "word" for the word error rate, "char" for the character error rate.
      speakers: speaker by utterance id, for tables by speaker and intervals that respect that a
        speaker's utterances are not independent.

    Raises:
      ScoreError: no reference, no word in any reference, no id in common, or an utterance whose
        speaker is missing.
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
    known = refs if speakers is None else speakers
    silent = [utterance for utterance in refs if utterance not in known]
    if silent:
        raise ScoreError(
            f"{len(silent)} of {len(refs)} utterances have no speaker, first {silent[0]!r}: "
            "name the speaker of each, or give no speakers"
        )
    return Score(
        unit=unit,
        utterances=tuple(
            UtteranceScore(
                id=utterance,
                pairs=tuple(align(_units(text, unit), _units(hyps.get(utterance, ""), unit))),
                missing=utterance not in hyps,
                speaker=None if speakers is None else speakers[utterance],
            )
            for utterance, text in refs.items()
        ),
        extra=tuple(sorted(set(hyps) - set(refs))),
    )


def pool(scores: Mapping[str, Score]) -> Score:
    """Put several test sets together into one, such as the held-out splits of two corpora.

    Args:
      scores: score by name. Utterances become `name/id`; speakers keep their names, one of the same
        name in two sets being the same person.

    Raises:
      ScoreError: no score, or scores in different units.
    """
    units = {score.unit for score in scores.values()}
    if len(units) != 1:
        raise ScoreError("only scores of one unit, and at least one, can be put together")
    return Score(
        unit=units.pop(),
        utterances=tuple(
            replace(utterance, id=f"{name}/{utterance.id}")
            for name, score in scores.items()
            for utterance in score.utterances
        ),
        extra=tuple(f"{name}/{id}" for name, score in scores.items() for id in score.extra),
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
