"""Alignment of two networks of words, as in sclite: the best path through alternatives.

Costs are sclite's: see `_COSTS`. Ties are broken as there: arcs are visited in order of their
beginnings, the first of several predecessors with the same cost wins, and of the three moves the
diagonal, then the insertion. Costs are added in single precision, which decides ties between many
empty alternatives.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numba import njit

from toolkit.score.align import (
    CORRECT,
    DELETION,
    INSERTION,
    OPTIONAL_DELETION,
    OPTIONAL_INSERTION,
    SUBSTITUTION,
    Weights,
)
from toolkit.score.alternatives import NO_WORD, Choice, Grammar, GrammarError, Items

_COSTS = {"kaldi": (1.0, 1.0, 0.5, False), "sclite": (4.0, 3.0, 2.0, True)}
"""Substitution, gap, gap at a word that may be left out, whether the diagonal wins ties."""
_EMPTY, _NEVER = 0.001, 1e9
"""Gap at @; @ is not aligned with anything."""
_MOST = 10**6
"""Pairs of arcs that follow each other in a network, as of a thousand alternatives twice."""
_MOST_PAIRS = 4 * 10**8
"""Pairs of such pairs: some seconds and GB, as of texts of 20,000 words."""


@dataclass
class _Node:
    """A place between words, with arcs by number."""

    out: list[int] = field(default_factory=list)
    into: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Network:
    """The words of a transcript with alternatives, in an order in which predecessors come first.

    Arc 0 is the beginning and has no word.
    """

    words: tuple[str, ...]
    """A word per arc, or @."""
    first: np.ndarray
    """[A + 1] int64: predecessors of arc a are predecessors[first[a]:first[a + 1]]."""
    predecessors: np.ndarray
    """Arcs that end where an arc begins, int64."""
    last: tuple[int, ...]
    """Arcs that end the transcript."""

    @classmethod
    def of(cls, items: Items) -> "Network":
        """Build the network of a parsed transcript.

        Raises:
          GrammarError: it has too many alternatives in a row.
        """
        nodes = [_Node(), _Node(), _Node()]
        arcs: list[tuple[str, int, int]] = []

        def add(word: str, start: int, end: int) -> None:
            nodes[start].out.append(len(arcs))
            nodes[end].into.append(len(arcs))
            arcs.append((word, start, end))

        def build(items: Items, start: int, end: int) -> None:
            for number, item in enumerate(items, 1):
                if number < len(items):
                    nodes.append(_Node())
                to = end if number == len(items) else len(nodes) - 1
                if isinstance(item, Choice):
                    for alternative in item.alternatives:
                        build(alternative, start, to)
                else:
                    add(item, start, to)
                start = to

        add("", 0, 1)
        build(items, 1, 2)
        stop = 2 if items else 1
        order = _in_order(nodes, arcs)
        number = {arc: n for n, arc in enumerate(order)}
        if sum(len(nodes[arcs[arc][1]].into) for arc in order) > _MOST:
            raise GrammarError("too many alternatives in a row: split the utterance")
        before = [[number[p] for p in nodes[arcs[arc][1]].into] for arc in order]
        return cls(
            tuple(arcs[arc][0] for arc in order),
            np.cumsum([0, *map(len, before)]),
            np.array([p for each in before for p in each], np.int64),
            tuple(number[arc] for arc in nodes[stop].into),
        )


def _in_order(nodes: list[_Node], arcs: list[tuple[str, int, int]]) -> list[int]:
    """Return all arcs, those of a node when all arcs into it were visited, first come first."""
    open_arcs = [len(node.into) for node in nodes]
    order: list[int] = []
    queue = deque([0])
    while queue:
        node = queue.popleft()
        for arc in nodes[node].out:
            to = arcs[arc][2]
            open_arcs[to] -= 1
            if not open_arcs[to]:
                queue.append(to)
        order += nodes[node].out
    return order


@dataclass(frozen=True)
class Aligned:
    """The best path through two networks."""

    ref: list[str]
    """Its words in the reference, without @."""
    hyp: list[str]
    """Its words in the hypothesis, without @."""
    steps: bytes
    """The alignment: one byte per step, see `toolkit.score.align`."""


def align_networks(ref: Network, hyp: Network, grammar: Grammar, weights: Weights) -> Aligned:
    """Align the words of two networks; A arcs in the reference, B in the hypothesis.

    Raises:
      GrammarError: they are so large that it would take minutes, or GB of memory.
    """
    if len(ref.predecessors) * len(hyp.predecessors) > _MOST_PAIRS:
        raise GrammarError("too many words and alternatives to align: split the utterance")
    substitution, gap, optional, diagonal_wins = _COSTS[weights]
    equal = _equal(ref, hyp, grammar)
    deletions, insertions = (
        np.where(
            _empty(side),
            _EMPTY,
            [optional if grammar.is_optional(word) else gap for word in side.words],
        ).astype(np.float32)
        for side in (ref, hyp)
    )
    cost, back = _fill(
        equal,
        np.float32(substitution),
        deletions,
        insertions,
        ref.first,
        ref.predecessors,
        hyp.first,
        hyp.predecessors,
        diagonal_wins,
    )
    ends = [
        (cost[a, b], n, a, b) for n, (a, b) in enumerate((a, b) for a in ref.last for b in hyp.last)
    ]
    _, _, a, b = min(ends)
    return _traced(ref, hyp, grammar, equal, back, a, b)


def _traced(
    ref: Network,
    hyp: Network,
    grammar: Grammar,
    equal: np.ndarray,
    back: np.ndarray,
    a: int,
    b: int,
) -> Aligned:
    """Follow the moves from the last arcs back to the first."""
    refs: list[str] = []
    hyps: list[str] = []
    steps = bytearray()
    while a > 0 or b > 0:
        before_a, before_b = back[a, b]
        word, found = ref.words[a], hyp.words[b]
        if before_a == a:
            if found != NO_WORD:
                hyps.append(found)
                steps.append(OPTIONAL_INSERTION if grammar.is_optional(found) else INSERTION)
        elif before_b == b:
            if word != NO_WORD:
                refs.append(word)
                steps.append(OPTIONAL_DELETION if grammar.is_optional(word) else DELETION)
        else:
            refs.append(word)
            hyps.append(found)
            steps.append(CORRECT if equal[a, b] else SUBSTITUTION)
        a, b = int(before_a), int(before_b)
    return Aligned(refs[::-1], hyps[::-1], bytes(steps[::-1]))


def _empty(network: Network) -> np.ndarray:
    return np.array([word == NO_WORD for word in network.words])


def _equal(ref: Network, hyp: Network, grammar: Grammar) -> np.ndarray:
    """Compare all words of the reference with all of the hypothesis, [A, B]."""
    sides = [[grammar.spoken(word) for word in side.words] for side in (ref, hyp)]
    index = {word: n for n, word in enumerate(dict.fromkeys([*sides[0], *sides[1]]))}
    ids = [np.array([index[word] for word in side]) for side in sides]
    equal = ids[0][:, None] == ids[1][None]
    if grammar.fragments:
        parts = [[is_fragment(word, grammar) for word in side.words] for side in (ref, hyp)]
        for a, b in np.argwhere(np.array(parts[0])[:, None] | np.array(parts[1])[None]):
            equal[a, b] = _matches(sides[0][a], sides[1][b])
    return equal


def is_fragment(word: str, grammar: Grammar) -> bool:
    """Whether a word is marked as a fragment; of words in parentheses only at their ends."""
    return word[:1] == "-" or word[-1:] == "-" or (grammar.is_optional(word) and word[-2] == "-")


def _matches(ref: str, hyp: str) -> bool:
    """Compare two words, one of which at least is a fragment."""
    for fragment, word in ((ref, hyp), (hyp, ref)):
        if len(fragment) > 1 and fragment[0] == "-":
            return word.endswith(fragment[1:])
        if len(fragment) > 1 and fragment[-1] == "-":
            return word.startswith(fragment[:-1])
    return ref == hyp


@njit(cache=True)
def _fill(
    equal: np.ndarray,
    substitution: float,
    ref_gap: np.ndarray,
    hyp_gap: np.ndarray,
    ref_first: np.ndarray,
    ref_before: np.ndarray,
    hyp_first: np.ndarray,
    hyp_before: np.ndarray,
    diagonal_wins: bool,
) -> tuple:  # pragma: no cover (compiled)
    """Return the costs [A, B] of the best paths that end in each pair of arcs, and where they come
    from, [A, B, 2]; an arc that stays the same is a gap."""
    number_a, number_b = equal.shape
    cost = np.zeros((number_a, number_b), np.float32)
    back = np.zeros((number_a, number_b, 2), np.int32)
    never, empty = np.float32(_NEVER), np.float32(_EMPTY)
    for a in range(number_a):
        for b in range(number_b):
            if a == 0 and b == 0:
                continue
            insertion = deletion = diagonal = never
            ins_b = del_a = sub_a = sub_b = 0
            if b > 0:
                for p in hyp_before[hyp_first[b] : hyp_first[b + 1]]:
                    if cost[a, p] < insertion:
                        insertion, ins_b = cost[a, p], p
                insertion += hyp_gap[b]
            if a > 0:
                for p in ref_before[ref_first[a] : ref_first[a + 1]]:
                    if cost[p, b] < deletion:
                        deletion, del_a = cost[p, b], p
                deletion += ref_gap[a]
            if a > 0 and b > 0 and ref_gap[a] != empty and hyp_gap[b] != empty:
                for p in ref_before[ref_first[a] : ref_first[a + 1]]:
                    for q in hyp_before[hyp_first[b] : hyp_first[b + 1]]:
                        if cost[p, q] < diagonal:
                            diagonal, sub_a, sub_b = cost[p, q], p, q
                if not equal[a, b]:
                    diagonal += substitution
            if (diagonal < insertion and diagonal < deletion) or (
                diagonal_wins and diagonal <= insertion and diagonal <= deletion
            ):
                cost[a, b], back[a, b, 0], back[a, b, 1] = diagonal, sub_a, sub_b
            elif deletion < insertion:
                cost[a, b], back[a, b, 0], back[a, b, 1] = deletion, del_a, b
            else:
                cost[a, b], back[a, b, 0], back[a, b, 1] = insertion, a, ins_b
    return cost, back
