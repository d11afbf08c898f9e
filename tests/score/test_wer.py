import jiwer
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import ToolkitError
from toolkit.score.wer import Score, UtteranceScore, score

REFS = {"u1": "the cat sat", "u2": "on the mat", "u3": "quietly"}
TEXT = st.lists(st.sampled_from(["ab", "b", "abc", "c"]), min_size=1, max_size=6).map(" ".join)


def kaldi_score(insertions, deletions, substitutions, correct):
    pairs = (
        [(None, "x")] * insertions
        + [("x", None)] * deletions
        + [("x", "y")] * substitutions
        + [("x", "x")] * correct
    )
    return Score("word", (UtteranceScore("u", tuple(pairs)),))


def test_line_has_kaldis_form():
    line = kaldi_score(358, 330, 2020, 20138 - 330 - 2020).summary().splitlines()[0]
    assert line == "%WER 13.45 [ 2708 / 20138, 358 ins, 330 del, 2020 sub ]"


@pytest.mark.parametrize(
    ("errors", "words", "percent"),
    [(81, 4000, "2.03"), (321, 4000, "8.02"), (401, 4000, "10.02"), (81, 800, "10.12")],
)
def test_percent_is_rounded_through_single_precision_as_in_kaldi(errors, words, percent):
    # Values printed by a C++ program with Kaldi's expression; double precision gives 2.02, 8.03,
    # 10.03 and 10.12.
    result = kaldi_score(0, errors, 0, words - errors)
    assert result.summary().startswith(f"%WER {percent} [ {errors} / {words}, ")


def test_summary_counts_sentences_and_marks_missing_hypotheses():
    result = score(REFS, {"u1": "the hat sat", "u2": "on the mat"})
    assert result.summary() == (
        "%WER 28.57 [ 2 / 7, 0 ins, 1 del, 1 sub ] [PARTIAL]\n"
        "%SER 66.67 [ 2 / 3 ]\n"
        "Scored 3 sentences, 1 not present in hyp."
    )
    assert result.missing == ("u3",)
    assert result.utterances[2].deletions == 1


def test_empty_hypothesis_is_not_missing():
    result = score(REFS, {**REFS, "u3": ""})
    assert result.missing == ()
    assert (result.deletions, result.errors) == (1, 1)


def test_extra_hypotheses_are_reported_and_not_scored():
    result = score(REFS, {**REFS, "v": "a b", "a": "c"})
    assert result.errors == 0
    assert result.extra == ("a", "v")
    assert any("2 hypotheses have no reference" in remark for remark in result.remarks())


def test_totals_are_the_sum_of_the_utterances():
    result = score(REFS, {"u1": "a cat", "u2": "on mat the", "u3": "quiet lee"})
    for name in ("insertions", "deletions", "substitutions", "errors", "ref_units"):
        assert getattr(result, name) == sum(getattr(u, name) for u in result.utterances)


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=5))
def test_rates_equal_jiwers(pairs):
    refs = {str(n): ref for n, (ref, _) in enumerate(pairs)}
    hyps = {str(n): hyp for n, (_, hyp) in enumerate(pairs)}
    sides = list(refs.values()), list(hyps.values())
    assert score(refs, hyps).percent == pytest.approx(100 * jiwer.wer(*sides))
    assert score(refs, hyps, "char").percent == pytest.approx(100 * jiwer.cer(*sides))


def test_character_line_is_named_cer_and_counts_the_space():
    line = score({"u": "a b"}, {"u": "a  c"}, "char").summary().splitlines()[0]
    assert line == "%CER 33.33 [ 1 / 3, 0 ins, 0 del, 1 sub ]"


def test_case_differences_are_remarked():
    remarks = score({"u": "The Cat, sat"}, {"u": "the cat sit"}).remarks()
    assert any("2 of 3 substitutions differ in case or punctuation" in r for r in remarks)
    assert score(REFS, REFS).remarks() == []


@pytest.mark.parametrize(
    ("refs", "hyps", "message"),
    [
        ({}, {"u": "a"}, "reference set is empty"),
        ({"u": " "}, {"u": "a"}, "all 1 references are empty"),
        ({"u": "a"}, {"v": "a"}, "no utterance id in common"),
    ],
)
def test_what_cannot_be_scored_is_an_error(refs, hyps, message):
    with pytest.raises(ToolkitError, match=message):
        score(refs, hyps)


def test_nothing_decoded_is_all_deletions():
    result = score(REFS, {})
    assert (result.deletions, result.errors) == (7, 7)
    assert result.percent == 100
