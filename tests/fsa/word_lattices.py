"""Small random word lattices and their word sequences."""

import numpy as np

from toolkit.fsa.word_lattice import WordLattice


def random_lattice(seed, states=6, arcs=14, words=3):
    """A random lattice: a chain of states with extra forward arcs, some without a word."""
    generator = np.random.default_rng(seed)
    source = [*range(states - 1), *generator.integers(0, states - 1, arcs - states + 1)]
    target = [
        s + 1 if i < states - 1 else generator.integers(s + 1, states) for i, s in enumerate(source)
    ]
    order = np.argsort(source, kind="stable")
    return WordLattice(
        source=np.int32(source)[order],
        target=np.int32(target)[order],
        words=generator.integers(0, words + 1, arcs).astype(np.int32),
        graph=generator.normal(size=arcs),
        acoustic=generator.normal(size=arcs) * 5,
        times=np.cumsum(generator.integers(0, 3, states)) * 0.25,
    )


def chain(words, begin=0.0, step=1.0):
    """A lattice of one path."""
    count = len(words)
    return WordLattice(
        source=np.arange(count, dtype=np.int32),
        target=np.arange(1, count + 1, dtype=np.int32),
        words=np.int32(words),
        graph=np.zeros(count),
        acoustic=np.zeros(count),
        times=begin + step * np.arange(count + 1),
    )


def paths(lattice):
    """The arcs of every path."""
    complete, stack = [], [(0, ())]
    while stack:
        state, arcs = stack.pop()
        if state == lattice.num_states - 1:
            complete.append(arcs)
            continue
        for arc in np.flatnonzero(lattice.source == state).tolist():
            stack.append((int(lattice.target[arc]), (*arcs, arc)))
    return complete


def word_sequences(lattice, scores):
    """[(words, score)] of every path."""
    return [
        (tuple(w for w in lattice.words[list(p)].tolist() if w), float(scores[list(p)].sum()))
        for p in paths(lattice)
    ]


def distance(a, b):
    """The edit distance."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]
