"""Prefix beam search and greedy decoding, against all alignments."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.decode.config import PrefixConfig
from toolkit.decode.ctc.search import GreedyDecoder, PrefixDecoder, collapse
from toolkit.lang.units import Characters

UNITS = Characters()


def posteriors(symbols, frames, seed):
    """Log-probabilities of Characters of which only `symbols` are possible."""
    logits = np.full((frames, UNITS.size), -np.inf)
    columns = [UNITS.symbols.index(symbol) for symbol in symbols]
    logits[:, columns] = 2 * np.random.default_rng(seed).standard_normal((frames, len(columns)))
    return torch.from_numpy(logits).log_softmax(dim=1).float(), columns


def paths(log_probs, columns):
    rows = log_probs.double().numpy()
    for path in itertools.product(columns, repeat=len(rows)):
        yield path, sum(rows[t, s] for t, s in enumerate(path))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), frames=st.integers(1, 6))
def test_every_text_has_the_score_of_all_its_alignments(seed, frames):
    log_probs, columns = posteriors([" ", "a", "b", "<blank>"], frames, seed)
    expected = {}
    for path, score in paths(log_probs, columns):
        text = UNITS.decode(collapse(list(path), UNITS.blank))
        expected[text] = np.logaddexp(expected.get(text, -math.inf), score)
    config = PrefixConfig(width=2000, margin=math.inf, nbest=2000)
    hypotheses = PrefixDecoder(UNITS, config).decode(log_probs)
    assert {h.text: pytest.approx(h.score, abs=1e-4) for h in hypotheses} == expected
    assert len(hypotheses) == len(expected)


def test_each_text_is_listed_once():
    log_probs, _ = posteriors(["o", "_", "<blank>"], 5, seed=1)
    decoder = PrefixDecoder(UNITS, PrefixConfig(width=999, margin=math.inf, nbest=99))
    texts = [h.text for h in decoder.decode(log_probs)]
    assert len(texts) == len(set(texts)) > 2


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_greedy_is_the_best_path(seed):
    log_probs, columns = posteriors(["a", "b", "_", "<blank>"], 5, seed)
    best, score = max(paths(log_probs, columns), key=lambda item: item[1])
    hypotheses = GreedyDecoder(UNITS).decode(log_probs)
    assert [h.text for h in hypotheses] == [UNITS.decode(collapse(list(best), UNITS.blank))]
    assert hypotheses[0].score == pytest.approx(score, abs=1e-4)


def test_collapse_merges_repeats_before_it_drops_blanks():
    assert collapse([3, 0, 0, 3, 0, 1, 1, 3], blank=3) == [0, 0, 1]
    assert collapse([], blank=3) == []


def test_no_frames_give_no_text():
    nothing = torch.zeros(0, UNITS.size)
    for decoder in (GreedyDecoder(UNITS), PrefixDecoder(UNITS)):
        assert [(h.text, h.score) for h in decoder.decode(nothing)] == [("", 0.0)]
