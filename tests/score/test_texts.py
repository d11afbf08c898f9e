import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from toolkit.lang.text_policy import EnglishRules
from toolkit.score.alignment import (
    DELETION,
    INSERTION,
    OPTIONAL_DELETION,
    OPTIONAL_INSERTION,
    SUBSTITUTION,
    WEIGHTS,
    pairs_of,
)
from toolkit.score.nist.grammar import Grammar, nist_aligner
from toolkit.score.normalise import ScoringFilter
from toolkit.score.wer import score

MARKS = Grammar(fragments=True, optional=True)


WORD = st.sampled_from(["a", "ab", "c", "(b)", "(ab)"])
WORDS = st.lists(WORD, max_size=5).map(" ".join)


@pytest.mark.parametrize(
    ("ref", "hyp", "errors", "characters"),
    [
        ("so (uh) yes", "so uh yes", 0, 9),
        ("so (uh) yes", "so yes", 0, 9),  # `sclite -c -D`: all right, and counted
        ("so (uh) yes", "so um yes", 1, 9),
        ("so (uh) yes", "", 6, 9),
        ("so yes", "so (uh) yes", 0, 9),
        ("so yes (uh)", "so yes", 0, 9),
        ("(uh) so", "so", 0, 5),
        ("so (uh) (um)", "(oh) so", 0, 11),
        ("{ a (uh) / b } c", "a c", 0, 6),
        ("wo- yes", "word yes", 2, 7),  # a fragment is none of characters, as in sclite
    ],
)
def test_optional_words_have_no_wrong_characters(ref, hyp, errors, characters):
    result = score({"u": ref}, {"u": hyp}, unit="char-with-spaces", aligner=nist_aligner(MARKS))
    assert (result.errors, result.ref_units) == (errors, characters)
    without_spaces = score({"u": ref}, {"u": hyp}, unit="char", aligner=nist_aligner(MARKS))
    spoken = result.utterances[0].ref_text
    assert without_spaces.ref_units <= characters - spoken.count(" ")
    assert without_spaces.errors <= errors


@given(WORDS, WORDS, st.sampled_from(WEIGHTS))
def test_characters_are_those_of_the_words_without_parentheses(ref, hyp, weights):
    assume(ref)
    align = nist_aligner(Grammar(optional=True))
    (path,) = align(["u"], [ref], [hyp], "word", weights, str).steps
    aligned = align(["u"], [ref], [hyp], "char-with-spaces", weights, str)
    (ref_text,), (hyp_text,), (steps,), _ = aligned
    assert (ref_text, hyp_text) == tuple(t.replace("(", "").replace(")", "") for t in (ref, hyp))
    gaps = (INSERTION, OPTIONAL_INSERTION), (DELETION, OPTIONAL_DELETION)
    assert [sum(s not in gap for s in steps) for gap in gaps] == [len(ref_text), len(hyp_text)]
    aligned = pairs_of(steps, ref_text, hyp_text)
    matches = (s not in (INSERTION, DELETION, SUBSTITUTION) for s in steps)
    assert all((a == b) == same for (a, b), same in zip(aligned, matches, strict=True))
    omitted = sum(s == OPTIONAL_DELETION for s in path)
    assert (steps.count(OPTIONAL_DELETION) > 0) == (omitted > 0)


def test_characters_are_counted_as_removed_once_and_marks_are_none():
    normalise = ScoringFilter("english")
    texts = {"u1": "{ a 1 / @ } c*", "u2": "d 2"}
    score(texts, texts, normalise=normalise, aligner=nist_aligner(Grammar()))
    (remark,) = normalise.remarks()
    assert f"the rules {EnglishRules.id} removed 4 characters" in remark
    assert "{" not in remark
