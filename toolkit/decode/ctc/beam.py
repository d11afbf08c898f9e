"""CTC beam search: runs the compiled search and reads the n-best label sequences from it."""

import math
from dataclasses import asdict, dataclass

import numpy as np

from toolkit.decode.ctc.arrays import NO_LM, ROOT, SEARCH
from toolkit.decode.ctc.dictionary import Tree
from toolkit.decode.ctc.kernels import search
from toolkit.decode.ctc.ngrams import Ngrams
from toolkit.decode.ctc.search_state import SearchState


@dataclass(frozen=True)
class Options:
    """Settings of the search; see `SEARCH` for the fields."""

    blank: int
    space: int
    width: int
    margin: float
    symbols: int
    mode: int = NO_LM
    weight: float = 0.0
    bonus: float = 0.0
    complete: bool = False


class BeamSearch:
    """Prefix beam search with given dictionary and language model; may be shared by threads.

    Args:
      tree: the dictionary.
      ngrams: the language model; None in the mode `NO_LM`.
      options: settings of the search.
    """

    def __init__(self, tree: Tree, ngrams: Ngrams | None, options: Options) -> None:
        self._tree, self._options = tree, options
        self._ngrams = Ngrams.none() if ngrams is None else ngrams
        self._settings = np.zeros(1, SEARCH)
        for name, value in asdict(options).items():
            self._settings[name] = value
        self._settings["joined"], self._settings["between"] = tree.joined, len(tree.between)

    def run(self, log_probs: np.ndarray, count: int) -> list[tuple[list[int], float]]:
        """Return the `count` best label sequences with different texts, and their scores.

        The probabilities of sequences that differ only in spaces are summed. If no prefix of the
        last beam is a complete text, the result is the best prefix without its unfinished word,
        with the score -inf.

        Args:
          log_probs: [T, C] float32 without NaN.
          count: number of sequences; there may be fewer, and none if all paths are impossible.
        """
        state = self.begin(len(log_probs))
        self.advance(state, log_probs)
        return self.best(state, count)

    def begin(self, frames: int) -> SearchState:
        """Return the state before the first frame, with room for `frames` frames."""
        begin = self._options.space, self._ngrams.start
        return SearchState.new(self._settings, self._tree.between, begin, frames)

    def advance(self, state: SearchState, log_probs: np.ndarray) -> None:
        """Search the next frames [t, C] of an utterance, float32 without NaN.

        However an utterance is divided, its last beam is the same.
        """
        state.reserve(len(log_probs))
        search(
            log_probs, self._tree.nodes, self._ngrams.arrays, state.beams, state.trie, state.table,
            state.candidates, state.symbols(log_probs.shape[1]), state.settings,
        )  # fmt: skip

    def likeliest(self, state: SearchState) -> list[int]:
        """Return the labels of the best prefix so far, without its unfinished word."""
        beam = state.beam
        if not len(beam):
            return []
        prefixes = state.trie[beam["node"]]
        best = int((beam["total"] + prefixes["fixed"] + prefixes["ahead"]).argmax())
        return self._labels(state.trie, int(beam["node"][best]), -1)

    def best(self, state: SearchState, count: int) -> list[tuple[list[int], float]]:
        """Return what `run` does, of the frames searched so far."""
        beam, trie = state.beam, state.trie
        if not len(beam):
            return []
        nodes, prefixes = beam["node"], trie[beam["node"]]
        word, scores = self._end(prefixes, beam["total"])
        whole = np.flatnonzero(scores > -math.inf)
        if not len(whole):
            return [(self.likeliest(state), -math.inf)]
        text = self._reading(trie, nodes[whole])
        _, first, group = np.unique(text, return_index=True, return_inverse=True)
        sums = np.full(len(first), -math.inf)
        np.logaddexp.at(sums, group, scores[whole])
        best = np.argsort(-sums, kind="stable")[:count]
        return [
            (self._labels(trie, int(nodes[i]), int(word[i])), score)
            for i, score in zip(whole[first[best]], sums[best].tolist(), strict=True)
        ]

    def _end(self, prefixes: np.ndarray, total: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return, for each prefix, the word that ends there (-1: none) and its score as a complete
        text (-inf: it is not one)."""
        word = self._last_word(prefixes["place"])
        ends, between = word >= 0, prefixes["place"] == ROOT
        scores = total + np.where(ends, prefixes["ended"], prefixes["fixed"])
        if self._options.mode != NO_LM:
            state = np.where(ends, prefixes["end_state"], prefixes["state"])
            scores += self._options.weight * self._ngrams.contexts["end"][state]
        return word, np.where(ends | between, scores, -math.inf)

    def _last_word(self, place: np.ndarray) -> np.ndarray:
        """Return the words that end in nodes of the tree, or with `complete` the only words that
        can; -1: none."""
        here = self._tree.nodes[place]
        only = (here["depth"] > 0) & (here["high"] == here["low"] + 1) & self._options.complete
        return np.where((here["word"] < 0) & only, here["low"], here["word"])

    def _reading(self, trie: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """Return a number for the text of each prefix: equal texts have equal numbers.

        It is made of the node where the last word begins and of that word.
        """
        prefixes = trie[nodes]
        behind = (prefixes["symbol"] == self._options.space) & (nodes > 0)
        nodes = np.where(behind, prefixes["parent"], nodes)
        place = trie["place"][nodes]
        word, depth = self._last_word(place), self._tree.nodes["depth"][place]
        for k in range(depth.max(initial=0)):
            nodes = np.where(depth > k, trie["parent"][nodes], nodes)
        return nodes.astype(np.int64) * len(self._tree.begin) + word + 1

    def _labels(self, trie: np.ndarray, node: int, word: int) -> list[int]:
        """Return a prefix's labels, its unfinished word completed to `word` or dropped (-1)."""
        tree, path = self._tree, []
        while node > 0:
            path.append(node)
            node = int(trie["parent"][node])
        labels = trie["symbol"][path[::-1]].tolist()
        place = tree.nodes[int(trie["place"][path[0]])] if path else tree.nodes[ROOT]
        if place["word"] < 0:
            depth = int(place["depth"])
            if word < 0:
                return labels[: len(labels) - depth]
            labels += tree.letters[tree.begin[word] + depth : tree.begin[word + 1]].tolist()
        return labels
