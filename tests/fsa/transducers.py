"""Small random transducers and their transductions, by brute force."""

import math
from collections import defaultdict

import numpy as np
from hypothesis import strategies as st

from toolkit.fsa.fst import FINAL, Fst, fst_from_arcs

SCORES = st.integers(-8, 2).map(lambda n: n / 4)


def transductions(fst: Fst, length: int) -> dict[tuple, float]:
    """The best score of every (input, output) of the paths of at most `length` arcs."""
    leaving = defaultdict(list)
    for arc, state in enumerate(fst.source.tolist()):
        leaving[state].append(arc)
    target, labels, scores = fst.target.tolist(), fst.labels.tolist(), fst.scores.tolist()
    words = [tuple(w.tolist()) for w in np.split(fst.words, fst.splits[1:-1])]
    best = defaultdict(lambda: -math.inf)
    paths = {(0, (), ()): 0.0}
    for _ in range(length):
        longer = defaultdict(lambda: -math.inf)
        for (state, read, wrote), score in paths.items():
            for arc in leaving[state]:
                transduction = (*read, labels[arc]), (*wrote, *words[arc])
                total = score + scores[arc]
                if labels[arc] == FINAL:
                    key = (transduction[0][:-1], transduction[1])
                    best[key] = max(best[key], total)
                else:
                    key = (target[arc], *transduction)
                    longer[key] = max(longer[key], total)
        paths = longer
    return dict(best)


def without_labels(scores: dict[tuple, float], *labels: int) -> dict[tuple, float]:
    """The transductions with some input labels removed."""
    best = defaultdict(lambda: -math.inf)
    for (read, wrote), score in scores.items():
        key = tuple(x for x in read if x not in labels), wrote
        best[key] = max(best[key], score)
    return dict(best)


def assert_scores_equal(
    scores: dict[tuple, float], expected: dict[tuple, float], within: float = 1e-4
) -> None:
    """Assert that two dicts of scores are equal within a tolerance."""
    assert scores.keys() == expected.keys()
    assert all(abs(score - expected[key]) <= within for key, score in scores.items())


@st.composite
def transducers(draw, labels=(1, 2, 3), words=(0, 1, 2), states=5, arcs=9, cyclic=False) -> Fst:
    """A transducer of few states; acyclic ones have only arcs to later states."""
    ends = st.tuples(st.integers(0, states - 1), st.integers(0, states - 1))
    if not cyclic:
        ends = ends.map(sorted).filter(lambda pair: pair[0] < pair[1])
    arc = st.tuples(ends, st.sampled_from(labels), st.sampled_from(words), SCORES)
    drawn = draw(st.lists(arc, min_size=1, max_size=arcs))
    finals = draw(st.sets(st.integers(0, states - 1), min_size=1, max_size=2))
    return fst_from_arcs([(*pair, *fields) for pair, *fields in drawn], sorted(finals))
