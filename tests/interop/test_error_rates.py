"""Counts of errors against jiwer, kaldialign and meeteval on generated texts."""

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
    theirs = jiwer.process_words(*map(list, zip(*pairs, strict=True)))
    ours = scored(pairs)
    assert ours.errors == theirs.substitutions + theirs.deletions + theirs.insertions
    assert ours.ref_units == theirs.hits + theirs.substitutions + theirs.deletions
    assert ours.percent == pytest.approx(100 * theirs.wer)


@MANY
@given(PAIRS)
def test_kaldialign_counts_the_same_errors(pairs):
    """Its sclite mode is left out: it breaks ties otherwise than sclite."""
    kaldialign = pytest.importorskip("kaldialign")
    for utterance, (ref, hyp) in zip(scored(pairs).utterances, pairs, strict=True):
        theirs = kaldialign.edit_distance(ref.split(), hyp.split())
        assert utterance.errors == theirs["total"]


@MANY
@given(PAIRS)
def test_meeteval_counts_the_same_errors(pairs):
    wer = pytest.importorskip("meeteval.wer.wer.siso")
    for utterance, (ref, hyp) in zip(scored(pairs).utterances, pairs, strict=True):
        theirs = wer.siso_word_error_rate(ref, hyp)
        assert (utterance.errors, utterance.ref_units) == (theirs.errors, theirs.length)
