"""Word lattices: an arc is a word with its scores, a state is a point in time.

Pruned determinization turns a search's lattice into a word lattice, which keeps only the best path
of each word sequence, as in Kaldi (Povey et al., "Generating exact lattices in the WFST framework",
ICASSP 2012). Weights are pairs of graph and acoustic score, compared by their scaled sum. Kaldi
keeps alignments as strings; here only their lengths are kept, as the times of the states. The time
of a state is the end of the longest common prefix of the alignments of all paths into it.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from toolkit.fsa.arrays import ragged_ranges, ragged_rows, with_capacity
from toolkit.fsa.fst import Fst
from toolkit.fsa.lattice import ScoredLattice, backward_scores, best_arcs, forward_scores
from toolkit.kernels import njit

NO_WORD = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class WordLattice:
    """A word lattice with A arcs and S states; state 0 starts, the last state ends.

    Every arc leads to a state with a higher number, and arcs ascend by source.
    """

    source: np.ndarray
    """[A] int32."""
    target: np.ndarray
    """[A] int32."""
    words: np.ndarray
    """[A] int32 word ids; 0 means no word, as on arcs into the last state."""
    graph: np.ndarray
    """[A] float64, log-probabilities from the language model, pronunciations and HMMs."""
    acoustic: np.ndarray
    """[A] float64 log-likelihoods, not scaled."""
    times: np.ndarray
    """[S] float64 seconds; no arc leads back in time."""

    @property
    def num_arcs(self) -> int:
        """Number of arcs, A."""
        return len(self.source)

    @property
    def num_states(self) -> int:
        """Number of states, S."""
        return len(self.times)

    def scores(self, acoustic_scale: float, word_penalty: float = 0.0) -> np.ndarray:
        """Return the arcs' scores under weights: [A] float64; see `Weights`."""
        penalties = word_penalty * (self.words != NO_WORD)
        return self.graph + acoustic_scale * self.acoustic + penalties

    def best_path(self, scores: np.ndarray) -> np.ndarray:
        """Return the arcs of the path with the highest sum of `scores` [A]."""
        return best_arcs(self.source, self.target, scores, self.num_states)

    def best_words(self, scores: np.ndarray) -> list[int]:
        """Return the word ids of the best path."""
        words = self.words[self.best_path(scores)]
        return words[words != NO_WORD].tolist()

    @cached_property
    def _ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Source and target of each arc as int64."""
        return np.int64(self.source), np.int64(self.target)

    def total(self, scores: np.ndarray) -> float:
        """Return the log-sum-exp of the scores of all paths."""
        return float(_log_sums(*self._ends, scores, self.num_states)[-1])

    def incoming_arc_posteriors(self, scores: np.ndarray) -> np.ndarray:
        """Return each arc's share of the paths that enter its target: [A]."""
        sums = _log_sums(*self._ends, scores, self.num_states)
        return np.exp(sums[self.source] + scores - sums[self.target])


@njit(nogil=True, cache=True)
def _log_sums(
    source: np.ndarray, target: np.ndarray, scores: np.ndarray, states: int
) -> np.ndarray:  # pragma: no cover (compiled)
    """Return the log-sum-exp of the path scores into each state: [S]."""
    sums = np.full(states, -np.inf)
    sums[0] = 0.0
    for a in range(len(source)):
        sums[target[a]] = np.logaddexp(sums[target[a]], sums[source[a]] + scores[a])
    return sums


def union(lattices: Sequence[WordLattice]) -> WordLattice:
    """Return the union of lattices, with their start states and end states merged.

    After `normalise_to_weight` this is Kaldi's lattice-combine.
    """
    # The inner states of each lattice follow those of the lattices before it.
    counts = [lattice.num_states - 2 for lattice in lattices]
    offsets = np.cumsum([0, *counts])
    last = offsets[-1] + 1
    columns: dict[str, list[np.ndarray]] = {"source": [], "target": []}
    for lattice, offset in zip(lattices, offsets[:-1], strict=True):
        for name, states in columns.items():
            state = getattr(lattice, name)
            inner = np.where(state == lattice.num_states - 1, last, state + offset)
            states.append(np.where(state == 0, 0, inner))
    source, target = (np.concatenate(states).astype(np.int32) for states in columns.values())
    order = np.argsort(source, kind="stable")
    arc_columns = {
        name: np.concatenate([getattr(lattice, name) for lattice in lattices])[order]
        for name in ("words", "graph", "acoustic")
    }
    first = min(lattice.times[0] for lattice in lattices)
    end = max(lattice.times[-1] for lattice in lattices)
    times = np.concatenate([[first], *(lattice.times[1:-1] for lattice in lattices), [end]])
    return WordLattice(source=source[order], target=target[order], times=times, **arc_columns)


def normalise_to_weight(lattice: WordLattice, scores: np.ndarray, weight: float) -> WordLattice:
    """Return the lattice with posteriors as scores; all paths together have `weight`.

    Args:
      lattice: the lattice of an utterance.
      scores: [A] the scores of its arcs.
      weight: above 0.

    Returns:
      The lattice with all scores in `graph`, and zeros in `acoustic`.
    """
    graph = scores - np.where(lattice.source == 0, lattice.total(scores) - np.log(weight), 0.0)
    return replace(lattice, graph=graph, acoustic=np.zeros_like(graph))


MAX_ARCS = 20_000
"""Largest number of arcs of a determinised lattice; the worst arcs beyond it are dropped."""
ROUNDING = 1 / 1024
"""States whose scores differ by less than this are merged (Kaldi's delta)."""
Array = np.ndarray


def word_lattice(
    lattice: ScoredLattice, acoustic_scale: float, beam: float, frame_shift: float
) -> WordLattice:
    """Determinise an utterance's lattice by words.

    The result is exact within the beam: every word sequence whose best path is within the beam has
    the score of that path, as long as there are fewer than `MAX_ARCS` arcs.

    Args:
      lattice: from a search, rescored or not.
      acoustic_scale: decides which path of a word sequence is its best one.
      beam: how far a path's score may be below the best path's.
      frame_shift: seconds per frame.
    """
    arcs = _single_words(lattice)
    fst = arcs.weighted(acoustic_scale)
    backward = backward_scores(fst)
    worst = backward[0] - beam - 1e-6 * abs(backward[0])
    edges = _edges(arcs, fst, backward, worst)
    determinization = _Determinization(edges, backward, acoustic_scale, worst)
    determinization.run()
    # Every arc leads to a subset with a higher first node.
    states = np.argsort([subset.nodes[0] for subset in determinization.subsets], kind="stable")
    times = np.array([arcs.frames[subset.nodes].min() for subset in determinization.subsets])[
        states
    ]
    return _assembled(determinization.arcs, np.argsort(states), times * frame_shift)


def _assembled(
    arcs: list[tuple[int, int, int, float, float]], number: Array, times: Array
) -> WordLattice:
    """Return the lattice of the arcs whose targets lead to the end.

    Args:
      arcs: source, target, word, graph score and acoustic score of each.
      number: [S] the topological number of each source and target.
      times: [S] by topological number.
    """
    source, target = number[[arc[0] for arc in arcs]], number[[arc[1] for arc in arcs]]
    order = np.argsort(source, kind="stable")
    alive = np.zeros(len(times), bool)
    alive[-1] = True
    for a in order[::-1]:
        alive[source[a]] |= alive[target[a]]
    order = order[alive[target[order]]]
    renumbered = np.cumsum(alive) - 1
    words, graph, acoustic = (np.array([arc[i] for arc in arcs])[order] for i in (2, 3, 4))
    return WordLattice(
        source=renumbered[source[order]].astype(np.int32),
        target=renumbered[target[order]].astype(np.int32),
        words=words.astype(np.int32),
        graph=graph,
        acoustic=acoustic,
        times=times[alive],
    )


@dataclass(frozen=True)
class _Arcs:
    """Arcs with at most one word each, sorted by source."""

    source: Array
    target: Array
    words: Array
    graph: Array
    acoustic: Array
    frames: Array
    """[S] the frame in which each state is."""

    def weighted(self, acoustic_scale: float) -> Fst:
        """Return the arcs as a transducer with weighted scores, without words."""
        return Fst(
            source=self.source,
            target=self.target,
            labels=np.ones_like(self.source),
            scores=self.graph + acoustic_scale * self.acoustic,
            splits=np.zeros(len(self.source) + 1, np.int32),
            words=np.zeros(0, np.int32),
        )


def _single_words(scored: ScoredLattice) -> _Arcs:
    """Split arcs with several words into chains of arcs."""
    lattice, counts = scored.lattice, scored.lattice.word_counts
    frames = lattice.state_frames
    # The arc to the end has no word, since no word ends in the last state.
    links = np.maximum(counts, 1) + ((lattice.target == lattice.num_states - 1) & (counts > 0))
    arc, link = ragged_rows(links)
    words = np.zeros(len(arc), np.int32)
    words[link < counts[arc]] = lattice.words
    # States stay in topological order: a chain's inner states get fractional keys just below that
    # of the state that the chain leads to, and all states are numbered by key.
    inner = link > 0
    inner_keys = lattice.target[arc[inner]] - 1 + link[inner] / links[arc[inner]]
    keys = np.append(np.arange(lattice.num_states), inner_keys)
    number = np.empty(len(keys), np.int32)
    order = np.argsort(keys, kind="stable")
    number[order] = np.arange(len(keys), dtype=np.int32)
    source, target = number[lattice.source[arc]], number[lattice.target[arc]]
    # Link i > 0 of a chain leaves an inner state, which link i - 1 enters.
    source[inner] = number[lattice.num_states :]
    target[np.flatnonzero(inner) - 1] = source[inner]
    # The first link has the scores of the arc; inner states are in the frame of the chain's end.
    first = link == 0
    sort = np.argsort(source, kind="stable")
    return _Arcs(
        source[sort],
        target[sort],
        words[sort],
        np.where(first, scored.graph[arc], 0.0)[sort],
        np.where(first, scored.acoustic[arc], 0.0)[sort],
        np.append(frames, frames[lattice.target[arc[inner]]])[order],
    )


@dataclass(frozen=True)
class _Edges:
    """Best paths from the end of one word through one more word, or to the end.

    There are E edges between S states of `_Arcs`; only states where words end have edges.
    """

    source: Array
    """[E] int32, ascending."""
    target: Array
    """[E] int32."""
    words: Array
    """[E] int32."""
    graph: Array
    """[E] float64, summed over the path."""
    acoustic: Array
    """[E] float64, summed over the path."""
    first: Array
    """[S + 1] the first edge of each state."""


def _edges(arcs: _Arcs, fst: Fst, backward: Array, worst: float) -> _Edges:
    """Return the edges within the beam."""
    columns = arcs.words, arcs.graph, arcs.acoustic
    forward = forward_scores(fst)
    edge_columns = _without_epsilons(
        fst.first, fst.target, *columns, fst.scores, forward, backward, worst
    )
    return _Edges(*edge_columns, np.searchsorted(edge_columns[0], np.arange(len(backward) + 1)))


@njit(nogil=True, cache=True)
def _without_epsilons(
    first: Array,
    target: Array,
    words: Array,
    graph: Array,
    acoustic: Array,
    scores: Array,
    forward: Array,
    backward: Array,
    worst: float,
) -> tuple[Array, Array, Array, Array, Array]:  # pragma: no cover (compiled)
    """Return the edges (see `_Edges`) on paths with a score of at least `worst`.

    Arcs without words lead from one frame to the next (`Lattice`; files are checked for this when
    they are read). So states are numbered in the order in which they are reached, and all paths to
    a state are known before it is expanded.

    Args:
      first, target, words, graph, acoustic: of `_Arcs`.
      scores: [A] the scaled sums of graph and acoustic scores.
      forward, backward: [S] the best score from the start to each state, and from it to the end.
      worst: lowest score of a whole path.

    Returns:
      The first five fields of `_Edges`.
    """
    states = len(backward)
    # Edges begin in the start state and where a word ends.
    is_origin = np.zeros(states, np.bool_)
    is_origin[0] = True
    for a in range(len(target)):
        if words[a] > 0:
            is_origin[target[a]] = True
    # Scores of the best path without words from the current origin to each state.
    score_so_far = np.full(states, -np.inf)
    graph_so_far, acoustic_so_far = np.zeros(states), np.zeros(states)
    reached = np.empty(states, np.int32)
    count = 0
    edge_source, edge_target = np.empty(64, np.int32), np.empty(64, np.int32)
    edge_word = np.empty(64, np.int32)
    edge_graph, edge_acoustic = np.empty(64), np.empty(64)
    for origin in range(states - 1):
        if not is_origin[origin] or forward[origin] + backward[origin] < worst:
            continue
        score_so_far[origin], graph_so_far[origin], acoustic_so_far[origin] = 0.0, 0.0, 0.0
        reached[0] = origin
        expanded, num_reached = 0, 1
        while expanded < num_reached:
            state = reached[expanded]
            expanded += 1
            for a in range(first[state], first[state + 1]):
                score, next_state = score_so_far[state] + scores[a], target[a]
                if forward[origin] + score + backward[next_state] < worst:
                    continue
                if words[a] > 0 or next_state == states - 1:
                    # A word or the end completes an edge.
                    edge_source = with_capacity(edge_source, count + 1)
                    edge_target = with_capacity(edge_target, count + 1)
                    edge_word = with_capacity(edge_word, count + 1)
                    edge_graph = with_capacity(edge_graph, count + 1)
                    edge_acoustic = with_capacity(edge_acoustic, count + 1)
                    edge_source[count], edge_target[count] = origin, next_state
                    edge_word[count] = words[a]
                    edge_graph[count] = graph_so_far[state] + graph[a]
                    edge_acoustic[count] = acoustic_so_far[state] + acoustic[a]
                    count += 1
                elif score > score_so_far[next_state]:
                    # A better path to a state, which joins the queue when first reached.
                    if score_so_far[next_state] == -np.inf:
                        reached[num_reached] = next_state
                        num_reached += 1
                    score_so_far[next_state] = score
                    graph_so_far[next_state] = graph_so_far[state] + graph[a]
                    acoustic_so_far[next_state] = acoustic_so_far[state] + acoustic[a]
            score_so_far[state] = -np.inf  # ready for the next origin
    return (
        edge_source[:count],
        edge_target[:count],
        edge_word[:count],
        edge_graph[:count],
        edge_acoustic[:count],
    )


@dataclass(frozen=True)
class _Subset:
    """The states reached by a word sequence, with the excess scores of their best paths."""

    nodes: Array
    """[M] ascending."""
    graph: Array
    """[M] float64, added to the scores of the arcs so far."""
    acoustic: Array
    """[M] float64, added to the acoustic scores of the arcs so far."""

    def key(self, acoustic_scale: float) -> tuple[bytes, bytes]:
        """Return a hashable key; subsets with equal keys are merged."""
        weights = np.stack([self.graph, acoustic_scale * self.acoustic])
        return self.nodes.tobytes(), np.rint(weights / ROUNDING).astype(np.int64).tobytes()


class _Determinization:
    """Subset construction in the order of the best path through each subset (A*).

    The backward scores are exact, so that a subset has its best forward score when its turn comes.
    """

    def __init__(self, edges: _Edges, backward: Array, acoustic_scale: float, worst: float) -> None:
        self._edges, self._backward = edges, backward
        self._scale, self._worst = acoustic_scale, worst
        self.subsets: list[_Subset] = []
        self.arcs: list[tuple[int, int, int, float, float]] = []
        """Source, target, word, graph and acoustic score."""
        self._numbers: dict[tuple[bytes, bytes], int] = {}
        self._forward: list[float] = []
        """The best score of the paths to each subset."""
        self._queue: list[tuple[float, int]] = []

    def run(self) -> None:
        """Expand all subsets within the beam."""
        self._reach(_Subset(np.zeros(1, np.int64), np.zeros(1), np.zeros(1)), 0.0, 0.0)
        expanded, end = set(), len(self._backward) - 1
        is_complete = False  # whether a path to the end is there
        while self._queue and (len(self.arcs) < MAX_ARCS or not is_complete):
            _, number = heapq.heappop(self._queue)
            is_complete = is_complete or self.subsets[number].nodes[-1] == end
            if number not in expanded:
                expanded.add(number)
                self._expand(number)

    def _reach(self, subset: _Subset, forward: float, through: float) -> int:
        """Return the number of a subset reached by a path with score `forward`.

        `through` is the best score of a whole path through it, by which the queue is sorted.
        """
        number = self._numbers.setdefault(subset.key(self._scale), len(self.subsets))
        if number == len(self.subsets):
            self.subsets.append(subset)
            self._forward.append(-np.inf)
        if forward > self._forward[number]:
            self._forward[number] = forward
            heapq.heappush(self._queue, (-through, number))
        return number

    def _expand(self, number: int) -> None:
        """Follow the edges out of a subset; add one arc per word."""
        subset, forward, edges = self.subsets[number], self._forward[number], self._edges
        element, edge = ragged_ranges(edges.first, subset.nodes)
        # Scores of the paths: what the element has in excess, then the edge.
        graph = subset.graph[element] + edges.graph[edge]
        acoustic = subset.acoustic[element] + edges.acoustic[edge]
        score = graph + self._scale * acoustic
        words, nodes = edges.words[edge], edges.target[edge].astype(np.int64)
        through = forward + score + self._backward[nodes]
        order = np.lexsort((-score, nodes, words))
        order = order[through[order] >= self._worst]
        # Of several paths to a state with the same word, keep the best.
        new = (np.diff(nodes[order], prepend=-1) != 0) | (np.diff(words[order], prepend=-1) != 0)
        order = order[new]
        begins = np.flatnonzero(np.diff(words[order], prepend=-1))
        for same_word in np.split(order, begins[1:]) if len(order) else []:
            # The arc has the scores of the best path; the elements keep the difference to it.
            best = same_word[np.argmax(score[same_word])]
            reached = _Subset(
                nodes[same_word],
                graph[same_word] - graph[best],
                acoustic[same_word] - acoustic[best],
            )
            target = self._reach(reached, forward + score[best], float(through[same_word].max()))
            weights = float(graph[best]), float(acoustic[best])
            self.arcs.append((number, target, int(words[best]), *weights))
