import itertools

import numpy as np
import pytest

from toolkit.lang.graphones import Aligner


def paths(spelling, phones):
    """Every way to cut a pair into graphones."""
    if not spelling:
        return [] if phones else [[]]
    found = []
    for n, m in ((1, 0), (1, 1), (1, 2), (2, 1)):
        if n <= len(spelling) and m <= len(phones):
            head = (spelling[:n], tuple(phones[:m]))
            found += [[head, *rest] for rest in paths(spelling[n:], phones[m:])]
    return found


def numbered(aligner):
    return {aligner.graphone(i): i for i in range(len(aligner.weights))}


def test_graphones_are_numbered_once():
    aligner = Aligner("ab", ["X", "Y", "Z"])
    expected = {
        (spelling, phones)
        for n, m in ((1, 0), (1, 1), (1, 2), (2, 1))
        for spelling in map("".join, itertools.product("ab", repeat=n))
        for phones in itertools.product("XYZ", repeat=m)
    }
    assert set(numbered(aligner)) == expected
    assert len(aligner.weights) == len(expected)


PAIRS = [("abba", ("X", "Y", "X")), ("b", ("Y",)), ("ab", ("X",)), ("ab", ("X", "X", "Y", "Y"))]


@pytest.fixture
def aligner():
    found = Aligner("ab", ["X", "Y"])
    found.weights = np.random.default_rng(0).random(len(found.weights))
    return found


def test_one_pass_equals_enumeration(aligner):
    ids = numbered(aligner)
    expected = np.zeros_like(aligner.weights)
    for spelling, phones in PAIRS:
        ways = paths(spelling, phones)
        weights = [np.prod([aligner.weights[ids[g]] for g in way]) for way in ways]
        for way, weight in zip(ways, weights, strict=True):
            for graphone in way:
                expected[ids[graphone]] += weight / sum(weights)
    aligner.train(PAIRS, iterations=1)
    shares = [
        0.1 if len(aligner.graphone(i)[0]) + len(aligner.graphone(i)[1]) > 2 else 1
        for i in range(len(expected))
    ]
    np.testing.assert_allclose(aligner.weights, shares * expected / expected.sum(), atol=1e-14)


def test_alignment_equals_enumeration(aligner):
    ids = numbered(aligner)
    for (spelling, phones), found in zip(PAIRS, aligner.align(PAIRS), strict=True):
        best = max(
            paths(spelling, phones), key=lambda w: np.prod([aligner.weights[ids[g]] for g in w])
        )
        assert [aligner.graphone(i) for i in found] == best


def test_what_cannot_be_aligned_counts_for_nothing():
    aligner = Aligner("ab", ["X"])
    impossible = [("a", ("X", "X", "X")), ("b", ()), ("", ("X",))]
    aligner.train([*impossible, ("a", ("X",))], iterations=2)
    assert aligner.align(impossible) == [[], [], []]
    assert aligner.weights[numbered(aligner)["a", ("X",)]] == 1.0
