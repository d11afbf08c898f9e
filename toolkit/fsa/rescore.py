"""Lattice rescoring: replaces the language model scores on all paths by another model's."""

import math
from dataclasses import dataclass

import numpy as np

from toolkit.errors import ToolkitError
from toolkit.fsa.config import RescoreLimits
from toolkit.fsa.fst import Lattice
from toolkit.fsa.lattice import LatticeTraversal, backward_scores, prune
from toolkit.lang.ngram import BackoffModel
from toolkit.lang.tables import END, SymbolTable

_LN10 = math.log(10.0)


class RescoreError(ToolkitError):
    """Raised for a lattice that cannot be rescored."""


class Grammar:
    """An n-gram model as a deterministic on-demand acceptor of word ids (Kaldi's ConstArpaLm).

    A state is the longest context that affects later scores: a context that no n-gram continues and
    that has no back-off weight is shortened to its suffix. Scores are natural logarithms.

    Args:
      model: the n-grams.
      words: the recogniser's words. A word that the model lacks is scored as <UNK>; if the model
        lacks <UNK> too, the word is impossible.
    """

    def __init__(self, model: BackoffModel, words: SymbolTable) -> None:
        self._model = model
        ids = np.full(max(words[word] for word in words) + 1, -1, dtype=np.int64)
        symbols = list(words)
        ids[[words[symbol] for symbol in symbols]] = model.word_ids(symbols)
        self._ids = ids
        self._matters = []
        for order in range(1, max(model.order, 2)):
            level = model.levels[order - 1]
            matters = np.zeros(len(level.word) + 1, dtype=bool)  # the last: no context
            if order < model.order:
                matters[:-1] = level.backoff != 0
                matters[model.levels[order].context] = True
            self._matters.append(matters)
        sizes = [len(level.word) for level in model.levels]
        self._first = np.concatenate([[0], np.cumsum(sizes)])
        self.num_states = int(self._first[-1]) + 1

    def start(self) -> np.ndarray:
        """State after <s>: int64 [1, contexts]."""
        return self._cut(self._model.start(1))

    def step(self, states: np.ndarray, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Read a word in each of N states.

        Args:
          states: [N, contexts] int64. Column k is the number of the context of k + 1 words among
            the model's n-grams of this length, or -1.
          words: [N] the recogniser's word ids.

        Returns:
          Scores float64 [N] and the states reached. The score of an impossible word is that of
          10^-99.
        """
        ids = self._ids[words]
        listed = ids >= 0
        if listed.all():
            scores, next_states = self._model.step(states, ids)
        else:
            scores, next_states = self._model.step(states, np.where(listed, ids, 0))
            scores, next_states = (
                np.where(listed, scores, -99.0),
                np.where(listed[:, None], next_states, -1),
            )
        return scores * _LN10, self._cut(next_states)

    def end(self, states: np.ndarray) -> np.ndarray:
        """Return the scores of ending in each of the states."""
        ids = np.full(len(states), self._model.ids[END])
        return self._model.step(states, ids)[0] * _LN10

    def state_ids(self, states: np.ndarray) -> np.ndarray:
        """Return a distinct number below `num_states` for each state [N, contexts]."""
        numbers = np.full(len(states), self.num_states - 1)
        for level in range(states.shape[1]):  # the longest listed context names the state
            listed = states[:, level] >= 0
            numbers[listed] = self._first[level] + states[listed, level]
        return numbers

    def _cut(self, states: np.ndarray) -> np.ndarray:
        """Replace contexts that do not affect later scores by -1, in place."""
        for level, matters in enumerate(self._matters):
            column = states[:, level]
            column[~matters[column]] = -1
        return states


@dataclass(frozen=True)
class RescoredLattice:
    """A lattice with the scores of another language model."""

    lattice: Lattice
    """Its frames, words and arcs of the graph are those of the lattice it was made from."""
    cut: bool
    """Whether `RescoreLimits.max_active` was reached: worse paths are missing then."""


def rescore_lattice(lattice: Lattice, grammar: Grammar, limits: RescoreLimits) -> RescoredLattice:
    """Replace the language model scores on all paths of a lattice.

    The lattice is composed with the grammar frame by frame, which splits its states by the
    grammar's states. The grammar's graph is never built: memory grows with the n-grams alone. The
    order of work is that of Kaldi's lattice-lmrescore-const-arpa, with one difference: the lattice
    is not determinised first, so that it keeps its frames and alternative pronunciations.

    Args:
      lattice: from `search_lattice` with a graph that has `lm_scores`.
      grammar: the new language model.
      limits: beam and number of pairs to keep.

    Raises:
      RescoreError: no path is left; only scores beyond the range of float32 can cause this.
    """
    return _Composition(lattice, grammar, limits).run()


class _Composition:
    """Pairs of lattice and grammar states, from the first frame to the last.

    A graph charges the language model's score of a word as early as it can, before the arc that
    writes the word: within a tree of pronunciations it charges the score of the best word below.
    The new model's score comes only with the word. To make the pairs of a frame comparable, the old
    model's charges since the last word (`pending`) count in a pair's score until the next word is
    written.
    """

    def __init__(self, lattice: Lattice, grammar: Grammar, limits: RescoreLimits) -> None:
        self._lattice, self._grammar, self._limits = lattice, grammar, limits
        self._traversal = LatticeTraversal(lattice)
        self._old = lattice.lm_scores.astype(np.float64)
        self._scores = lattice.scores.astype(np.float64) - self._old
        self._settles = self._traversal.final | lattice.writes  # arcs whose words are all known
        self._backward = backward_scores(lattice)
        self._cut = False

    def run(self) -> RescoredLattice:
        """Compose frame by frame, pruning the pairs of each frame."""
        # The N pairs of a frame: lattice states [N], grammar states [N, contexts], best scores [N]
        # and pending charges [N].
        states, grammar_states = np.zeros(1, dtype=np.int64), self._grammar.start()
        forward, pending = np.zeros(1), np.zeros(1)
        num_pairs, frames = 1, []  # pairs numbered so far; the arcs of each frame
        while True:
            # 1. Follow all arcs out of the pairs; the grammar reads the words on them.
            source, arc = self._traversal.out_arcs(states)
            if not len(arc):
                break
            next_grammar_states, lm = self._read(grammar_states[source], arc)
            total = forward[source] + self._scores[arc] + lm
            # What the old model has charged for a word that is not written yet.
            new_pending = np.where(self._settles[arc], 0.0, pending[source] + self._old[arc])
            target = self._traversal.target[arc]
            # 2. Merge arcs into the same pair: the best score counts, and the highest charge.
            pair = target * self._grammar.num_states + self._grammar.state_ids(next_grammar_states)
            _, first_arc, pair_index = np.unique(pair, return_index=True, return_inverse=True)
            best, best_pending = np.full((2, len(first_arc)), -np.inf)
            np.maximum.at(best, pair_index, total)
            np.maximum.at(best_pending, pair_index, new_pending)
            # 3. Prune pairs by score so far, pending charge, and the old model's best score to the
            # end.
            within = self._within_limits(best + best_pending + self._backward[target[first_arc]])
            # 4. Keep the arcs into pairs that stay, with the pairs' numbers in the composition.
            pair_number = np.where(within, np.cumsum(within) - 1, -1)[pair_index]
            survives = pair_number >= 0
            first = num_pairs - len(states)
            pair_source, pair_target = first + source[survives], num_pairs + pair_number[survives]
            frames.append((pair_source, pair_target, arc[survives], lm[survives]))
            first_arc = first_arc[within]
            states, grammar_states = target[first_arc], next_grammar_states[first_arc]
            forward, pending = best[within], best_pending[within]
            num_pairs += len(states)
        source, target, arc, lm = map(np.concatenate, zip(*frames, strict=True))
        return RescoredLattice(self._assemble(source, target, arc, lm), self._cut)

    def _read(self, grammar_states: np.ndarray, arc: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return grammar states after the words of arcs, and the words' scores."""
        lm = np.zeros(len(arc))
        for positions, words in self._traversal.output_words(arc):
            scores, grammar_states[positions] = self._grammar.step(grammar_states[positions], words)
            lm[positions] += scores
        final = np.flatnonzero(self._traversal.final[arc])
        if len(final):
            lm[final] += self._grammar.end(grammar_states[final])
            grammar_states[final] = -1
        return grammar_states, lm

    def _within_limits(self, values: np.ndarray) -> np.ndarray:
        """Return which pairs survive the beam and the limit on their number."""
        within = values >= values.max() - self._limits.beam
        if within.sum() > self._limits.max_active:
            self._cut = True
            order = np.argsort(-values, kind="stable")
            within = np.zeros(len(values), dtype=bool)
            within[order[: self._limits.max_active]] = True
        return within

    def _assemble(
        self, source: np.ndarray, target: np.ndarray, arc: np.ndarray, lm: np.ndarray
    ) -> Lattice:
        """Return the lattice without dead ends and paths outside the beam."""
        composed = self._lattice.select_arcs(
            arc,
            source=source.astype(np.int32),
            target=target.astype(np.int32),
            scores=(self._scores[arc] + lm).astype(np.float32),
            lm_scores=lm.astype(np.float32),
        )
        pruned = prune(composed, self._limits.beam)
        if pruned is None:
            raise RescoreError(
                "rescoring leaves no path: the graph or the language model has scores beyond the "
                "range of float32; make both again"
            )
        return pruned
