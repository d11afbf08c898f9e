"""Error rates as the co-processor paper defines them (A25), beside the usual ones."""

from collections.abc import Mapping
from dataclasses import dataclass

from toolkit.score.wer import Score, ScoreError, score


@dataclass(frozen=True)
class ErrorRates:
    """What is measured of a model on a set of utterances, all in percent."""

    wer: float
    """(I + D + S) / W over all utterances, by jiwer; may pass 100."""
    cer: float
    """e(x, y) / max(|x|, |y|) over all utterances: the paper's, never above 100."""
    cer_usual: float
    """e(x, y) / |y|, y being the references: the usual one, never below the paper's."""
    ser: float
    """Utterances with at least one error."""


def error_rates(refs: Mapping[str, str], hyps: Mapping[str, str]) -> ErrorRates:
    """Score hypotheses as the benchmark does (A25).

    A reference without a hypothesis counts as if nothing had been recognised. jiwer's count of
    word errors is held against that of `toolkit.score.wer`.

    Args:
      refs: transcript by utterance id.
      hyps: hypothesis by utterance id.

    Raises:
      ScoreError: as `score`, or the two counts of word errors differ.
    """
    words, characters = score(refs, hyps), score(refs, hyps, unit="char")
    wer = jiwer_percent(refs, hyps)
    if abs(wer - words.percent) > 1e-6:
        raise ScoreError(
            f"jiwer counts a word error rate of {wer} %, toolkit.score.wer {words.percent} %: one "
            "of the two is wrong; compare with `toolkit score`"
        )
    return ErrorRates(
        wer=wer,
        cer=percent_of_longer(characters),
        cer_usual=characters.percent,
        ser=100.0 * words.wrong_utterances / len(words.utterances),
    )


def percent_of_longer(score: Score) -> float:
    """Errors in percent of max(|x|, |y|) units, hypothesis x and reference y (A25, CER).

    Numerator and denominator are each summed over the utterances, so that a long utterance weighs
    more, as it does in the word error rate; of a single utterance it is the paper's equation.
    """
    longer = sum(
        max(utterance.ref_units, len(utterance.steps) - utterance.deletions)
        for utterance in score.utterances
    )
    return 100.0 * score.errors / max(1, longer)


def jiwer_percent(refs: Mapping[str, str], hyps: Mapping[str, str]) -> float:
    """Word error rate in percent by jiwer (A25), words being what white space separates."""
    import jiwer

    ids = list(refs)
    return 100.0 * jiwer.wer(
        [" ".join(refs[id].split()) for id in ids],
        [" ".join(hyps.get(id, "").split()) for id in ids],
    )
