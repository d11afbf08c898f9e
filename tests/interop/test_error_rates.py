"""Error counts equal those of jiwer, kaldialign and meeteval on generated texts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.score.wer import score

TEXTS = st.lists(st.sampled_from(["a", "b", "c", "ab", "é"]), max_size=9).map(" ".join)
PAIRS = st.lists(st.tuples(TEXTS.filter(bool), TEXTS), min_size=1, max_size=8)
MANY = settings(max_examples=60, deadline=None)


def scored(pairs):
    refs, hyps = ({str(n): pair[side] for n, pair in enumerate(pairs)} for side in (0, 1))
    return score(refs, hyps)


@MANY
@given(PAIRS)
def test_jiwer_counts_the_same_errors(pairs):
    jiwer = pytest.importorskip("jiwer")
    measures = jiwer.process_words(*map(list, zip(*pairs, strict=True)))
    result = scored(pairs)
    assert result.errors == measures.substitutions + measures.deletions + measures.insertions
    assert result.ref_units == measures.hits + measures.substitutions + measures.deletions
    assert result.percent == pytest.approx(100 * measures.wer)


@MANY
@given(PAIRS)
def test_kaldialign_counts_the_same_errors(pairs):
    """Its sclite mode is not used: it breaks ties differently from sclite."""
    kaldialign = pytest.importorskip("kaldialign")
    for utterance, (ref, hyp) in zip(scored(pairs).utterances, pairs, strict=True):
        counts = kaldialign.edit_distance(ref.split(), hyp.split())
        assert utterance.errors == counts["total"]


@MANY
@given(PAIRS)
def test_meeteval_counts_the_same_errors(pairs):
    wer = pytest.importorskip("meeteval.wer.wer.siso")
    for utterance, (ref, hyp) in zip(scored(pairs).utterances, pairs, strict=True):
        rate = wer.siso_word_error_rate(ref, hyp)
        assert (utterance.errors, utterance.ref_units) == (rate.errors, rate.length)
