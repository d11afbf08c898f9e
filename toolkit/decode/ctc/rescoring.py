"""Rescoring of the dictionary search's n-best lists with a neural language model."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from toolkit.decode.ctc.lists import candidates_of, listing, missing_words, weights_of
from toolkit.decode.ctc.system import SplitData
from toolkit.decode.ctc.words import WordsDecoder
from toolkit.decode.rescoring.candidates import Candidates
from toolkit.decode.rescoring.lists import (
    NeuralRescoringConfig,
    RescoredLists,
    score_lists,
    tune_lists,
)
from toolkit.decode.tuning import Grid
from toolkit.fsa.lattice import Weights
from toolkit.lang.ngram.backoff import BackoffModel
from toolkit.models.neural_lm import NeuralLm
from toolkit.processes.workers import processor_seconds

SCALES = (2 / 3, 0.8, 1.0, 1.25, 1.5)
"""Acoustic scales that are tried, as factors of that of the search with the n-grams alone."""
PENALTIES = (-1.0, -0.5, 0.0, 0.5, 1.0)
"""Word penalties that are tried, beside that of the search."""


def rescore_ctc(
    splits: Mapping[str, SplitData],
    tune_on: Sequence[str],
    decoder: WordsDecoder,
    lm: BackoffModel,
    model: NeuralLm,
    config: NeuralRescoringConfig,
    out: Path,
    jobs: int,
    named: Mapping[str, str],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float]:
    """Search every split for n-best lists, rescore them with tuned weights, and score.

    Nothing is kept of a call that was interrupted: on the demo one takes four seconds.

    Args:
      splits: the splits, by name.
      tune_on: those on which the weights are tuned.
      decoder: the tuned search with the n-grams.
      lm: the n-grams.
      model: the neural language model.
      config: lists and weights.
      out: the folder that gets `weights.json`, `grid.tsv`, `rows.json` and, by split, hypotheses
        and reports.
      jobs: threads.
      named: `system`, `lm` and `command` of the results.
      progress: called with (splits scored, splits).

    Returns:
      WER in percent by split, and the weight of the neural model.
    """
    before, missing = weights_of(decoder.config), missing_words(lm, decoder.dictionary.words)

    @cache
    def lists(split: str, scale: float) -> RescoredLists:
        data, weights = splits[split], Weights(scale, before.word_penalty)
        searched = decoder.configured(listing(decoder.config, weights, config.count))
        start = processor_seconds()
        found = searched.decode_many(list(data.posteriors.values()), jobs)
        candidates = {
            utterance: candidates_of(hypotheses, lm, searched.config, missing)
            for utterance, hypotheses in zip(data.posteriors, found, strict=True)
        }
        without = [utterance for utterance in data.references if utterance not in candidates]
        candidates |= {utterance: Candidates((), (), (), ()) for utterance in without}
        spent = processor_seconds() - start
        return RescoredLists.of(candidates, model, data.seconds, spent)

    grid = Grid(
        tuple(factor * before.acoustic_scale for factor in SCALES),
        tuple(before.word_penalty + more for more in PENALTIES),
    )
    references = {split: data.references for split, data in splits.items()}
    speakers = {split: data.speakers for split, data in splits.items()}
    best = tune_lists(lists, references, tune_on, before, grid, None, config, out)
    return score_lists(lists, best, references, speakers, out, named, progress)
