"""Lattices of words: an arc is a word with its scores, a state is a time.

A search's lattice becomes one by pruned determinization, one path for each word sequence, its best,
as Kaldi's (Povey et al., "Generating exact lattices in the WFST framework", ICASSP 2012): weights
are pairs of graph and acoustic score, compared by their scaled sum. Of the alignments that Kaldi
keeps as strings, only the lengths are kept, as the times of the states: a state stands where the
alignments of all paths into it have come to, the longest common prefix.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from toolkit.fsa.arrays import with_capacity
from toolkit.fsa.fst import Fst
from toolkit.fsa.lattice import ScoredLattice, backward_scores, best_arcs, forward_scores
from toolkit.kernels import njit

NO_WORD = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class WordLattice:
    """A lattice of A arcs between S states: state 0 starts, the last one ends.

    Every arc leads to a state with a higher number, and arcs ascend by source.
    """

    source: np.ndarray
    """[A] int32."""
    target: np.ndarray
    """[A] int32."""
    words: np.ndarray
    """[A] int32 word ids; 0 is no word, as on arcs into the last state."""
    graph: np.ndarray
    """[A] float64, the logarithm of the probability by language model, pronunciations and HMMs."""
    acoustic: np.ndarray
    """[A] float64 log-likelihoods, not scaled."""
    times: np.ndarray
    """[S] float64 seconds; no arc leads back in time."""

    @property
    def num_arcs(self) -> int:
        """A."""
        return len(self.source)

    @property
    def num_states(self) -> int:
        """S."""
        return len(self.times)

    def scores(self, acoustic_scale: float, word_penalty: float = 0.0) -> np.ndarray:
        """[A] float64, the scores that weights give the arcs; see `toolkit.fsa.lattice.Weights`."""
        penalties = word_penalty * (self.words != NO_WORD)
        return self.graph + acoustic_scale * self.acoustic + penalties

    def best_path(self, scores: np.ndarray) -> np.ndarray:
        """The arcs of the path with the highest sum of `scores` [A]."""
        return best_arcs(self.source, self.target, scores, self.num_states)

    def best_words(self, scores: np.ndarray) -> list[int]:
        """The word ids of that path."""
        words = self.words[self.best_path(scores)]
        return words[words != NO_WORD].tolist()

    @cached_property
    def _ends(self) -> tuple[np.ndarray, np.ndarray]:
        return np.int64(self.source), np.int64(self.target)

    def total(self, scores: np.ndarray) -> float:
        """The logarithm of the summed exponentials of the scores of all paths."""
        return float(_log_sums(*self._ends, scores, self.num_states)[-1])

    def incoming_arc_posteriors(self, scores: np.ndarray) -> np.ndarray:
        """[A] the share that each arc has in the paths that enter its target."""
        sums = _log_sums(*self._ends, scores, self.num_states)
        return np.exp(sums[self.source] + scores - sums[self.target])


@njit(nogil=True, cache=True)
def _log_sums(
    source: np.ndarray, target: np.ndarray, scores: np.ndarray, states: int
) -> np.ndarray:  # pragma: no cover (compiled)
    """[S] the log of the summed exponentials of the scores of the paths into each state."""
    sums = np.full(states, -np.inf)
    sums[0] = 0.0
    for a in range(len(source)):
        sums[target[a]] = np.logaddexp(sums[target[a]], sums[source[a]] + scores[a])
    return sums


def union(lattices: Sequence[WordLattice]) -> WordLattice:
    """The union of lattices: their first states become one, and so do their last ones.

    Kaldi's lattice-combine, after `weighted`.
    """
    counts = [lattice.num_states - 2 for lattice in lattices]
    offsets = np.cumsum([0, *counts])
    last = offsets[-1] + 1
    columns: dict[str, list[np.ndarray]] = {"source": [], "target": []}
    for lattice, offset in zip(lattices, offsets[:-1], strict=True):
        for name, found in columns.items():
            state = getattr(lattice, name)
            inner = np.where(state == lattice.num_states - 1, last, state + offset)
            found.append(np.where(state == 0, 0, inner))
    source, target = (np.concatenate(found).astype(np.int32) for found in columns.values())
    order = np.argsort(source, kind="stable")
    rest = {
        name: np.concatenate([getattr(lattice, name) for lattice in lattices])[order]
        for name in ("words", "graph", "acoustic")
    }
    first = min(lattice.times[0] for lattice in lattices)
    end = max(lattice.times[-1] for lattice in lattices)
    times = np.concatenate([[first], *(lattice.times[1:-1] for lattice in lattices), [end]])
    return WordLattice(source=source[order], target=target[order], times=times, **rest)


def normalise_to_weight(lattice: WordLattice, scores: np.ndarray, weight: float) -> WordLattice:
    """The lattice with posteriors for scores: those of its paths add up to a weight.

    Args:
      lattice: of one utterance.
      scores: [A] of its arcs.
      weight: above 0.

    Returns:
      All scores are in `graph`.
    """
    graph = scores - np.where(lattice.source == 0, lattice.total(scores) - np.log(weight), 0.0)
    return replace(lattice, graph=graph, acoustic=np.zeros_like(graph))


MOST_ARCS = 20_000
"""Arcs of a determinised lattice: beyond, the worst are dropped, but for the best path."""
ROUNDING = 1 / 1024
"""Differences of scores below this do not keep states apart (Kaldi's delta)."""
Array = np.ndarray


def word_lattice(
    lattice: ScoredLattice, acoustic_scale: float, beam: float, frame_shift: float
) -> WordLattice:
    """Determinise the lattice of an utterance by words.

    Exact within the beam: every word sequence whose best path is there has its score, as long as
    there are fewer than `MOST_ARCS` arcs.

    Args:
      lattice: from a search, rescored or not.
      acoustic_scale: decides which path of a word sequence is its best one.
      beam: how far a path's score may be below the best one's.
      frame_shift: seconds per frame.
    """
    arcs = _single_words(lattice)
    fst = arcs.weighted(acoustic_scale)
    rest = backward_scores(fst)
    worst = rest[0] - beam - 1e-6 * abs(rest[0])
    edges = _edges(arcs, fst, rest, worst)
    found = _Determinization(edges, rest, acoustic_scale, worst)
    found.run()
    # Every arc leads to a subset with a higher first node.
    states = np.argsort([subset.nodes[0] for subset in found.subsets], kind="stable")
    times = np.array([arcs.frames[subset.nodes].min() for subset in found.subsets])[states]
    return _assembled(found.arcs, np.argsort(states), times * frame_shift)


def _assembled(
    arcs: list[tuple[int, int, int, float, float]], number: Array, times: Array
) -> WordLattice:
    """The lattice of the arcs whose targets lead to the end.

    Args:
      arcs: source, target, word, graph and acoustic score.
      number: [S] of the sources and targets, in topological order.
      times: [S] in that order.
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
    """Arcs of at most one word, ascending by source."""

    source: Array
    target: Array
    words: Array
    graph: Array
    acoustic: Array
    frames: Array
    """[S] the frame in which each state is."""

    def weighted(self, acoustic_scale: float) -> Fst:
        """The arcs with their scaled sums as scores; without words."""
        return Fst(
            source=self.source,
            target=self.target,
            labels=np.ones_like(self.source),
            scores=self.graph + acoustic_scale * self.acoustic,
            splits=np.zeros(len(self.source) + 1, np.int32),
            words=np.zeros(0, np.int32),
        )


def _single_words(scored: ScoredLattice) -> _Arcs:
    """The arcs of a lattice; those of several words become chains."""
    lattice, counts = scored.lattice, scored.lattice.word_counts
    frames = lattice.state_frames
    # To the end leads an arc without a word, since the end is among the states of no word.
    links = np.maximum(counts, 1) + ((lattice.target == lattice.num_states - 1) & (counts > 0))
    arc = np.repeat(np.arange(lattice.num_arcs), links)
    place = np.arange(len(arc)) - np.repeat(np.cumsum(links) - links, links)
    words = np.zeros(len(arc), np.int32)
    words[place < counts[arc]] = lattice.words
    # A chain's inner states come directly before the state that it leads to.
    inner = place > 0
    position = lattice.target[arc[inner]] - 1 + place[inner] / links[arc[inner]]
    keys = np.append(np.arange(lattice.num_states), position)
    number = np.empty(len(keys), np.int32)
    order = np.argsort(keys, kind="stable")
    number[order] = np.arange(len(keys), dtype=np.int32)
    source, target = number[lattice.source[arc]], number[lattice.target[arc]]
    source[inner] = number[lattice.num_states :]
    target[np.flatnonzero(inner) - 1] = source[inner]
    first = place == 0
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
    """The best ways from the end of each word through one more word, or to the end."""

    source: Array
    target: Array
    words: Array
    graph: Array
    acoustic: Array
    first: Array
    """[S + 1] the first edge of each state."""

    def of(self, nodes: Array) -> tuple[Array, Array]:
        """The edges that leave `nodes`: for each the position of its node there, and its index."""
        degrees = self.first[nodes + 1] - self.first[nodes]
        place = np.repeat(np.arange(len(nodes)), degrees)
        within = np.arange(len(place)) - np.repeat(np.cumsum(degrees) - degrees, degrees)
        return place, self.first[nodes][place] + within


def _edges(arcs: _Arcs, fst: Fst, rest: Array, worst: float) -> _Edges:
    columns = arcs.words, arcs.graph, arcs.acoustic
    before = forward_scores(fst)
    found = _without_epsilons(fst.first, fst.target, *columns, fst.scores, before, rest, worst)
    return _Edges(*found, np.searchsorted(found[0], np.arange(len(rest) + 1)))


@njit(nogil=True, cache=True)
def _without_epsilons(
    first: Array,
    target: Array,
    words: Array,
    graph: Array,
    acoustic: Array,
    scores: Array,
    before: Array,
    rest: Array,
    worst: float,
) -> tuple[Array, Array, Array, Array, Array]:  # pragma: no cover (compiled)
    """The edges of `_Edges` that are on paths with a score of at least `worst`.

    Arcs without words lead from one frame to the next (`Lattice`; files are checked when they are
    read), so that states come in the order in which they are reached: each way to a state is known
    when its turn comes.
    """
    states = len(rest)
    begins = np.zeros(states, np.bool_)
    begins[0] = True
    for a in range(len(target)):
        if words[a] > 0:
            begins[target[a]] = True
    total = np.full(states, -np.inf)
    graphs, acoustics = np.zeros(states), np.zeros(states)
    reached = np.empty(states, np.int32)
    count = 0
    froms, tos, spoken = np.empty(64, np.int32), np.empty(64, np.int32), np.empty(64, np.int32)
    by_graph, by_acoustics = np.empty(64), np.empty(64)
    for node in range(states - 1):
        if not begins[node] or before[node] + rest[node] < worst:
            continue
        total[node], graphs[node], acoustics[node] = 0.0, 0.0, 0.0
        reached[0] = node
        done, known = 0, 1
        while done < known:
            state = reached[done]
            done += 1
            for a in range(first[state], first[state + 1]):
                score, to = total[state] + scores[a], target[a]
                if before[node] + score + rest[to] < worst:
                    continue
                if words[a] > 0 or to == states - 1:
                    froms, tos = with_capacity(froms, count + 1), with_capacity(tos, count + 1)
                    spoken = with_capacity(spoken, count + 1)
                    by_graph = with_capacity(by_graph, count + 1)
                    by_acoustics = with_capacity(by_acoustics, count + 1)
                    froms[count], tos[count], spoken[count] = node, to, words[a]
                    by_graph[count] = graphs[state] + graph[a]
                    by_acoustics[count] = acoustics[state] + acoustic[a]
                    count += 1
                elif score > total[to]:
                    if total[to] == -np.inf:
                        reached[known] = to
                        known += 1
                    total[to] = score
                    graphs[to] = graphs[state] + graph[a]
                    acoustics[to] = acoustics[state] + acoustic[a]
            total[state] = -np.inf
    return froms[:count], tos[:count], spoken[:count], by_graph[:count], by_acoustics[:count]


@dataclass(frozen=True)
class _Subset:
    """The states that a word sequence has led to, with what their best paths have in excess."""

    nodes: Array
    """[M] ascending."""
    graph: Array
    """[M] float64, added to the scores of the arcs so far."""
    acoustic: Array
    """[M] likewise."""

    def key(self, acoustic_scale: float) -> tuple[bytes, bytes]:
        weights = np.stack([self.graph, acoustic_scale * self.acoustic])
        return self.nodes.tobytes(), np.rint(weights / ROUNDING).astype(np.int64).tobytes()


class _Determinization:
    """Subsets of states, expanded in the order of the best path through each.

    The score of the rest of a path is known, so that a subset has its best score when its turn
    comes.
    """

    def __init__(self, edges: _Edges, rest: Array, acoustic_scale: float, worst: float) -> None:
        self._edges, self._rest = edges, rest
        self._scale, self._worst = acoustic_scale, worst
        self.subsets: list[_Subset] = []
        self.arcs: list[tuple[int, int, int, float, float]] = []
        """Source, target, word, graph and acoustic score."""
        self._numbers: dict[tuple[bytes, bytes], int] = {}
        self._before: list[float] = []
        self._queue: list[tuple[float, int]] = []

    def run(self) -> None:
        """Expand all subsets that the beam leaves."""
        self._reach(_Subset(np.zeros(1, np.int64), np.zeros(1), np.zeros(1)), 0.0, 0.0)
        done, end = set(), len(self._rest) - 1
        ended = False
        while self._queue and (len(self.arcs) < MOST_ARCS or not ended):
            _, number = heapq.heappop(self._queue)
            ended = ended or self.subsets[number].nodes[-1] == end
            if number not in done:
                done.add(number)
                self._expand(number)

    def _reach(self, subset: _Subset, before: float, through: float) -> int:
        """The number of a subset that a path with the score `before` has come to."""
        number = self._numbers.setdefault(subset.key(self._scale), len(self.subsets))
        if number == len(self.subsets):
            self.subsets.append(subset)
            self._before.append(-np.inf)
        if before > self._before[number]:
            self._before[number] = before
            heapq.heappush(self._queue, (-through, number))
        return number

    def _expand(self, number: int) -> None:
        subset, before, edges = self.subsets[number], self._before[number], self._edges
        place, edge = edges.of(subset.nodes)
        graph = subset.graph[place] + edges.graph[edge]
        acoustic = subset.acoustic[place] + edges.acoustic[edge]
        score = graph + self._scale * acoustic
        words, nodes = edges.words[edge], edges.target[edge].astype(np.int64)
        through = before + score + self._rest[nodes]
        order = np.lexsort((-score, nodes, words))
        order = order[through[order] >= self._worst]
        # Of several ways to a state by the same word the best.
        new = (np.diff(nodes[order], prepend=-1) != 0) | (np.diff(words[order], prepend=-1) != 0)
        order = order[new]
        begins = np.flatnonzero(np.diff(words[order], prepend=-1))
        for chosen in np.split(order, begins[1:]) if len(order) else []:
            best = chosen[np.argmax(score[chosen])]
            reached = _Subset(
                nodes[chosen], graph[chosen] - graph[best], acoustic[chosen] - acoustic[best]
            )
            after = self._reach(reached, before + score[best], float(through[chosen].max()))
            weights = float(graph[best]), float(acoustic[best])
            self.arcs.append((number, after, int(words[best]), *weights))
