"""Word and character error rates as the co-processor paper defines them (A25)."""

from collections.abc import Mapping
from dataclasses import dataclass

from toolkit.score.wer import Score, ScoreError, score


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
      ScoreError: as `score`, or the two word error rates differ.
    """
    words, characters = score(refs, hyps), score(refs, hyps, unit="char")
    wer = jiwer_percent(refs, hyps)
    if abs(wer - words.percent) > 1e-6:
        raise ScoreError(
            f"jiwer finds a word error rate of {wer} %, toolkit.score.wer {words.percent} %: one "
            "of the two is wrong; compare with `toolkit score`"
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
