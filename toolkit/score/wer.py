"""Word and character error rates, computed from the alignments of the utterances."""

import struct
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np

from toolkit.errors import ToolkitError
from toolkit.processes.memory import gc_disabled
from toolkit.score import significance
from toolkit.score.alignment import (
    RATE_NAMES,
    UNIT_NAMES,
    UNITS,
    Aligner,
    Unit,
    UtteranceScore,
    Weights,
    align_texts,
)
from toolkit.score.normalise import basic
from toolkit.score.significance import Interval
from toolkit.storage.lines import has_other_space

_NOTABLE = 0.3
"""Share of substitutions above which case and punctuation are remarked upon."""
_LONGEST = 2000
"""Longest word, in characters, that is compared in Unicode's normal form: many marks on a letter
take quadratic time."""


def orthography_notes(utterances: Sequence[UtteranceScore]) -> Iterator[str]:
    """Yield notes about errors between texts that look alike; nothing is changed by them."""
    wrong = [utterance for utterance in utterances if utterance.errors]
    spaced = [u for u in wrong if has_other_space(u.ref_text) or has_other_space(u.hyp_text)]
    if spaced:
        yield (
            f"{len(spaced)} utterances with errors have white space inside words, first "
            f"{spaced[0].id}: as in Kaldi and sclite, words end only at ASCII white space, not at "
            "other spaces, such as no-break spaces (--normalise basic splits there)"
        )
    composed = [u for u in wrong if _composed(u.ref_text) == _composed(u.hyp_text)]
    characters = bool(wrong) and UNIT_NAMES[wrong[0].unit] == "character"
    pairs = [] if characters else [pair for u in wrong for pair in _substitutions(u)]
    alike = sum(_composed(ref) == _composed(hyp) for ref, hyp in pairs)
    advice = "bring both texts into one form, such as NFC (--normalise basic does)"
    if characters and composed:
        yield (
            f"{len(composed)} utterances have errors only because of Unicode's normal form "
            f"(composed or decomposed letters), first {composed[0].id}: {advice}"
        )
    if alike:
        yield (
            f"{alike} of {len(pairs)} substitutions differ only in Unicode's normal form (composed "
            f"or decomposed letters): {advice}"
        )
    alike = sum(_composed(ref) != _composed(hyp) and _is_mended(ref, hyp) for ref, hyp in pairs)
    if alike > _NOTABLE * len(pairs):
        yield (
            f"{alike} of {len(pairs)} substitutions differ only in case or punctuation: normalise "
            "both texts in the same way (--normalise basic)"
        )


def _substitutions(utterance: UtteranceScore) -> Iterator[tuple[str, str]]:
    """Yield the substituted words of an utterance: reference, hypothesis."""
    if utterance.substitutions:
        for ref, hyp in utterance.pairs:
            if ref is not None and hyp is not None and ref != hyp:
                yield ref, hyp


def _composed(text: str) -> str:
    """Return a text with composed letters (Unicode's NFC)."""
    if text.isascii():
        return text
    words = text.split(" ")
    return " ".join(w if len(w) > _LONGEST else unicodedata.normalize("NFC", w) for w in words)


def _is_mended(ref: str, hyp: str) -> bool:
    """Return whether the rules `basic` make two different words equal.

    They do not help with `10,000` and `10000`, since they write `10 000`.
    """
    return len(ref) <= _LONGEST and len(hyp) <= _LONGEST and _basic(ref) == _basic(hyp)


@lru_cache(maxsize=1 << 16)
def _basic(word: str) -> str:
    """Apply the rules `basic` to a word."""
    return basic(word)


Missing = Literal["all", "present", "strict"]
"""How a reference without a hypothesis is scored, named as in `compute-wer --mode`: as deletions
(all), not at all (present), or an error is raised (strict). sclite silently leaves it out."""


class ScoreError(ToolkitError):
    """Transcripts that cannot be scored."""


@dataclass(frozen=True)
class Score:
    """The error rate of a set of utterances."""

    unit: Unit
    utterances: tuple[UtteranceScore, ...]
    """One entry per reference, in the references' order."""
    unmatched_hypotheses: tuple[str, ...] = ()
    """Ids of hypotheses without a reference, sorted; they are not scored."""
    skipped: tuple[str, ...] = ()
    """Ids of references left out because they have no hypothesis (mode "present")."""
    weights: Weights = "kaldi"
    """Name of the costs that alignments minimise."""
    normaliser: str = "none"
    """Name of the normalisation of both texts."""

    @cached_property
    def insertions(self) -> int:
        """Number of insertions."""
        return sum(utterance.insertions for utterance in self.utterances)

    @cached_property
    def deletions(self) -> int:
        """Number of deletions."""
        return sum(utterance.deletions for utterance in self.utterances)

    @cached_property
    def substitutions(self) -> int:
        """Number of substitutions."""
        return sum(utterance.substitutions for utterance in self.utterances)

    @cached_property
    def ref_units(self) -> int:
        """Number of reference units."""
        return sum(utterance.ref_units for utterance in self.utterances)

    @property
    def errors(self) -> int:
        """Sum of insertions, deletions and substitutions."""
        return self.insertions + self.deletions + self.substitutions

    @property
    def percent(self) -> float:
        """Errors per 100 reference units; may exceed 100. Without any unit the divisor is 1, as in
        jiwer."""
        return 100.0 * self.errors / max(1, self.ref_units)

    @property
    def missing(self) -> tuple[str, ...]:
        """Ids of references without a hypothesis, scored or not."""
        return tuple(u.id for u in self.utterances if u.missing) + self.skipped

    @cached_property
    def correct(self) -> int:
        """Number of correct units."""
        return sum(utterance.correct for utterance in self.utterances)

    @property
    def wrong_utterances(self) -> int:
        """Number of utterances with at least one error."""
        return sum(utterance.errors > 0 for utterance in self.utterances)

    @cached_property
    def resampled(self) -> significance.Unit:
        """The unit of resampling: speakers if all are known and there are enough of them.

        With speakers, the interval holds for speakers like these; with utterances, only for these
        very speakers.
        """
        speakers = {utterance.speaker for utterance in self.utterances}
        enough = len(speakers) >= significance.MIN_SPEAKERS
        return "speaker" if enough and None not in speakers else "utterance"

    def by_speaker(self) -> dict[str, "Score"]:
        """Return the score of each speaker, sorted by name, leaving out unknown speakers."""
        parts: dict[str, list[UtteranceScore]] = {}
        for utterance in self.utterances:
            if utterance.speaker is not None:
                parts.setdefault(utterance.speaker, []).append(utterance)
        return {
            name: replace(self, utterances=tuple(parts[name]), unmatched_hypotheses=(), skipped=())
            for name in sorted(parts)
        }

    def blocks(self, *counts: Sequence[int]) -> np.ndarray:
        """Sum counts of the utterances by unit of resampling.

        Args:
          counts: K sequences with an entry per utterance.

        Returns:
          [B, K] integers for B speakers or utterances in the order of their names; all copies of a
          sentence count as one utterance.
        """
        by_speaker = self.resampled == "speaker"
        names = [(u.speaker or "") if by_speaker else u.block for u in self.utterances]
        return significance.block_sums(names, np.asarray(counts, dtype=np.int64).T)

    @cached_property
    def interval(self) -> Interval | None:
        """The confidence interval of `percent`; None for one utterance or without any unit.

        It does not depend on the order of the utterances or on the state of any random generator.
        """
        blocks = self.blocks(
            [utterance.errors for utterance in self.utterances],
            [utterance.ref_units for utterance in self.utterances],
        )
        if len(blocks) < 2 or not self.ref_units:
            return None
        rates = significance.percent(*significance.resample(blocks).T)
        return significance.interval_of(rates, self.resampled, len(blocks))

    def interval_remarks(self) -> list[str]:
        """Return how the interval was computed, and warnings about its validity."""
        if self.interval is None:
            few = "one utterance alone has" if self.ref_units else "empty references have"
            return [f"{few} no confidence interval"]
        units = self.interval.units
        remarks = [
            f"the interval is that of {significance.REPLICATES} bootstrap resamples of "
            f"{units} {self.resampled}s"
        ]
        speakers = len(self.by_speaker())
        if speakers and self.resampled == "utterance":
            remarks.append(
                f"{speakers} speakers are fewer than the {significance.MIN_SPEAKERS} needed for "
                "resampling: the interval holds for these speakers only"
            )
        if units < significance.FEW_UNITS:
            remarks.append(
                f"{units} {self.resampled}s are few: expect the interval to be too narrow"
            )
        if self.ref_units and not self.errors:
            remarks.append(
                "without any error the bootstrap finds no variance: if errors were independent, "
                # The rule of three: no event in n trials bounds its probability by 3 / n.
                f"the rate would be below {min(100.0, 300 / self.ref_units):.3g} % with 95 % "
                "confidence"
            )
        return remarks

    def summary(self, interval: bool = False) -> str:
        """Return the three lines of Kaldi's `compute-wer --mode=all`, byte for byte.

        The first line begins with the name of the rate, such as `%CER`, and has `[PARTIAL]` after
        the counts when hypotheses are missing. With `interval` it ends in the confidence interval.
        """
        # The format of compute-wer, which scripts parse.
        partial = " [PARTIAL]" if self.missing else ""
        between = f" {self.interval}" if interval and self.interval else ""
        wrong, number = self.wrong_utterances, len(self.utterances)
        return (
            f"%{RATE_NAMES[self.unit]} {_kaldi_percent(self.errors, self.ref_units)} "
            f"[ {self.errors} / {self.ref_units}, {self.insertions} ins, "
            f"{self.deletions} del, {self.substitutions} sub ]{partial}{between}\n"
            f"%SER {_kaldi_percent(wrong, number)} [ {wrong} / {number} ]\n"
            f"Scored {number} sentences, {len(self.missing)} not present in hyp."
        )

    @property
    def method(self) -> str:
        """Normaliser and alignment weights, as a line to print below the summary."""
        return f"Normaliser: {self.normaliser}; alignment weights: {self.weights}"

    def remarks(self) -> list[str]:
        """Return warnings about the validity of the error rate; empty if there are none."""
        remarks = []
        if self.missing:
            number = len(self.utterances) + len(self.skipped)
            treatment = "are left out" if self.skipped else "count as deletions"
            remarks.append(
                f"{len(self.missing)} of {number} utterances have no hypothesis and {treatment}, "
                f"first {self.missing[0]}"
            )
        if self.unmatched_hypotheses:
            number = len(self.unmatched_hypotheses)
            subject = "1 hypothesis has" if number == 1 else f"{number} hypotheses have"
            scored = "is not scored" if number == 1 else "are not scored"
            remarks.append(
                f"{subject} no reference and {scored}, first {self.unmatched_hypotheses[0]}"
            )
        silent = [u for u in self.utterances if not u.ref_text and u.hyp_text]
        if not self.ref_units:
            number = len(self.utterances)
            them = "the only reference is" if number == 1 else f"all {number} references are"
            remarks.append(f"{them} empty: each insertion counts as 100 %")
        elif silent:
            remarks.append(
                f"{len(silent)} references are empty but have a hypothesis, all words of which are "
                f"insertions, first {silent[0].id}"
            )
        return [*remarks, *orthography_notes(self.utterances)]


@gc_disabled()
def score(
    refs: Mapping[str, str],
    hyps: Mapping[str, str],
    unit: Unit = "word",
    speakers: Mapping[str, str] | None = None,
    weights: Weights = "kaldi",
    mode: Missing = "all",
    normalise: Callable[[str], str] | None = None,
    normaliser: str = "none",
    sources: Mapping[str, str] | None = None,
    aligner: Aligner = align_texts,
) -> Score:
    """Score hypotheses against references.

    Args:
      refs: transcript by utterance id.
      hyps: hypothesis by utterance id.
      unit: what is compared, see `toolkit.score.alignment.Unit`.
      speakers: speaker by utterance id, for tables by speaker, and for intervals that account for
        the dependence of a speaker's utterances.
      weights: the costs that alignments minimise, see `toolkit.score.alignment.Weights`.
      mode: how references without a hypothesis are scored, see `Missing`.
      normalise: applied to every reference and hypothesis.
      normaliser: name of that normalisation.
      sources: for each utterance id, the sentence that the utterance is a copy of, for intervals
        and tests that account for the dependence of copies.
      aligner: aligns the texts; by default it takes words as they are.

    Raises:
      ScoreError: there is no reference or no common id; an utterance has no speaker; in mode
        "strict", an utterance has no hypothesis; or two texts are too long for the memory.
    """
    if unit not in UNITS:
        raise ValueError(f"unit must be one of {', '.join(UNITS)}, not {unit!r}")
    _check_ids(refs, hyps, speakers, mode)
    ids = [utterance for utterance in refs if mode == "all" or utterance in hyps]
    ref_given = [refs[utterance] for utterance in ids]
    hyp_given = [hyps.get(utterance, "") for utterance in ids]
    try:
        # All texts at once: the aligner may compare in parallel or in a compiled kernel.
        aligned = aligner(ids, ref_given, hyp_given, unit, weights, normalise or str)
    except MemoryError as error:
        longest = max(range(len(ids)), key=lambda n: len(ref_given[n]) * len(hyp_given[n]))
        raise ScoreError(
            f"the memory is too small to align the hypothesis of {ids[longest]} "
            f"({len(hyp_given[longest]):,} characters) with its reference "
            f"({len(ref_given[longest]):,}): split the utterance, or score a CTM file against an "
            "STM file that divides it into segments"
        ) from error
    return Score(
        unit=unit,
        utterances=tuple(
            UtteranceScore(
                id=utterance,
                ref_text=ref,
                hyp_text=hyp,
                steps=steps,
                unit=unit,
                missing=utterance not in hyps,
                speaker=None if speakers is None else speakers[utterance],
                source=None if sources is None else sources[utterance],
                alternatives=refs[utterance] if has_alternatives else "",
            )
            for utterance, ref, hyp, steps, has_alternatives in zip(ids, *aligned, strict=True)
        ),
        unmatched_hypotheses=tuple(sorted(set(hyps) - set(refs))),
        skipped=tuple(u for u in refs if u not in hyps) if mode == "present" else (),
        weights=weights,
        normaliser=normaliser,
    )


def _check_ids(
    refs: Mapping[str, str],
    hyps: Mapping[str, str],
    speakers: Mapping[str, str] | None,
    mode: Missing,
) -> None:
    """Raise a `ScoreError` if references, hypotheses and speakers do not belong together."""
    if not refs:
        raise ScoreError("there is no reference to score against: the reference set is empty")
    absent = [utterance for utterance in refs if utterance not in hyps]
    if len(absent) == len(refs) and (hyps or mode != "all"):
        hyp = repr(next(iter(hyps))) if hyps else "none"
        raise ScoreError(
            f"references and hypotheses have no utterance id in common: the first ids are "
            f"{next(iter(refs))!r} and {hyp}. Check that both are of the same split and were read "
            "in the right format. To score against a recipe's references, transcribe the recipe's "
            "data/test.jsonl: the hypotheses then have the same ids"
        )
    if absent and mode == "strict":
        raise ScoreError(
            f"{len(absent)} of {len(refs)} utterances have no hypothesis, first {absent[0]!r}: "
            "--mode all counts them as deletions, --mode present leaves them out"
        )
    with_speaker = refs if speakers is None else speakers
    silent = [utterance for utterance in refs if utterance not in with_speaker]
    if silent:
        raise ScoreError(
            f"{len(silent)} of {len(refs)} utterances have no speaker, first {silent[0]!r}: give "
            "the speaker of each utterance, or of none"
        )


def pool(scores: Mapping[str, Score]) -> Score:
    """Pool the scores of several test sets, such as the test splits of two corpora.

    Args:
      scores: score by name of the test set. Utterance ids become `name/id`; speakers and sources
        keep their names, and those of the same name in two sets count as the same.

    Raises:
      ScoreError: there is no score, or they differ in units, weights or normalisation.
    """
    kinds = {(score.unit, score.weights, score.normaliser) for score in scores.values()}
    if len(kinds) != 1:
        raise ScoreError(
            "pooling needs at least one score, and all scores must have the same unit, weights and "
            "normaliser"
        )
    return replace(
        next(iter(scores.values())),
        utterances=tuple(
            replace(utterance, id=f"{name}/{utterance.id}")
            for name, score in scores.items()
            for utterance in score.utterances
        ),
        unmatched_hypotheses=tuple(
            f"{name}/{id}" for name, score in scores.items() for id in score.unmatched_hypotheses
        ),
        skipped=tuple(f"{name}/{id}" for name, score in scores.items() for id in score.skipped),
    )


def _kaldi_percent(errors: int, total: int) -> str:
    """Format errors in percent as Kaldi does, which rounds counts and quotient to float32."""
    # compute-wer.cc divides `BaseFloat` values; double precision may round the last digit
    # differently.
    single = struct.Struct("f")
    errors, total = (single.unpack(single.pack(n))[0] for n in (errors, max(1, total)))
    return f"{single.unpack(single.pack(100.0 * errors / total))[0]:.2f}"


@dataclass(frozen=True)
class ErrorRates:
    """Error rates of a set of utterances, in percent.

    e(x, y) is the edit distance of hypotheses x and references y in characters.
    """

    wer: float
    """(I + D + S) / W over all utterances, by jiwer; may exceed 100."""
    cer: float
    """e(x, y) / max(|x|, |y|) over all utterances: the paper's CER, never above 100."""
    cer_usual: float
    """e(x, y) / |y| over all utterances: the usual CER, never below the paper's."""
    ser: float
    """Share of utterances with at least one error."""


def error_rates(refs: Mapping[str, str], hyps: Mapping[str, str]) -> ErrorRates:
    """Score hypotheses as in the paper's benchmark (A25).

    A missing hypothesis counts as an empty one. The WER of jiwer is checked against that of
    `toolkit.score.wer`.

    Args:
      refs: transcript by utterance id.
      hyps: hypothesis by utterance id.

    Raises:
      ScoreError: as for `score`, or the two word error rates differ.
    """
    words, characters = score(refs, hyps), score(refs, hyps, unit="char-with-spaces")
    wer = jiwer_percent(refs, hyps)
    if abs(wer - words.percent) > 1e-6:
        raise ScoreError(
            f"jiwer computes a word error rate of {wer} %, but toolkit.score.wer computes "
            f"{words.percent} %: one of the two is wrong; compare with `toolkit score`"
        )
    return ErrorRates(
        wer=wer,
        cer=percent_of_longer(characters),
        cer_usual=characters.percent,
        ser=100.0 * words.wrong_utterances / len(words.utterances),
    )


def percent_of_longer(score: Score) -> float:
    """Return the errors in percent of max(|x|, |y|) units, hypothesis x and reference y (A25).

    Numerator and denominator are each summed over the utterances, so that long utterances weigh
    more, as in the word error rate; for a single utterance it is the paper's equation.
    """
    # |x| is the number of steps without the deletions, |y| that without the insertions.
    longer = sum(
        max(utterance.ref_units, len(utterance.steps) - utterance.deletions)
        for utterance in score.utterances
    )
    return 100.0 * score.errors / max(1, longer)


def jiwer_percent(refs: Mapping[str, str], hyps: Mapping[str, str]) -> float:
    """Return the word error rate in percent by jiwer (A25); words are separated by white space."""
    import jiwer

    ids = list(refs)
    return 100.0 * jiwer.wer(
        [" ".join(refs[id].split()) for id in ids],
        [" ".join(hyps.get(id, "").split()) for id in ids],
    )
