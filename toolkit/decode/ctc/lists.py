"""N-best lists of the dictionary search, whose scores are apart, to be rescored.

The score of a text, see `WordsConfig`, divided by the weight w of the language model, is the sum
that `toolkit.decode.rescoring` weighs: with the acoustic scale 1 / w and the word penalty
word_bonus / w, without a score of the graph.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from toolkit.decode.ctc.decoder import Hypothesis
from toolkit.decode.ctc.words import WordsConfig
from toolkit.decode.rescoring.candidates import Candidates
from toolkit.decode.rescoring.rescorer import Rescorer
from toolkit.fsa.lattice import Weights
from toolkit.lang.ngram.backoff import BackoffModel


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
    hypotheses: Sequence[Hypothesis], lm: BackoffModel, config: WordsConfig, missing: int = 0
) -> Candidates:
    """Take the scores of an n-best list apart.

    Args:
      hypotheses: from `WordsDecoder.decode`, in a mode with n-grams.
      lm: the n-grams of the search.
      config: the search.
      missing: `missing_words` of its dictionary, which share the probability of <UNK>.
    """
    texts = tuple(one.text for one in hypotheses)
    sentences = [text.split() for text in texts]
    unknown = np.array([missing_words(lm, words) for words in sentences])
    language = math.log(10) * lm.logprobs(sentences) - math.log(max(1, missing)) * unknown
    bonus = config.word_bonus * np.array([len(words) for words in sentences])
    acoustic = np.array([one.score for one in hypotheses]) - config.lm_weight * language - bonus
    none = (0.0,) * len(texts)
    return Candidates(texts, tuple(acoustic.tolist()), none, tuple(language.tolist()))


def missing_words(lm: BackoffModel, words: Collection[str]) -> int:
    """Return how many words of a dictionary n-grams lack."""
    return sum(word not in lm.ids for word in words)


@dataclass(frozen=True)
class CtcRescorer:
    """Chooses from the n-best list of a search."""

    rescorer: Rescorer
    """The neural model and the weights."""
    lm: BackoffModel
    """The n-grams of the search."""
    config: WordsConfig
    """The search."""
    missing: int = 0
    """See `candidates_of`."""

    def best(self, hypotheses: Sequence[Hypothesis]) -> str:
        """Return the best text."""
        return self.rescorer.best(candidates_of(hypotheses, self.lm, self.config, self.missing))
