"""CTC decoding in a graph, against the best alignment of every text."""

import itertools
import math

import numpy as np
import pytest
import torch

from toolkit.decode.config import GraphConfig
from toolkit.decode.ctc.graph import GraphDecoder, make_ctc_graph
from toolkit.decode.ctc.search import collapse
from toolkit.fsa.config import Beam
from toolkit.lang.arpa import write_arpa
from toolkit.lang.ngram import estimate
from toolkit.lang.units import Characters

WORDS = ("A", "AB", "BA", "ALL")
WIDE = Beam(search=200.0, output=100.0, max_active=10_000)


class Pieces:
    """Three pieces: two begin words."""

    kind = "toy"
    symbols = ["_A", "B", "_B", "<blank>"]  # noqa: RUF012
    size, blank = 4, 3
    spellings = {"A": [0], "AB": [0, 1], "B": [2], "BB": [2, 1]}  # noqa: RUF012

    def encode(self, text):
        return self.spellings[text]

    def decode(self, ids):
        return "".join(self.symbols[i] for i in ids).replace("_", " ").strip()

    def save(self, folder):
        raise NotImplementedError


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    """A model of all the words, and its file."""
    sentences = [["A", "AB"], ["BA", "A", "ALL"], ["AB"], ["B", "BB", "A"], ["ALL", "ALL", "BA"]]
    model = estimate(sentences, {*WORDS, "B", "BB"}, order=2)[0]
    path = tmp_path_factory.mktemp("lm") / "lm.arpa"
    write_arpa(model, path)
    return model, path


def expected(log_probs, units, words, model, weight, bonus):
    """The best alignment's score of every text."""
    rows, best = log_probs.double().numpy(), {}
    columns = [c for c in range(units.size) if rows[0, c] > -math.inf]
    for path in itertools.product(columns, repeat=len(rows)):
        labels = collapse(list(path), units.blank)
        text = units.decode(labels)
        if set(text.split()) <= set(words) and is_spelled_by(text, labels, units):
            score = sum(rows[t, s] for t, s in enumerate(path))
            best[text] = max(best.get(text, -math.inf), score)
    return {
        text: score
        + weight * math.log(10) * graph_logprob(model, text.split())
        + bonus * len(text.split())
        for text, score in best.items()
    }


def graph_logprob(model, words):
    """As a graph scores a sentence: it may back off from a bigram that is listed."""
    unigrams, total = model.levels[0], 0.0
    ids = model.word_ids(["<s>", *words, "</s>"])
    for previous, word in itertools.pairwise(ids):
        backed = unigrams.backoff[previous] + unigrams.logprob[word]
        place = model.find(1, np.array([previous]), np.array([word]))[0]
        total += backed if place < 0 else max(backed, model.levels[1].logprob[place])
    return total


def is_spelled_by(text, labels, units):
    """Whether each word is written as the units write it."""
    letters = [symbol for symbol in labels if units.symbols[symbol] != " "]
    return letters == [label for word in text.split() for label in units.encode(word)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("units", "words"),
    [
        (Characters(), WORDS),
        (Characters(), ("AB", "BA")),  # no two begin with the same letter
        (Pieces(), tuple(Pieces.spellings)),
    ],
    ids=["characters", "distinct", "pieces"],
)
def test_the_best_texts_and_their_scores(lm, tmp_path, units, words, seed):
    model, arpa = lm
    size = make_ctc_graph(words, units, arpa, tmp_path / "graph")
    assert size["arcs"] > 0
    log_probs = torch.full((5, units.size), -math.inf)
    columns = range(4)
    if units.kind == "characters":
        columns = [units.symbols.index(s) for s in (" ", "a", "b", "<blank>")]
    logits = 2 * np.random.default_rng(seed).standard_normal((5, 4))
    log_probs[:, columns] = torch.from_numpy(logits).log_softmax(dim=1).float()
    weight, bonus = 0.7, 0.4
    expected_scores = expected(log_probs, units, words, model, weight, bonus)
    best = sorted(expected_scores.items(), key=lambda item: -item[1])
    config = GraphConfig(WIDE, lm_weight=weight, word_bonus=bonus, nbest=5)
    hypotheses = GraphDecoder(tmp_path / "graph", units, config).decode(log_probs)
    assert [h.text for h in hypotheses] == [text for text, _ in best[:5]]
    assert [h.score for h in hypotheses] == pytest.approx([s for _, s in best[:5]], abs=1e-3)

    single = GraphDecoder(
        tmp_path / "graph", units, GraphConfig(WIDE, lm_weight=weight, word_bonus=bonus)
    ).decode(log_probs)
    assert [(h.text, h.score) for h in single] == [
        (hypotheses[0].text, pytest.approx(hypotheses[0].score, abs=1e-3))
    ]


def test_double_letters_and_jobs(lm, tmp_path):
    units = Characters()
    make_ctc_graph(WORDS, units, lm[1], tmp_path)
    rows = [[units.symbols.index(s)] for s in ["a", "l", "_", "l", " ", "a"]]
    log_probs = torch.full((6, units.size), -100.0).scatter(1, torch.tensor(rows), 0.0)
    decoder = GraphDecoder(tmp_path, units)
    assert [h.text for h in decoder.decode(log_probs)] == ["ALL A"]
    nbest_lists = list(decoder.decode_many([log_probs, log_probs[:4]], jobs=2))
    assert [hypotheses[0].text for hypotheses in nbest_lists] == ["ALL A", "ALL"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_texts_of_several_weights_equal_separate_searches(lm, tmp_path, jobs):
    units = Characters()
    make_ctc_graph(WORDS, units, lm[1], tmp_path)
    logits = 3 * np.random.default_rng(0).standard_normal((4, 12, units.size))
    columns = [c for c, s in enumerate(units.symbols) if s not in (" ", "a", "b", "l", "_")]
    logits[:, :, columns[:-1]] = -20
    utterances = list(torch.from_numpy(logits).log_softmax(dim=2).float())
    utterances.append(torch.full((1, units.size), -1e30))
    decoder = GraphDecoder(tmp_path, units, GraphConfig(WIDE))
    pairs = [(0.5, 0.0), (0.5, 3.0), (2.0, -4.0), (2.0, 3.0)]
    texts_by_pair = list(decoder.texts(utterances, pairs, jobs))
    for pair, texts in zip(pairs, texts_by_pair, strict=True):
        tuned = decoder.tuned(*pair)
        assert texts == [tuned.decode(log_probs)[0].text for log_probs in utterances]
    assert len(set(map(tuple, texts_by_pair))) > 2


def test_no_path_gives_an_empty_text(lm, tmp_path):
    units = Characters()
    make_ctc_graph(["ALL", "AB"], units, lm[1], tmp_path)
    log_probs = torch.full((1, units.size), -1e30)
    log_probs[:, 1] = 0.0  # a single A, and nothing that may follow
    hypotheses = GraphDecoder(tmp_path, units).decode(log_probs)
    assert [(h.text, h.score) for h in hypotheses] == [("", -math.inf)]


@pytest.mark.parametrize("wrong", [{"lm_weight": 0.0}, {"nbest": 0}])
def test_invalid_configurations_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        GraphConfig(**wrong)
