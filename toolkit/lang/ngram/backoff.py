"""Back-off n-gram models as sorted arrays, queried for many words at once."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from toolkit.lang.tables import END, START, UNKNOWN

LOG_ZERO = -99.0
"""ARPA's log10 probability of impossible events, such as <s> after a word."""


@dataclass(frozen=True)
class Level:
    """The n-grams of one order, sorted by (context, word).

    `context[i]` is the index, in the level below, of the n-gram without its last word (0 at order
    1), `word[i]` the last word's id; `logprob` and `backoff` are log10. Arrays of one length.
    """

    context: np.ndarray
    word: np.ndarray
    logprob: np.ndarray
    backoff: np.ndarray


def check_levels(vocabulary: Sequence[str], levels: Sequence[Level]) -> None:
    """Check the arrays of a file before a `BackoffModel` is made of them.

    Raises:
      ValueError: levels that are not as described in `Level`.
    """
    below = 1
    if len(set(vocabulary)) != len(vocabulary) or not {START, END} <= set(vocabulary):
        raise ValueError("a vocabulary with a word twice, or without <s> and </s>")
    if not levels or not np.array_equal(levels[0].word, np.arange(len(vocabulary))):
        raise ValueError("the first level does not list every word")
    for level in levels:
        fields = (level.context, level.word, level.logprob, level.backoff)
        if any(field.ndim != 1 or len(field) != len(level.word) for field in fields):
            raise ValueError("arrays of different lengths")
        if any(field.dtype.kind not in kind for field, kind in zip(fields, "iiff", strict=True)):
            raise ValueError("arrays of other types")
        for ids, size in ((level.context, below), (level.word, len(vocabulary))):
            if len(ids) and not (ids.min() >= 0 and ids.max() < size):
                raise ValueError("an n-gram refers to a missing context or word")
        if (np.diff(level.context * np.int64(len(vocabulary)) + level.word) <= 0).any():
            raise ValueError("n-grams that are not sorted")
        if not (np.isfinite(level.logprob).all() and np.isfinite(level.backoff).all()):
            raise ValueError("probabilities that are no numbers")
        below = len(level.word)


class BackoffModel:
    """An n-gram model in back-off form: p(w|h) if hw is listed, else backoff(h) p(w|h').

    A word's id is its index in `vocabulary` and in the first level, which lists every word. A
    highest level without n-grams is dropped, unless there are back-off weights in the one below.
    """

    def __init__(self, vocabulary: Sequence[str], levels: Sequence[Level]) -> None:
        self.vocabulary = tuple(vocabulary)
        order = len(levels)
        while order and not len(levels[order - 1].word):
            if order > 1 and levels[order - 2].backoff.any():
                break  # the contexts below are left without n-grams, but their weights count
            order -= 1
        self.levels = tuple(levels[:order])
        self.ids = {word: index for index, word in enumerate(self.vocabulary)}
        self._keys = [level.context * len(self.vocabulary) + level.word for level in self.levels]

    @property
    def order(self) -> int:
        """Number of levels: the words in the longest n-gram, or one more, see above."""
        return len(self.levels)

    def find(self, level: int, context: np.ndarray, word: np.ndarray) -> np.ndarray:
        """Look up n-grams.

        Args:
          level: index of the level searched, from 0; one beyond the highest lists nothing.
          context: indices in the level below, [N]; -1 matches nothing.
          word: word ids, [N].

        Returns:
          Indices in the level, [N], -1 where the n-gram is not listed.
        """
        if level >= self.order or not len(self._keys[level]):
            return np.full(len(word), -1)
        keys = self._keys[level]
        query = context * len(self.vocabulary) + word
        index = np.minimum(np.searchsorted(keys, query), len(keys) - 1)
        return np.where((keys[index] == query) & (context >= 0), index, -1)

    def extend(
        self, level: int, context: np.ndarray, word: np.ndarray, shorter: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Refine log10 probabilities by one more word of context.

        Args:
          level: number of context words, from 1.
          context: index of the context in level `level - 1`, -1 where it is not listed, [N].
          word: word ids, [N].
          shorter: log10 probabilities given one context word less, [N].

        Returns:
          Indices of the n-grams in level `level` (-1: not listed) and log10 probabilities, [N].
        """
        found = self.find(level, context, word)
        backed = shorter + np.where(context >= 0, self.levels[level - 1].backoff[context], 0.0)
        if not len(self.levels[level].word):
            return found, backed
        return found, np.where(found >= 0, self.levels[level].logprob[found], backed)

    def start(self, count: int) -> np.ndarray:
        """Return `count` states after <s>: [N, order - 1], column k the last k + 1 words' index."""
        state = np.full((count, max(self.order - 1, 1)), -1, dtype=np.int64)
        state[:, 0] = self.ids[START]
        return state

    def step(self, state: np.ndarray, word: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Append one word to each state.

        Args:
          state: see `start`, [N, order - 1].
          word: word ids, [N].

        Returns:
          Log10 probabilities [N] and the new states.
        """
        logprob = self.levels[0].logprob[word]
        after = np.empty_like(state)
        after[:, 0] = word
        for k in range(1, self.order):
            found, logprob = self.extend(k, state[:, k - 1], word, logprob)
            if k < self.order - 1:
                after[:, k] = found
        return logprob, after

    def word_ids(self, words: Iterable[str]) -> list[int]:
        """Return ids, -1 for a word the model has neither by itself nor as <UNK>."""
        unknown = self.ids.get(UNKNOWN, -1)
        return [self.ids.get(word, unknown) for word in words]

    def token_logprobs(self, tokens: np.ndarray) -> np.ndarray:
        """Score running text.

        Args:
          tokens: word ids of all sentences, each `<s> ... </s>`, [T]; -1 for a word unknown to the
            model, which breaks the context and scores LOG_ZERO.

        Returns:
          Log10 probabilities, [T]; those of <s> are LOG_ZERO.
        """
        start = self.ids[START]
        unknown = tokens < 0
        word = np.where(unknown, 0, tokens)
        logprob = self.levels[0].logprob[word]
        last = np.where(unknown, -1, tokens)
        for k in range(1, self.order):
            context = np.concatenate([[-1], last[:-1]])
            context[tokens == start] = -1
            last, logprob = self.extend(k, context, word, logprob)
            last[unknown] = -1
        return np.where(unknown, LOG_ZERO, logprob)

    def logprob(self, sentence: Sequence[str]) -> float:
        """Return the log10 probability of `sentence` and its end."""
        return float(self.logprobs([sentence])[0])

    def logprobs(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        """Return the log10 probability of each of N sentences and its end, [N]."""
        tokens = [self.word_ids([START, *sentence, END]) for sentence in sentences]
        begin = np.cumsum([0, *map(len, tokens)])[:-1]
        scores = self.token_logprobs(np.array([x for one in tokens for x in one], dtype=np.int64))
        scores[begin] = 0.0
        return np.add.reduceat(scores, begin)

    def distribution(self, history: Sequence[str]) -> np.ndarray:
        """Return p(w | history) for every word of the vocabulary, [V]; <s> at the front of
        `history` stands for the sentence start."""
        state = np.full((1, max(self.order - 1, 1)), -1, dtype=np.int64)
        for index in self.word_ids(history):
            state = self.step(state, np.array([index]))[1]
        words = np.arange(len(self.vocabulary))
        logprob, _ = self.step(np.repeat(state, len(words), axis=0), words)
        return np.where(logprob <= LOG_ZERO, 0.0, 10.0**logprob)

    def restrict(self, words: Collection[str]) -> "BackoffModel":
        """Drop every n-gram with a word outside `words` (<s>, </s>, <UNK> stay); keep all weights.

        The probability of dropped n-grams is not redistributed, as in Kaldi's arpa2fst.
        """
        kept_words = {START, END, UNKNOWN, *words}
        keep = np.array([word in kept_words for word in self.vocabulary])
        kept_word = keep
        renumber = np.cumsum(kept_word) - 1
        levels = []
        below = np.zeros(1, dtype=np.int64)  # new index of each entry of the level below
        keep_below = np.ones(1, dtype=bool)
        for level in self.levels:
            keep = keep_below[level.context] & kept_word[level.word]
            levels.append(
                Level(
                    context=below[level.context[keep]],
                    word=renumber[level.word[keep]],
                    logprob=level.logprob[keep],
                    backoff=level.backoff[keep],
                )
            )
            keep_below, below = keep, np.cumsum(keep) - 1
        return BackoffModel([w for w in self.vocabulary if w in kept_words], levels)
