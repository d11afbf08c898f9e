import pytest

from toolkit.score.normalise import basic
from toolkit.score.wer import score


def remarks(ref, hyp, **options):
    return score({"u": ref}, {"u": hyp}, **options).remarks()


def test_different_normal_forms_get_a_remark():
    (remark,) = remarks("caf\u00e9 noir", "cafe\u0301 noir")
    assert "1 of 1 substitutions differ only in Unicode's normal form" in remark
    (remark,) = remarks("caf\u00e9", "cafe\u0301", unit="char")
    assert "1 utterances have errors only because of Unicode's normal form" in remark
    assert remarks("caf\u00e9", "cafe") == []


@pytest.mark.parametrize("space", ["\u00a0", "\u3000", "\u2028", "\u0085"])
def test_unicode_white_space_is_part_of_a_word_and_gets_a_remark(space):
    ref = f"a{space}b c"
    result = score({"u": ref}, {"u": "a b c"})
    assert (result.ref_units, result.errors) == (2, 2)
    assert "1 utterances with errors have white space inside words" in result.remarks()[0]
    assert remarks(ref, ref) == []


@pytest.mark.parametrize(
    ("ref", "hyp"),
    [("10,000", "10000"), ("U.S.A.", "USA"), ("e-mail", "email"), ("3.5", "35")],
)
def test_no_remark_advises_rules_that_keep_the_words_apart(ref, hyp):
    assert remarks(ref, hyp) == []
    assert score({"u": ref}, {"u": hyp}, normalise=basic).errors > 0


def test_a_difference_only_in_case_gets_a_remark():
    (remark,) = remarks("A B", "a b")
    assert "2 of 2 substitutions differ only in case or punctuation" in remark


def test_rules_already_applied_are_not_recommended():
    (remark,) = remarks("It's late", "it's late")
    assert "--normalise basic" in remark
    assert remarks("it's late", "its late") == []
