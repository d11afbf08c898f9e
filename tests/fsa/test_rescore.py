"""Rescoring equals the enumeration of a lattice's paths."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.fsa.enumeration import words_of
from toolkit.fsa.config import Beam, RescoreLimits
from toolkit.fsa.fst import Lattice, fst_from_arcs
from toolkit.fsa.grammar import grammar_acceptor
from toolkit.fsa.lattice import prune
from toolkit.fsa.rescore import Grammar, rescore_lattice
from toolkit.fsa.search import search_lattice
from toolkit.lang.arpa import write_arpa
from toolkit.lang.ngram import BackoffModel, Level, estimate, prune_by_entropy
from toolkit.lang.tables import SymbolTable

WORDS = {"<eps>": 0, "AB": 1, "A": 2, "B": 3, "#0": 4, "<s>": 5, "</s>": 6}
WIDE = Beam(1000.0, 1000.0, 1, 10**6)
NO_LIMITS = RescoreLimits(beam=1000.0, max_active=10**6)
TEXT = [["A", "B"], ["AB"], ["A", "B", "AB"], ["B", "B"], ["A"], ["A", "B", "A"], ["AB", "A", "B"]]
TEXT += [["B", "AB", "A", "B"], ["A", "A", "A", "B"]]


def model(order, vocabulary=("A", "AB", "B"), threshold=0.0):
    text = [[word for word in sentence if word in vocabulary] for sentence in TEXT]
    return prune_by_entropy(estimate(text, vocabulary, order, (1,))[0], threshold)


@pytest.fixture
def table():
    return SymbolTable(WORDS)


@pytest.fixture
def build_lattice(toy, tmp_path, table):
    """build_lattice(seed, frames) -> an unpruned lattice of the toy language with bigram scores."""
    table.write(tmp_path / "words.txt")
    write_arpa(model(2), tmp_path / "small.arpa")
    grammar = grammar_acceptor(tmp_path / "small.arpa", tmp_path / "words.txt")
    hmms = toy.senones("onset")
    graph = toy.decoding_graph(hmms, grammar)

    def make(seed, frames):
        generator = torch.Generator().manual_seed(seed)
        scores = torch.randn(frames, hmms.num_pdfs, generator=generator) * 3
        return search_lattice(scores, graph, WIDE)

    return make


def paths(lattice):
    """(score without LM, LM score, words, labels) of every path."""
    words, lm = words_of(lattice), lattice.lm_scores.astype(float).tolist()
    scores_without_lm = (lattice.scores.astype(float) - lattice.lm_scores).tolist()
    leaving = {}
    for number, source in enumerate(lattice.source.tolist()):
        leaving.setdefault(source, []).append(number)
    complete, stack = [], [(0, 0.0, 0.0, (), ())]
    while stack:
        state, score, of_lm, spoken, labels = stack.pop()
        for number in leaving.get(state, []):
            target, label = int(lattice.target[number]), int(lattice.labels[number])
            written = words[number]
            path = (
                target,
                score + scores_without_lm[number],
                of_lm + lm[number],
                spoken + written,
                (*labels, label),
            )
            complete.append(path[1:]) if label == -1 else stack.append(path)
    return complete


@pytest.mark.parametrize(
    ("order", "seed", "threshold"),
    [(1, 1, 0.0), (2, 2, 0.0), (3, 1, 0.0), (4, 2, 0.0), (6, 1, 0.0), (5, 2, 0.01)],
)
def test_every_path_gets_the_lm_score_of_the_new_model_alone(
    build_lattice, table, order, seed, threshold
):
    lattice, big = build_lattice(seed, 5), model(order, threshold=threshold)
    rescored = rescore_lattice(lattice, Grammar(big, table), NO_LIMITS)
    assert not rescored.cut
    original_paths, rescored_paths = paths(lattice), paths(rescored.lattice)
    assert len(original_paths) > 100
    scores_without_lm = {}
    for score, _, words, labels in original_paths:
        scores_without_lm[words, labels] = max(
            score, scores_without_lm.get((words, labels), -math.inf)
        )
    assert {(words, labels) for _, _, words, labels in rescored_paths} == scores_without_lm.keys()
    for score, lm, words, labels in rescored_paths:
        expected = big.logprob([table.symbol(word) for word in words]) * math.log(10)
        assert lm == pytest.approx(expected, abs=1e-4)
        assert score <= scores_without_lm[words, labels] + 1e-4
    assert set(rescored.lattice.frame[rescored.lattice.labels < 0].tolist()) == {5}


def test_a_beam_keeps_the_paths_within_it(build_lattice, table):
    lattice, grammar = build_lattice(3, 6), Grammar(model(3), table)
    everything = paths(rescore_lattice(lattice, grammar, NO_LIMITS).lattice)
    pruned = paths(rescore_lattice(lattice, grammar, RescoreLimits(beam=6.0)).lattice)
    best = max(score + lm for score, lm, *_ in everything)
    assert max(score + lm for score, lm, *_ in pruned) == pytest.approx(best, abs=1e-4)
    assert len(everything) > len(pruned) > 1


def test_a_word_that_is_output_late_has_no_advantage(table):
    """Two words of three frames: the graph scores both at once and outputs one at the end."""
    grammar = Grammar(model(3), table)
    scores, states = grammar.step(np.repeat(grammar.start(), 2, axis=0), np.array([2, 3]))
    whole = scores + grammar.end(states)
    charged = scores.mean()
    scores_without_lm = np.array([0.0, whole[0] - whole[1] - 0.3])  # A is the better one, by 0.3
    lm = np.zeros(7)
    lm[:2] = charged
    lattice = Lattice(
        source=np.array([0, 0, 1, 2, 3, 4, 5], dtype=np.int32),
        target=np.array([1, 2, 3, 4, 5, 5, 6], dtype=np.int32),
        labels=np.array([1, 2, 1, 2, 1, 2, -1], dtype=np.int32),
        scores=(lm + np.append(scores_without_lm, np.zeros(5))).astype(np.float32),
        splits=np.array([0, 1, 1, 1, 1, 1, 2, 2], dtype=np.int32),
        words=np.array([2, 3], dtype=np.int32),
        lm_scores=lm.astype(np.float32),
        frame=np.array([0, 0, 1, 1, 2, 2, 3], dtype=np.int32),
        graph_arc=np.arange(7, dtype=np.int32),
    )
    assert scores[0] < scores_without_lm[1] - 0.5  # as long as B is not charged it seems far ahead
    rescored = rescore_lattice(lattice, grammar, RescoreLimits(beam=0.5))
    totals = {words: score + lm for score, lm, words, _ in paths(rescored.lattice)}
    assert totals == pytest.approx({(2,): whole[0], (3,): whole[0] - 0.3}, abs=1e-4)


def test_the_memory_bound_cuts_paths_and_reports_it(build_lattice, table):
    lattice, grammar = build_lattice(4, 6), Grammar(model(3), table)
    full = rescore_lattice(lattice, grammar, NO_LIMITS)
    few = rescore_lattice(lattice, grammar, RescoreLimits(beam=1000.0, max_active=3))
    assert (full.cut, few.cut) == (False, True)
    frames = few.lattice.frame[few.lattice.labels >= 0]
    states = few.lattice.source[few.lattice.labels >= 0]
    for frame in range(6):
        assert len(set(states[frames == frame].tolist())) <= 3
    top = {name: max(s + lm for s, lm, *_ in paths(x.lattice)) for name, x in
           (("full", full), ("few", few))}  # fmt: skip
    assert top["few"] <= top["full"] + 1e-4
    assert top["few"] > top["full"] - 10


def test_a_word_that_the_model_lacks_is_unknown_to_it_or_impossible(table):
    with_unknown, words = Grammar(model(3, ("A", "B", "<UNK>")), table), np.array([1, 2])
    scores, _ = with_unknown.step(np.repeat(with_unknown.start(), 2, axis=0), words)
    unknown = model(3, ("A", "B", "<UNK>"))
    ids = np.array([unknown.ids["<UNK>"], unknown.ids["A"]])
    assert scores == pytest.approx(unknown.step(unknown.start(2), ids)[0] * math.log(10))
    logprobs = np.array([-1.0, -99.0, -0.5])
    level = Level(np.zeros(3, dtype=np.int64), np.arange(3), logprobs, np.zeros(3))
    without = Grammar(BackoffModel(("</s>", "<s>", "A"), [level]), table)
    scores, states = without.step(np.repeat(without.start(), 2, axis=0), words)
    assert scores == pytest.approx([-99 * math.log(10), -0.5 * math.log(10)])
    assert without.end(states) == pytest.approx([-math.log(10)] * 2)


def test_states_with_equal_futures_are_merged(table):
    big = model(4)
    grammar = Grammar(big, table)
    contexts = {}
    for sentence in [*TEXT, ["B"] * 5, ["AB"] * 5, ["AB", "B", "AB", "B"]]:
        grammar_state, model_state = grammar.start(), big.start(1)
        for word in sentence:
            _, grammar_state = grammar.step(grammar_state, np.array([WORDS[word]]))
            _, model_state = big.step(model_state, np.array([big.ids[word]]))
            number = int(grammar.state_ids(grammar_state)[0])
            assert 0 <= number < grammar.num_states
            ids = np.array(list(big.ids.values()))
            future = big.step(np.repeat(model_state, len(ids), 0), ids)[0]
            assert contexts.setdefault(number, future) == pytest.approx(future)
    assert len(contexts) > 8


def random_lattice(seed):
    """Six levels of states, some of them dead ends."""
    rng = np.random.default_rng(seed)
    levels = [0, 1, 4, 7, 10, 12]
    lines = []
    for (first, last), next_level in pairwise([*pairwise(levels), (12, 13)]):
        lines += [
            (source, target, rng.integers(1, 4), rng.normal())
            for source in range(first, last)
            for target in range(*next_level)
            if rng.random() < 0.5 or source == first
        ]
    source, target, labels, scores = map(np.array, zip(*lines, (12, 13, -1, 0.5), strict=True))
    place = np.arange(len(source), dtype=np.int32)
    return Lattice(
        source=source.astype(np.int32),
        target=target.astype(np.int32),
        labels=labels.astype(np.int32),
        scores=scores.astype(np.float32),
        splits=np.append(0, np.cumsum(place % 3)).astype(np.int32),
        words=np.repeat(place, place % 3),
        lm_scores=np.zeros(len(source), np.float32),
        frame=np.searchsorted(levels, source, "right").astype(np.int32) - 1,
        graph_arc=place,
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("beam", [0.5, 2.0, math.inf])
def test_pruning_keeps_the_arcs_on_good_paths_alone(seed, beam):
    lattice = random_lattice(seed)
    columns = lattice.source, lattice.target, lattice.labels
    arcs, scores = np.stack(columns, axis=1).tolist(), lattice.scores.tolist()
    through = [-math.inf] * len(arcs)
    stack = [(0, ())]
    while stack:
        state, prefix = stack.pop()
        for number, arc in enumerate(arcs):
            if arc[0] == state and arc[2] == -1:
                whole = [*prefix, number]
                total = sum(scores[i] for i in whole)
                through = [max(t, total) if i in whole else t for i, t in enumerate(through)]
            elif arc[0] == state:
                stack.append((arc[1], (*prefix, number)))
    good = [i for i, t in enumerate(through) if t >= max(through) - beam and t > -math.inf]
    pruned = prune(lattice, beam)
    assert pruned.graph_arc.tolist() == good
    assert words_of(pruned) == [(i,) * (i % 3) for i in good]
    assert pruned.scores.tolist() == [scores[i] for i in good]
    assert pruned.labels.tolist() == [arcs[i][2] for i in good]
    # States are numbered without gaps, and in the same order.
    used_states = {state for i in good for state in arcs[i][:2]}
    number = {state: n for n, state in enumerate(sorted(used_states))}
    assert pruned.source.tolist() == [number[arcs[i][0]] for i in good]
    assert pruned.target.tolist() == [number[arcs[i][1]] for i in good]


def test_pruning_a_lattice_without_paths_gives_an_empty_lattice():
    arcs = [(0, 1, 1, 0, 0.5), (0, 2, 2, 0, 0.1), (1, 2, 1, 0, 0.5)]
    assert prune(fst_from_arcs(arcs, finals=[3])) is None
    assert prune(fst_from_arcs(arcs, finals=[])) is None
