"""CTC forced alignment against the enumeration of all paths."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.decode.ctc.dictionary import CtcDecodeError
from toolkit.decode.words import align_labels

BLANK = 3


def draw(frames, seed):
    logits = 2 * np.random.default_rng(seed).standard_normal((frames, 4))
    return (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).astype(np.float32)


def collapsed(path):
    return [s for s, _ in itertools.groupby(path) if s != BLANK]


@settings(max_examples=60, deadline=None)
@given(
    labels=st.lists(st.integers(0, 2), min_size=1, max_size=4),
    frames=st.integers(1, 7),
    seed=st.integers(0, 10**6),
)
def test_the_best_of_all_paths(labels, frames, seed):
    log_probs = draw(frames, seed)
    rows = log_probs.astype(float)
    scores = {
        path: sum(rows[t, s] for t, s in enumerate(path))
        for path in itertools.product(range(4), repeat=frames)
        if collapsed(path) == labels
    }
    if not scores:
        with pytest.raises(CtcDecodeError, match="frames are too few"):
            align_labels(log_probs, labels, BLANK)
        return
    alignment = align_labels(log_probs, labels, BLANK)
    assert alignment.score == pytest.approx(max(scores.values()), abs=1e-9)
    path = np.full(frames, BLANK)
    for label, start, end in zip(labels, alignment.starts, alignment.ends, strict=True):
        assert end > start
        path[start:end] = label
    assert scores[tuple(path.tolist())] == pytest.approx(alignment.score, abs=1e-9)
    inside = [
        rows[s:e, y].sum() for y, s, e in zip(labels, alignment.starts, alignment.ends, strict=True)
    ]
    assert alignment.log_posteriors == pytest.approx(inside)


@pytest.mark.parametrize("frames", [99, 100, 1000])
def test_blocks_change_nothing(frames, monkeypatch):
    log_probs = draw(frames, 1)
    labels = np.random.default_rng(2).integers(0, 3, 40).tolist()
    alignment = align_labels(log_probs, labels, BLANK)
    monkeypatch.setattr(math, "isqrt", lambda n: n)  # a single block
    whole = align_labels(log_probs, labels, BLANK)
    assert np.array_equal(alignment.starts, whole.starts)
    assert np.array_equal(alignment.ends, whole.ends)
    assert alignment.score == whole.score


def test_an_impossible_label_has_no_path():
    log_probs = draw(9, 0)
    log_probs[:, 1] = -math.inf
    with pytest.raises(CtcDecodeError, match="probability 0"):
        align_labels(log_probs, [0, 1], BLANK)
