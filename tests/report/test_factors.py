"""Word errors of groups of utterances by what may explain them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.report.test_browser import split_errors
from toolkit.report.error_analysis import (
    MAX_BINS,
    MIN_BIN_UTTERANCES,
    factor_figures,
    quantile_bins,
)

ROWS = st.lists(
    st.tuples(st.integers(0, 30).map(float), st.integers(0, 5), st.integers(0, 9)), max_size=150
)


@given(ROWS)
def test_bins_divide_the_utterances_by_value(rows):
    values, errors, words = zip(*rows, strict=True) if rows else ((), (), ())
    found = quantile_bins(values, errors, words)
    assert len(found) <= MAX_BINS
    assert bool(found) or len(rows) < 2 * MIN_BIN_UTTERANCES or not sum(words)
    for one, following in pairwise(found):
        assert one.high < following.low  # equal values are in the same bin
    for one in found:
        inside = [row for row in rows if one.low <= row[0] <= one.high]
        assert one.utterances == len(inside)
        assert (one.errors, one.words) == (sum(r[1] for r in inside), sum(r[2] for r in inside))
        assert one.low <= one.middle <= one.high
        assert one.wer == pytest.approx(100 * one.errors / one.words)


def test_figures_show_what_is_known():
    texts = {f"u{n:03d}": "a b c d"[: 1 + 2 * (n % 4)] for n in range(80)}
    hypotheses = {id: "a" for id in texts}
    quiet = factor_figures(split_errors(texts, hypotheses))
    assert "WER against duration" in quiet
    assert "WER against speaking rate" in quiet
    assert "noise ratio" not in quiet
    noisy = factor_figures(split_errors(texts, hypotheses, snr=[float(n) for n in range(80)]))
    assert "WER against signal-to-noise ratio" in noisy
    assert "0 to 9 dB: WER" in noisy
    few = dict(list(texts.items())[: 2 * MIN_BIN_UTTERANCES - 1])
    assert factor_figures(split_errors(few, few)) == ""
