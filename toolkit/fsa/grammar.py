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
    """Raised for an ARPA file that cannot be turned into a graph."""


def grammar_acceptor(arpa: Path, words_table: Path | SymbolTable) -> Fst:
    """Return G, the acceptor of an ARPA file's n-gram model.

    As Kaldi's arpa2fst with `--disambig-symbol=#0`: a state per context, back-off arcs that read
    `#0` and write nothing, <s> as the start and </s> as the end, contexts without n-grams skipped.
    If an n-gram's suffix is not listed, its longest listed suffix is used.

    Args:
      arpa: the n-gram model.
      words_table: `words.txt`, or its content; n-grams with other words are left out, as in
        arpa2fst.

    Raises:
      GrammarError: the ARPA file cannot be read or used; names the file.
    """
    is_table = isinstance(words_table, SymbolTable)
    table = words_table if is_table else SymbolTable.read(words_table)
    try:
        model = read_arpa(arpa)
    except ArpaError as error:
        raise GrammarError(f"cannot make a grammar from an ARPA file: {error}") from error
    ids = np.array([table.get(word, -1) for word in model.vocabulary])
    backoff = table["#0"]
    for reserved in (EPSILON, backoff):
        if reserved in ids:
            raise GrammarError(
                f"{arpa} contains n-grams with the reserved symbol {table.symbol(reserved)!r}: "
                "train the language model without this symbol"
            )
    fst = connect(_Contexts(model, ids).acceptor(ids, backoff))
    symbols = {table.get(symbol, -1) for symbol in (START, END, UNKNOWN)}
    if set(np.unique(fst.words).tolist()) <= symbols:
        word = max({*model.vocabulary} - {START, END, UNKNOWN}, default="")
        raise GrammarError(
            f"{arpa}: none of its words, such as {word!r}, is in "
            f"{'the lexicon' if is_table else words_table}: use the same spelling of words in both"
        )
    return fst


class _Contexts:
    """The n-grams of a model as nodes: node 0 is the empty n-gram, the others follow by length.

    Args:
      model: the n-grams.
      ids: [V] the id of each word of the model in the graph, -1 for words to leave out.
    """

    def __init__(self, model: BackoffModel, ids: np.ndarray) -> None:
        self.start, self.end = model.ids[START], model.ids[END]
        levels = model.levels
        self.begin = np.cumsum([1, *(len(level.word) for level in levels)])
        self.word = np.concatenate([[-1], *(level.word for level in levels)])
        contexts = [
            begin + level.context for begin, level in zip([0, *self.begin], levels, strict=False)
        ]
        self.context = np.concatenate([[0], *contexts])
        scale = math.log(10)
        self.score = np.concatenate([[0.0], *(level.logprob * scale for level in levels)])
        self.weight = np.concatenate([[0.0], *(level.backoff * scale for level in levels)])
        if len(levels) == model.order:
            self.weight[self.begin[-2] :] = 0.0  # nothing follows the longest n-grams
        self.included = self._included(ids)
        self.suffix = self._suffixes(model)

    def _level(self, n: int) -> slice:
        """Return the range of the nodes of one level."""
        return slice(self.begin[n], self.begin[n + 1])

    def _included(self, ids: np.ndarray) -> np.ndarray:
        """Which n-grams have only listed words, <s> only first and </s> only last: [nodes] bool."""
        listed = np.append(ids >= 0, True)
        listed[[self.start, self.end]] = True
        included = listed[self.word]
        # Level by level: an n-gram needs its context, which must not end the sentence.
        for n in range(1, len(self.begin) - 1):
            level = self._level(n)
            context = self.context[level]
            included[level] &= included[context] & (self.word[context] != self.end)
            included[level] &= self.word[level] != self.start
        return included

    def _suffixes(self, model: BackoffModel) -> np.ndarray:
        """Longest listed proper suffix of each n-gram: [nodes]."""
        suffix = np.zeros(len(self.word), np.int64)
        for n in range(1, len(self.begin) - 1):
            level = self._level(n)
            # The suffix of "context word" is "suffix of context, word" if that is listed. Otherwise
            # ever shorter suffixes of the context are tried, in the end none: the word alone.
            word, shorter = self.word[level], suffix[self.context[level]]
            suffixes = np.full(len(word), -1)
            while (suffixes < 0).any():
                # Contexts of k words are looked up among the n-grams of k + 1 words.
                for k in range(n):
                    low, high = (self.begin[k - 1] if k else 0), self.begin[k]
                    rows = np.flatnonzero((suffixes < 0) & (shorter >= low) & (shorter < high))
                    position = model.find(k, shorter[rows] - low, word[rows])
                    suffixes[rows] = np.where(position < 0, -1, position + self.begin[k])
                shorter = suffix[shorter]
            suffix[level] = suffixes
        return suffix

    def acceptor(self, ids: np.ndarray, backoff: int) -> Fst:
        """Return the acceptor; `backoff` is the label of its back-off arcs."""
        # 1. States: the contexts of n-grams, the empty context, and <s>, the start.
        reads = self.included & (self.word != self.start)
        reads[0] = False
        is_state = np.zeros(len(self.word), bool)
        is_state[self.context[reads]] = True
        first = 1 + self.start
        is_state[[0, first]] = True
        # 2. The state that an n-gram leads to (its longest suffix that is a state), and the
        # back-off weights of the contexts passed over on the way.
        reached, passed = np.arange(len(self.word)), np.zeros(len(self.word))
        for n in range(len(self.begin) - 1):
            level = np.arange(self.begin[n], self.begin[n + 1])
            level = level[~is_state[level]]
            shorter = self.suffix[level]
            reached[level] = reached[shorter]
            passed[level] = self.weight[level] + passed[shorter]
        # 3. Arcs: n-grams of words, back-off of every state but the empty context, and </s>.
        ends = np.flatnonzero(reads & (self.word == self.end))
        ngrams = np.flatnonzero(reads & (self.word != self.end))
        states = np.flatnonzero(is_state)
        contexts = states[states > 0]
        # The start is numbered 0.
        number = np.full(len(self.word), -1, np.int64)
        number[np.append(first, states[states != first])] = np.arange(len(states))
        labels = ids[self.word[ngrams]]
        shorter = self.suffix[contexts]
        source = number[np.concatenate([self.context[ngrams], contexts, self.context[ends]])]
        target = number[np.append(reached[ngrams], reached[shorter])]
        target = np.append(target, np.full(len(ends), len(states)))
        backing = np.full(len(contexts), backoff)
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
