"""N-best lists of the dictionary search, rescored with a neural language model.

The score of a text, see `WordsConfig`, divided by the weight w of the language model, is the sum
that `toolkit.decode.rescoring` weighs: with the acoustic scale 1 / w and the word penalty
word_bonus / w, without a score of the graph.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from toolkit.decode.ctc.decoder import Hypothesis
from toolkit.decode.ctc.system import SplitData
from toolkit.decode.ctc.words import WordsConfig, WordsDecoder
from toolkit.decode.rescoring.candidates import Candidates
from toolkit.decode.rescoring.lists import (
    NeuralRescoringConfig,
    RescoredLists,
    score_lists,
    tune_lists,
)
from toolkit.decode.rescoring.rescorer import Rescorer
from toolkit.decode.tuning import Grid
from toolkit.fsa.lattice import Weights
from toolkit.lang.ngram.backoff import BackoffModel
from toolkit.models.neural_lm import NeuralLm
from toolkit.processes.workers import processor_seconds

SCALES = (2 / 3, 0.8, 1.0, 1.25, 1.5)
"""Acoustic scales that are tried, as factors of that of the search with the n-grams alone."""
PENALTIES = (-1.0, -0.5, 0.0, 0.5, 1.0)
"""Word penalties that are tried, beside that of the search."""


def weights_of(config: WordsConfig) -> Weights:
    """Return the weights of a search whose language model has a weight."""
    return Weights(1 / config.lm_weight, config.word_bonus / config.lm_weight)


def listing(config: WordsConfig, weights: Weights, count: int) -> WordsConfig:
    """Return the settings of a search for lists of `count` texts with these weights."""
    scale, penalty = weights.acoustic_scale, weights.word_penalty
    width = max(config.width, count)
    weighted = replace(config, lm_weight=1 / scale, word_bonus=penalty / scale)
    return replace(weighted, width=width, nbest=count)


def candidates_of(
    hypotheses: Sequence[Hypothesis], lm: BackoffModel, config: WordsConfig
) -> Candidates:
    """Take the scores of an n-best list apart.

    Args:
      hypotheses: from `WordsDecoder.decode`.
      lm: the n-grams of the search.
      config: the search.
    """
    texts = tuple(one.text for one in hypotheses)
    sentences = [text.split() for text in texts]
    language = math.log(10) * lm.logprobs(sentences)
    bonus = config.word_bonus * np.array([len(words) for words in sentences])
    acoustic = np.array([one.score for one in hypotheses]) - config.lm_weight * language - bonus
    none = (0.0,) * len(texts)
    return Candidates(texts, tuple(acoustic.tolist()), none, tuple(language.tolist()))


@dataclass(frozen=True)
class CtcRescorer:
    """Chooses from the n-best list of a search."""

    rescorer: Rescorer
    """The neural model and the weights."""
    lm: BackoffModel
    """The n-grams of the search."""
    config: WordsConfig
    """The search."""

    def best(self, hypotheses: Sequence[Hypothesis]) -> str:
        """Return the best text."""
        return self.rescorer.best(candidates_of(hypotheses, self.lm, self.config))


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
    before = weights_of(decoder.config)

    @cache
    def lists(split: str, scale: float) -> RescoredLists:
        data, weights = splits[split], Weights(scale, before.word_penalty)
        searched = decoder.configured(listing(decoder.config, weights, config.count))
        start = processor_seconds()
        found = searched.decode_many(list(data.posteriors.values()), jobs)
        candidates = {
            utterance: candidates_of(hypotheses, lm, searched.config)
            for utterance, hypotheses in zip(data.posteriors, found, strict=True)
        }
        spent = processor_seconds() - start
        return RescoredLists.of(candidates, model, data.seconds, spent)

    grid = Grid(
        tuple(factor * before.acoustic_scale for factor in SCALES),
        tuple(before.word_penalty + more for more in PENALTIES),
    )
    references = {split: data.references for split, data in splits.items()}
    speakers = {split: data.speakers for split, data in splits.items()}
    best = tune_lists(lists, references, tune_on, before, grid, config, out)
    return score_lists(lists, best, references, speakers, out, named, progress)
