"""N-best lists and samples agree with the enumeration of a lattice's paths."""

import math

import numpy as np
import pytest
import torch

from tests.fsa.enumeration import words_of
from toolkit.fsa.config import Beam
from toolkit.fsa.grammar import grammar_acceptor
from toolkit.fsa.lattice import ScoredLattice, Weights
from toolkit.fsa.nbest import n_best, sampled_words
from toolkit.fsa.search import search_lattice
from toolkit.lang.arpa import write_arpa
from toolkit.lang.ngram import estimate

WORDS = "<eps> 0\nAB 1\nA 2\nB 3\n#0 4\n<s> 5\n</s> 6\n"
TEXT = [["A", "B"], ["AB"], ["A", "B", "AB"], ["B", "B"], ["A"], ["AB", "A", "B"]]
SCALE = 0.5


@pytest.fixture
def scored(toy, tmp_path):
    (tmp_path / "words.txt").write_text(WORDS)
    write_arpa(estimate(TEXT, ["A", "AB", "B"], 2, (1,))[0], tmp_path / "lm.arpa")
    grammar = grammar_acceptor(tmp_path / "lm.arpa", tmp_path / "words.txt")
    hmms = toy.senones("onset")
    generator = torch.Generator().manual_seed(5)
    scores = torch.randn(5, hmms.num_pdfs, generator=generator) * 3 * SCALE
    wide = Beam(1000.0, 1000.0, 1, 10**6)
    lattice = search_lattice(scores, toy.decoding_graph(hmms, grammar), wide)
    return ScoredLattice.of(lattice, scores, SCALE)


def all_paths(lattice: ScoredLattice, weights: Weights):
    """(score, acoustic, LM, words) of every path."""
    fst = lattice.lattice
    arcs = list(zip(fst.source.tolist(), fst.target.tolist(), fst.labels.tolist(), strict=True))
    words = words_of(fst)
    columns = np.stack([lattice.weighted(weights), lattice.acoustic, fst.lm_scores], 1).tolist()
    complete, stack = [], [(0, (0.0, 0.0, 0.0), ())]
    while stack:
        state, sums, spoken = stack.pop()
        for number, (source, target, label) in enumerate(arcs):
            if source == state:
                total = tuple(a + b for a, b in zip(sums, columns[number], strict=True))
                read = spoken + words[number]
                if label == -1:
                    complete.append((*total, read))
                else:
                    stack.append((target, total, read))
    return complete


@pytest.mark.parametrize("weights", [Weights(SCALE), Weights(0.2, -1.5)])
@pytest.mark.parametrize("count", [1, 7, 10**6])
def test_the_n_best_sequences_are_those_of_enumeration(scored, weights, count):
    best = {}
    for path in all_paths(scored, weights):
        best[path[3]] = max(path, best.get(path[3], (-math.inf,)))
    expected = sorted(best.values(), reverse=True)[:count]
    hypotheses = n_best(scored, weights, count)
    assert len(hypotheses) == len(expected) > (1 if count > 1 else 0)
    for hypothesis, (score, acoustic, lm, words) in zip(hypotheses, expected, strict=True):
        assert hypothesis.words == words
        assert hypothesis.score == pytest.approx(score, abs=1e-4)
        assert hypothesis.acoustic == pytest.approx(acoustic, abs=1e-3)
        assert hypothesis.lm == pytest.approx(lm, abs=1e-4)
    assert list(hypotheses[0].words) == scored.best_words(weights)


def test_samples_are_as_frequent_as_their_posteriors(scored):
    weights, mass = Weights(0.2), {}
    for score, _, _, words in all_paths(scored, weights):
        mass[words] = mass.get(words, 0.0) + math.exp(score)
    samples = sampled_words(scored, weights, 2000)
    assert len(samples) == 2000
    total = sum(mass.values())
    assert len(mass) > 5
    for words, likely in mass.items():
        assert samples.count(words) / 2000 == pytest.approx(likely / total, abs=0.02)
    assert samples == sampled_words(scored, weights, 2000)
