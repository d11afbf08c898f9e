import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from toolkit.fsa.config import PhoneNgramConfig
from toolkit.fsa.denominator import Denominator, DenominatorError, make_denominator, phone_ngram
from toolkit.fsa.expand import expand_phones_to_pdfs
from toolkit.fsa.fst import FINAL

SENTENCES = [[1, 2, 3, 1], [1, 3, 3, 2, 1], [2, 2, 1, 3], [1, 2, 3, 3, 1]]


@pytest.fixture
def phones():
    return phone_ngram(SENTENCES, PhoneNgramConfig(3))


@pytest.fixture
def denominator_and_graph(toy, phones):
    senones = toy.senones("onset", variants=2)
    return make_denominator(phones, senones), expand_phones_to_pdfs(phones, senones)


def weights_of_pdfs(arcs, start, frames):
    """The summed weight of all paths that read each sequence of pdfs."""
    path_weights = {((), start): 1.0}
    for _ in range(frames):
        longer = {}
        for (pdfs, state), weight in path_weights.items():
            for target, pdf, w in arcs.get(state, ()):
                key = ((*pdfs, pdf), target)
                longer[key] = longer.get(key, 0) + weight * w
        path_weights = longer
    summed = {}
    for (pdfs, _), weight in path_weights.items():
        summed[pdfs] = summed.get(pdfs, 0) + weight
    return summed


def test_the_denominator_accepts_what_the_composed_graph_accepts(denominator_and_graph):
    hmm, graph = denominator_and_graph
    of_hmm, of_graph = {}, {}
    columns = (hmm.source, hmm.target, hmm.pdf[hmm.target], hmm.weight)
    for source, target, pdf, weight in zip(*(x.tolist() for x in columns), strict=True):
        of_hmm.setdefault(source, []).append((target, pdf, weight))
    columns = (graph.source, graph.target, graph.labels, graph.scores)
    for source, target, label, score in zip(*(x.tolist() for x in columns), strict=True):
        if label != FINAL:
            of_graph.setdefault(source, []).append((target, label - 1, math.exp(score)))
    for frames in (1, 3, 4):
        assert weights_of_pdfs(of_hmm, 0, frames) == pytest.approx(
            weights_of_pdfs(of_graph, 0, frames)
        )


def test_initial_probabilities_are_those_of_a_hundred_frames(denominator_and_graph):
    hmm, graph = denominator_and_graph
    occupancy, total = {0: 1.0}, {}
    leaving = {}
    for source, score in zip(graph.source.tolist(), graph.scores.tolist(), strict=True):
        leaving[source] = leaving.get(source, 0) + math.exp(score)
    for _ in range(100):
        for state, share in occupancy.items():
            total[state] = total.get(state, 0) + share / 100
        next_states = {}
        for a in range(graph.num_arcs):
            source = int(graph.source[a])
            if graph.labels[a] != FINAL and source in occupancy:
                share = occupancy[source] * math.exp(graph.scores[a]) / leaving[source]
                target = int(graph.target[a])
                next_states[target] = next_states.get(target, 0) + share
        occupancy = {
            state: share / sum(next_states.values()) for state, share in next_states.items()
        }
    assert hmm.initial.tolist() == pytest.approx([total.get(s, 0) for s in range(hmm.num_states)])
    assert hmm.initial.sum() == pytest.approx(1)
    expected = np.zeros(hmm.num_states)
    for source, target, weight in zip(hmm.source, hmm.target, hmm.weight, strict=True):
        expected[target] += hmm.initial[source] * weight
    assert hmm.begin.tolist() == pytest.approx(expected.tolist())


def test_a_denominator_is_read_as_it_was_written(denominator_and_graph, tmp_path):
    hmm, _ = denominator_and_graph
    hmm.save(tmp_path / "den")
    read = Denominator.load(tmp_path / "den")
    for name in ("source", "target", "weight", "pdf", "initial"):
        assert np.array_equal(getattr(read, name), getattr(hmm, name))


@pytest.mark.parametrize(
    "changes",
    [
        {"source": 7}, {"target": -1}, {"target": 10_000}, {"weight": 0.0}, {"initial": -1.0},
        {"pdf": -1},
    ],
)  # fmt: skip
def test_damaged_files_are_refused(denominator_and_graph, tmp_path, changes):
    hmm, _ = denominator_and_graph
    for name, value in changes.items():
        column = getattr(hmm, name).copy()
        column[0] = value
        replace(hmm, **{name: column}).save(tmp_path / "den")
    with pytest.raises(DenominatorError, match="den"):
        Denominator.load(tmp_path / "den")
    (tmp_path / "den").write_bytes(b"nothing")
    with pytest.raises(DenominatorError, match="den"):
        Denominator.load(tmp_path / "den")


def test_every_phone_sequence_of_the_data_is_possible(denominator_and_graph, toy):
    hmm, _ = denominator_and_graph
    arcs = {}
    columns = (hmm.source, hmm.target, hmm.pdf[hmm.target], hmm.weight)
    for source, target, pdf, weight in zip(*(x.tolist() for x in columns), strict=True):
        arcs.setdefault(source, []).append((target, pdf, weight))
    possible = {n: weights_of_pdfs(arcs, 0, n) for n in (4, 5)}
    senones = toy.senones("onset", variants=2)
    for sentence, frames in itertools.product(SENTENCES, possible):
        if len(sentence) <= frames:
            assert toy.pdf_paths(senones, tuple(sentence), frames) <= possible[frames].keys()
