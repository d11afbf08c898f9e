"""G: an n-gram language model as an acceptor of words."""

import math
from pathlib import Path

import numpy as np

from toolkit.errors import ToolkitError
from toolkit.fsa.fst import EPSILON, FINAL, Fst, connect
from toolkit.lang.arpa import ArpaError, read_arpa
from toolkit.lang.ngram import BackoffModel
from toolkit.lang.tables import END, START, UNKNOWN, SymbolTable


class GrammarError(ToolkitError):
    """An ARPA file that cannot be turned into a graph."""


def grammar_acceptor(arpa: Path, words_table: Path | SymbolTable) -> Fst:
    """G from an ARPA file.

    As Kaldi's arpa2fst with `--disambig-symbol=#0`: a state per context, back-off arcs that read
    `#0` and write nothing, <s> as the start and </s> as the end, contexts without n-grams passed
    over. Where an n-gram's own suffix is not listed, the longest one that is takes its place.

    Args:
      arpa: the n-gram model.
      words_table: `words.txt`, or its content; n-grams with other words are left out, as arpa2fst
        does.

    Raises:
      GrammarError: naming the file.
    """
    is_table = isinstance(words_table, SymbolTable)
    table = words_table if is_table else SymbolTable.read(words_table)
    try:
        model = read_arpa(arpa)
    except ArpaError as error:
        raise GrammarError(f"no grammar can be made of this file: {error}") from error
    ids = np.array([table.get(word, -1) for word in model.vocabulary])
    backoff = table["#0"]
    for reserved in (EPSILON, backoff):
        if reserved in ids:
            raise GrammarError(
                f"{arpa} has n-grams of {table.symbol(reserved)!r}, which is no word; train it"
                " without"
            )
    fst = connect(_Contexts(model, ids).acceptor(ids, backoff))
    symbols = {table.get(symbol, -1) for symbol in (START, END, UNKNOWN)}
    if set(np.unique(fst.words).tolist()) <= symbols:
        word = max({*model.vocabulary} - {START, END, UNKNOWN}, default="")
        raise GrammarError(
            f"{arpa}: no n-gram is left: none of its words, such as {word!r}, is in "
            f"{'the lexicon' if is_table else words_table}; spell words alike in both"
        )
    return fst


class _Contexts:
    """The n-grams of a model as nodes: 0 is the empty one, then those of each level in turn.

    Args:
      model: the n-grams.
      ids: [V] of its words, -1 for those to leave out.
    """

    def __init__(self, model: BackoffModel, ids: np.ndarray) -> None:
        self.start, self.end = model.ids[START], model.ids[END]
        levels = model.levels
        self.begin = np.cumsum([1, *(len(level.word) for level in levels)])
        self.word = np.concatenate([[-1], *(level.word for level in levels)])
        before = [
            begin + level.context for begin, level in zip([0, *self.begin], levels, strict=False)
        ]
        self.context = np.concatenate([[0], *before])
        scale = math.log(10)
        self.score = np.concatenate([[0.0], *(level.logprob * scale for level in levels)])
        self.weight = np.concatenate([[0.0], *(level.backoff * scale for level in levels)])
        if len(levels) == model.order:
            self.weight[self.begin[-2] :] = 0.0  # nothing follows the longest n-grams
        self.kept = self._kept(ids)
        self.suffix = self._suffixes(model)

    def _level(self, n: int) -> slice:
        return slice(self.begin[n], self.begin[n + 1])

    def _kept(self, ids: np.ndarray) -> np.ndarray:
        """[nodes] bool: n-grams of listed words, <s> only in front and </s> only at the end."""
        listed = np.append(ids >= 0, True)
        listed[[self.start, self.end]] = True
        kept = listed[self.word]
        for n in range(1, len(self.begin) - 1):
            level = self._level(n)
            before = self.context[level]
            kept[level] &= kept[before] & (self.word[before] != self.end)
            kept[level] &= self.word[level] != self.start
        return kept

    def _suffixes(self, model: BackoffModel) -> np.ndarray:
        """[nodes] the longest listed n-gram that ends like each and is shorter."""
        suffix = np.zeros(len(self.word), np.int64)
        for n in range(1, len(self.begin) - 1):
            level = self._level(n)
            word, shorter = self.word[level], suffix[self.context[level]]
            suffixes = np.full(len(word), -1)
            while (suffixes < 0).any():
                for k in range(n):
                    low, high = (self.begin[k - 1] if k else 0), self.begin[k]
                    rows = np.flatnonzero((suffixes < 0) & (shorter >= low) & (shorter < high))
                    at = model.find(k, shorter[rows] - low, word[rows])
                    suffixes[rows] = np.where(at < 0, -1, at + self.begin[k])
                shorter = suffix[shorter]
            suffix[level] = suffixes
        return suffix

    def acceptor(self, ids: np.ndarray, backoff: int) -> Fst:
        """The acceptor; `backoff` is the label of its back-off arcs."""
        reads = self.kept & (self.word != self.start)
        reads[0] = False
        state = np.zeros(len(self.word), bool)
        state[self.context[reads]] = True
        first = 1 + self.start
        state[[0, first]] = True
        # Where an n-gram leads to, and the weights of the contexts passed over on the way.
        reached, passed = np.arange(len(self.word)), np.zeros(len(self.word))
        for n in range(len(self.begin) - 1):
            level = np.arange(self.begin[n], self.begin[n + 1])
            level = level[~state[level]]
            shorter = self.suffix[level]
            reached[level] = reached[shorter]
            passed[level] = self.weight[level] + passed[shorter]
        ends = np.flatnonzero(reads & (self.word == self.end))
        ngrams = np.flatnonzero(reads & (self.word != self.end))
        states = np.flatnonzero(state)
        contexts = states[states > 0]
        number = np.full(len(self.word), -1, np.int64)
        number[np.append(first, states[states != first])] = np.arange(len(states))
        labels = ids[self.word[ngrams]]
        shorter = self.suffix[contexts]
        ending, backing = np.full(len(ends), len(states)), np.full(len(contexts), backoff)
        source = number[np.concatenate([self.context[ngrams], contexts, self.context[ends]])]
        target = np.append(number[np.append(reached[ngrams], reached[shorter])], ending)
        read = np.concatenate([labels, backing, np.full(len(ends), FINAL)])
        weights = self.weight[contexts] + passed[shorter]
        scores = np.concatenate([self.score[ngrams] + passed[ngrams], weights, self.score[ends]])
        writes = np.append(np.ones(len(ngrams), np.int64), np.zeros(len(read) - len(ngrams)))
        order = np.lexsort((target, read, source))
        return Fst(
            source=source[order].astype(np.int32),
            target=target[order].astype(np.int32),
            labels=read[order].astype(np.int32),
            scores=scores[order].astype(np.float32),
            splits=np.append(0, np.cumsum(writes[order])).astype(np.int32),
            words=read[order][writes[order] > 0].astype(np.int32),
        )
