"""The compiled search from inside: the trie of prefixes and the size of the beam."""

import math

import numpy as np
import pytest

from toolkit.decode.ctc import kernels
from toolkit.decode.ctc.dictionary import Dictionary, Ngrams
from toolkit.decode.ctc.kernels import ROOT, SEARCH, SYMBOL, search
from toolkit.lang.units import Characters

UNITS = Characters()
WORDS = ["A", "AN", "AND", "BALL", "BELL", "COOL", "CAT", "CATS", "DOG", "TAN", "THE", "THEN"]


def run(log_probs, width, symbols=99, table=0):
    """Search; the dictionary's tree, all prefixes and the last beam."""
    tree, frames = Dictionary.of(WORDS, UNITS).tree, len(log_probs)
    settings = np.zeros(1, SEARCH)
    settings["blank"], settings["space"], settings["between"] = UNITS.blank, UNITS.space, 1
    settings["width"], settings["margin"], settings["symbols"] = width, math.inf, symbols
    marks = np.zeros(UNITS.size, SYMBOL)
    marks["between"][0] = UNITS.space
    trie = kernels.empty_trie(1 + frames * width, UNITS.space, 0)
    beams = kernels.empty_beam(width), kernels.empty_beam(width)
    hash_table = np.zeros(table, np.int32) if table else kernels.empty_table(len(trie))
    room = kernels.empty_candidates(width)
    lm = Ngrams.none().arrays
    search(log_probs, tree.nodes, lm, beams, trie, hash_table, room, marks, settings)
    return tree, trie[: settings["nodes"][0]], beams[frames % 2][: settings["size"][0]]


def children(tree, place):
    node = tree.nodes[place]
    return {int(tree.nodes["symbol"][c]): c for c in range(node["first"], node["last"])}


def test_every_prefix_is_one_node_at_the_place_of_its_symbols():
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((150, UNITS.size)).astype(np.float32)
    tree, nodes, _ = run(logits, width=40)
    assert len(nodes) > 1500
    pairs = set(zip(nodes["parent"].tolist(), nodes["symbol"].tolist(), strict=True))
    assert len(pairs) == len(nodes)
    for parent, symbol, place in nodes[["parent", "symbol", "place"]][1:].tolist():
        parent_place = int(nodes["place"][parent])
        assert parent < len(nodes)
        if symbol == UNITS.space:
            assert tree.nodes["word"][parent_place] >= 0
            assert place == ROOT
        else:
            assert children(tree, parent_place)[symbol] == place


def test_collisions_in_the_hash_table_change_nothing():
    logits = np.random.default_rng(0).standard_normal((150, UNITS.size)).astype(np.float32)
    _, sparse, sparse_beam = run(logits, width=40)
    _, full, full_beam = run(logits, width=40, table=2048)  # almost full
    assert len(full) == len(sparse)
    assert np.array_equal(full_beam["node"], sparse_beam["node"])
    assert np.array_equal(full_beam["total"], sparse_beam["total"])


@pytest.mark.parametrize("width", [1, 2, 7, 30])
def test_ties_do_not_widen_the_beam(width):
    log_probs = np.full((25, UNITS.size), -3.0, dtype=np.float32)
    _, trie, beam = run(log_probs, width, symbols=5)
    assert len(beam) == width
    assert len(set(beam["node"].tolist())) == width
    assert len(trie) <= 1 + 25 * width


def test_the_tree_holds_exactly_the_words():
    tree = Dictionary.of(WORDS, UNITS).tree
    spellings = []

    def walk(place, labels):
        node = tree.nodes[place]
        assert node["depth"] == len(labels)
        below = [word for word in range(node["low"], node["high"])]
        assert all(spelling(word)[: len(labels)] == labels for word in below)
        if node["word"] >= 0:
            spellings.append((int(node["word"]), labels))
        for symbol, child in children(tree, place).items():
            walk(child, [*labels, symbol])

    def spelling(word):
        return tree.letters[tree.begin[word] : tree.begin[word + 1]].tolist()

    walk(ROOT, [])
    assert spellings == [(word, UNITS.encode(text)) for word, text in enumerate(sorted(WORDS))]
