"""The dictionary as a prefix tree over output units, and n-grams as an automaton over its words."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from toolkit.decode.ctc.kernels import CONTEXT, NGRAM, NODE, WORD
from toolkit.errors import ToolkitError
from toolkit.kernels import njit
from toolkit.lang.ngram import LOG_ZERO, BackoffModel
from toolkit.lang.tables import END, START, UNKNOWN
from toolkit.lang.units import Units


class CtcDecodeError(ToolkitError):
    """Raised for posteriors, units or a dictionary that cannot be used for decoding."""


@dataclass(frozen=True)
class Tree:
    """A prefix tree of the words' spellings.

    Words are numbered in the order of their symbols, so that the words below a node have
    consecutive numbers.
    """

    nodes: np.ndarray
    """[N] NODE: the root first; the children of a node are adjacent."""
    letters: np.ndarray
    """The concatenated symbols of all words, int32."""
    begin: np.ndarray
    """[W + 1] int32 for W words: where each word begins in `letters`, then where the last ends."""
    between: tuple[int, ...]
    """The symbols that separate words; any number of them may begin or end a text."""

    @property
    def joined(self) -> bool:
        """Whether words follow each other without a symbol between them."""
        return not self.between


@dataclass(frozen=True)
class Dictionary:
    """Words and the prefix tree of their spellings."""

    words: tuple[str, ...]
    """The words, by number."""
    tree: Tree
    """The prefix tree of their spellings."""
    unwritable: tuple[str, ...] = ()
    """Words left out because the units cannot write them."""

    @classmethod
    def of(cls, words: Collection[str], units: Units, between: str = " ") -> "Dictionary":
        """Make a dictionary by spelling words in a model's output units.

        If the units are characters, the separator stands between two equal letters, as in training
        texts (A16). If the units are word pieces, they segment each word. Words with the same
        symbols cannot be distinguished in decoding; the alphabetically first of them is kept.

        Args:
          words: the dictionary, such as the training words.
          units: those of the model.
          between: the characters that may stand between words (Scheidl's non-word characters).
            If the units, such as word pieces, have none of these characters, words follow each
            other directly.

        Raises:
          CtcDecodeError: no word can be written, a word contains a character of `between`, or
            word boundaries are ambiguous in units without such a character.
        """
        spellings: list[tuple[tuple[int, ...], str]] = []
        unwritable = []
        for word in sorted(set(words)):
            try:
                symbols = tuple(units.encode(word))
            except ToolkitError:
                symbols = ()
            if symbols:
                spellings.append((symbols, word))
            else:
                unwritable.append(word)
        spellings.sort()
        entries = [
            entry for entry, last in zip(spellings, [None, *spellings], strict=False)
            if last is None or entry[0] != last[0]
        ]  # fmt: skip
        if not entries:
            raise CtcDecodeError(
                f"none of the dictionary's {len(unwritable)} words can be written in the output "
                "units"
            )
        separators = [i for i, symbol in enumerate(units.symbols) if symbol in between]
        for symbols, word in entries:
            if not set(symbols).isdisjoint(separators):
                raise CtcDecodeError(
                    f"the dictionary word {word!r} contains a character that separates words"
                )
        if not separators:
            inner = {symbol for symbols, _ in entries for symbol in symbols[1:]}
            ambiguous = sorted({symbols[0] for symbols, _ in entries} & inner)
            if ambiguous:
                unit = units.symbols[ambiguous[0]]
                raise CtcDecodeError(
                    f"the unit {unit!r} occurs both at the beginning of words and inside words:"
                    " without a separator, word boundaries are ambiguous"
                )
        tree = _tree([symbols for symbols, _ in entries], separators)
        return cls(tuple(word for _, word in entries), tree, tuple(unwritable))

    @classmethod
    def free(cls, units: Units) -> "Dictionary":
        """Return a dictionary without words: any symbol may follow any other."""
        symbols = [i for i in range(units.size) if i != units.blank]
        return cls((), _tree([], symbols))


def _tree(words: list[tuple[int, ...]], between: list[int]) -> Tree:
    """Make the prefix tree of spelled words."""
    begin = np.cumsum([0, *map(len, words)]).astype(np.int32)
    letters = np.array([symbol for word in words for symbol in word], dtype=np.int32)
    nodes = np.zeros(len(letters) + 1, NODE)
    count = _grow(letters, begin, nodes)
    return Tree(
        nodes=nodes[:count].copy(),
        letters=letters,
        begin=begin,
        between=tuple(between),
    )


@njit(cache=True)
def _grow(letters: np.ndarray, begin: np.ndarray, nodes: np.ndarray) -> int:
    """Fill in the nodes of the prefix tree of sorted words; related nodes are close in memory.

    Returns:
      The number of nodes.
    """
    nodes[0].symbol, nodes[0].high = -1, len(begin) - 1
    waiting = [0]
    count = 1
    while len(waiting) > 0:
        node = waiting.pop()
        depth, low, high = nodes[node].depth, nodes[node].low, nodes[node].high
        word = low if low < high and begin[low + 1] - begin[low] == depth else -1
        nodes[node].word, nodes[node].first = word, count
        following = low + (word >= 0)
        while following < high:
            symbol = letters[begin[following] + depth]
            nodes[count].symbol, nodes[count].depth = symbol, depth + 1
            nodes[count].low = following
            while following < high and letters[begin[following] + depth] == symbol:
                following += 1
            nodes[count].high = following
            count += 1
        nodes[node].last = count
        for child in range(count - 1, nodes[node].first - 1, -1):
            waiting.append(child)
    return count


_LN10 = math.log(10.0)
IMPOSSIBLE = LOG_ZERO * _LN10
"""Natural logarithm used for probability 0."""


@dataclass(frozen=True)
class Ngrams:
    """An n-gram model as an automaton over contexts, in arrays for `toolkit.decode.ctc.kernels`.

    State 0 is the empty context, in which every word has an n-gram; n-gram e of an order below the
    highest is also state e + 1. Words are those of the dictionary, 0 ... W - 1, then <UNK>, </s>,
    <s>. Probabilities are natural logarithms.
    """

    contexts: np.ndarray
    """[S + 1] CONTEXT: S states, then an entry that marks the end of the last state's n-grams."""
    ngrams: np.ndarray
    """[E] NGRAM, sorted by context state, then by word."""
    words: np.ndarray
    """[W + 1] WORD: W words, then an entry that holds the last sum of shares (`unknown`)."""
    start: int = 0
    """The state after <s>."""

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The arrays in the form that the compiled search takes."""
        return self.contexts, self.ngrams, self.words

    @classmethod
    def none(cls) -> "Ngrams":
        """Return placeholder arrays for a search without a language model."""
        return cls(np.zeros(1, CONTEXT), np.zeros(1, NGRAM), np.zeros(1, WORD))

    @classmethod
    def of(cls, model: BackoffModel, words: Sequence[str]) -> "Ngrams":
        """Restrict an n-gram model to the words of a dictionary.

        Words that the model lacks share the probability of its <UNK> evenly; without <UNK> they
        are impossible.

        Args:
          model: the n-grams.
          words: the dictionary, without duplicates.
        """
        arcs = _Arcs(model.restrict(words), words)
        states, entries = len(arcs.below), np.arange(len(arcs.word))
        # An arc leads to the context of its words or, for the highest order, of their suffix.
        target = np.where(entries + 1 < states, entries + 1, arcs.suffix)
        first = np.searchsorted(arcs.source, np.arange(states + 1))
        # A context without n-grams and without a back-off weight equals its back-off context.
        leads_on = (np.diff(first) > 0) | (arcs.backoff != 0)
        for _ in range(model.order - 1):
            target = np.where(leads_on[target], target, arcs.below[target])

        contexts = np.zeros(states + 1, CONTEXT)
        contexts["first"] = first
        contexts["below"][:-1], contexts["backoff"][:-1] = arcs.below, arcs.backoff
        end, start = arcs.num_words - 2, arcs.num_words - 1
        _, contexts["end"][:-1] = arcs.read(np.arange(states), np.full(states, end))

        ngrams = np.zeros(len(arcs.word), NGRAM)
        ngrams["word"], ngrams["target"], ngrams["logprob"] = arcs.word, target, arcs.logprob
        # Running sums over the dictionary words that have an n-gram in a context: of P(w | context)
        # and of P(w | back-off context). `mass` uses both to sum over a range of words.
        _, lower = arcs.read(arcs.below[arcs.source], arcs.word)
        of_words = arcs.word < len(words)
        ngrams["sum"] = _running_sums(np.exp(arcs.logprob) * of_words, first)
        ngrams["lower"] = _running_sums(np.exp(lower) * of_words, first)

        # Each of the n words that the model lacks has 1/n of the probability of <UNK>. Word i has
        # the share unknown[i + 1] - unknown[i]: 1/n, or 0 for words of the model.
        is_known = np.array([word in model.ids for word in words], dtype=bool)
        unknown = np.append(0, np.cumsum(~is_known))
        named = np.zeros(len(words) + 1, WORD)
        named["name"] = np.append(np.where(is_known, np.arange(len(words)), len(words)), 0)
        named["unknown"] = unknown / max(1, unknown[-1])
        return cls(contexts, ngrams, named, int(target[start]))


class _Arcs:
    """N-grams as arcs between context states, sorted by state, then by last word.

    State 0 is the empty context; state i + 1 is the context that consists of the words of arc i, if
    longer n-grams begin with these words. Every word has a unigram, an impossible one if the model
    lacks the word; so arc w is the unigram of word w.

    Attributes:
      num_words: number of words, <UNK>, </s> and <s> included.
      source, word, logprob: [A] context state, last word and ln P of each arc.
      suffix: [A] the state of an arc's words without the first one.
      below, backoff: [S] back-off state and ln back-off weight of each context state.

    Args:
      model: the n-grams.
      words: the dictionary, numbered from 0; <UNK>, </s> and <s> follow.
    """

    def __init__(self, model: BackoffModel, words: Sequence[str]) -> None:
        number = {word: i for i, word in enumerate([*words, UNKNOWN, END, START])}
        renumber = np.array([number[word] for word in model.vocabulary])
        self.num_words = len(number)
        self.source, self.word = np.zeros(self.num_words, np.int64), np.arange(self.num_words)
        self.logprob, backoff = np.full(self.num_words, IMPOSSIBLE), np.zeros(self.num_words)
        self.logprob[renumber] = model.levels[0].logprob * _LN10
        backoff[renumber] = model.levels[0].backoff * _LN10
        self.backoff = np.zeros(1)
        self.below, self.suffix = np.zeros(1, np.int64), np.zeros(self.num_words, np.int64)
        state = renumber + 1  # of each n-gram of the order below
        for level in model.levels[1:]:
            # The n-grams of the order below are contexts, too.
            self.backoff = np.append(self.backoff, backoff)
            self.below = np.append(self.below, self.suffix[len(self.below) - 1 :])
            source, word = state[level.context], renumber[level.word]
            order = np.lexsort((word, source))
            state = np.empty(len(order), np.int64)
            state[order] = np.arange(len(self.word) + 1, len(self.word) + len(order) + 1)
            source, word = source[order], word[order]
            suffix = self.read(self.below[source], word)[0] + 1
            backoff = level.backoff[order] * _LN10
            self.source, self.word = np.append(self.source, source), np.append(self.word, word)
            self.logprob = np.append(self.logprob, level.logprob[order] * _LN10)
            self.suffix = np.append(self.suffix, suffix)

    def read(self, states: np.ndarray, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Look up one word in each state, with back-off.

        Returns:
          For each pair: the number of the n-gram, from the given state or else from the next state
          of its back-off chain that has one; and the log-probability, back-off weights included.
        """
        keys = self.source * self.num_words + self.word
        ngram, logprob = np.full(len(words), -1), np.zeros(len(words))
        while (ngram < 0).any():
            key = states * self.num_words + words
            entry = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
            has_ngram, is_open = keys[entry] == key, ngram < 0
            ngram = np.where(is_open & has_ngram, entry, ngram)
            logprob += np.where(
                is_open, np.where(has_ngram, self.logprob[entry], self.backoff[states]), 0
            )
            states = self.below[states]
        return ngram, logprob


@njit(cache=True)
def _running_sums(values: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return the cumulative sums [E] of values [E] within each group; first[g] begins group g."""
    sums = values.copy()
    for group in range(len(first) - 1):
        for i in range(first[group] + 1, first[group + 1]):
            sums[i] += sums[i - 1]
    return sums
