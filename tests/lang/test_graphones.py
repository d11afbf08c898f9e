from itertools import pairwise

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
    pairs = [("ab", ("X", "Y", "Z")), ("b", ("X",)), ("ba", ("Z", "Z"))]
    aligner = Aligner(pairs)
    expected = {
        (word[i : i + n], phones[j : j + m])
        for word, phones in pairs
        for n, m in ((1, 0), (1, 1), (1, 2), (2, 1))
        for i in range(len(word) - n + 1)
        for j in range(len(phones) - m + 1)
    }
    assert set(numbered(aligner)) == expected
    assert len(aligner.weights) == len(expected)


def test_thousands_of_letters_and_phones():
    letters = [chr(0x4E00 + i) for i in range(3500)]
    pairs = [(a + b, (f"P{i % 200}", f"Q{i % 7}")) for i, (a, b) in enumerate(pairwise(letters))]
    aligner = Aligner(pairs)
    aligner.train(pairs, iterations=2)
    assert len(aligner.weights) < 30 * len(letters)
    (found,) = aligner.align(pairs[-1:])
    graphones = [aligner.graphone(i) for i in found]
    assert "".join(spelling for spelling, _ in graphones) == pairs[-1][0]
    assert tuple(phone for _, phones in graphones for phone in phones) == pairs[-1][1]


PAIRS = [("abba", ("X", "Y", "X")), ("b", ("Y",)), ("ab", ("X",)), ("ab", ("X", "X", "Y", "Y"))]


@pytest.fixture
def aligner():
    found = Aligner(PAIRS)
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
    impossible = [("a", ("X", "X", "X")), ("b", ()), ("", ("X",))]
    aligner = Aligner([*impossible, ("a", ("X",))])
    aligner.train([*impossible, ("a", ("X",))], iterations=2)
    assert aligner.align(impossible) == [[], [], []]
    assert aligner.weights[numbered(aligner)["a", ("X",)]] == 1.0
