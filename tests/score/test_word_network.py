import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.score.alignment import OPTIONAL_DELETION, OPTIONAL_INSERTION, align
from toolkit.score.nist.grammar import (
    Choice,
    Grammar,
    GrammarError,
    Network,
    align_networks,
    nist_aligner,
    parse,
)
from toolkit.score.wer import score

WORD = st.sampled_from(["a", "b", "c", "@"])


def texts(words, depth=2):
    if not depth:
        return st.lists(words, min_size=1, max_size=2).map(" ".join)
    inner = st.lists(texts(words, depth - 1), min_size=1, max_size=3)
    choice = inner.map(lambda parts: f"{{ {' / '.join(parts)} }}")
    return st.lists(words | choice, min_size=1, max_size=3).map(" ".join)


def sequences(items):
    """All sequences of words of a parsed transcript."""
    sides = [
        [s for part in item.alternatives for s in sequences(part)]
        if isinstance(item, Choice)
        else [[] if item == "@" else [item]]
        for item in items
    ]
    return [list(itertools.chain(*parts)) for parts in itertools.product(*sides)]


def cost(pairs, weights):
    substitution, gap = {"kaldi": (1, 1), "sclite": (4, 3)}[weights]
    return sum(gap if None in (a, b) else substitution * (a != b) for a, b in pairs)


@settings(max_examples=60, deadline=None)
@given(texts(WORD), texts(WORD, 1), st.sampled_from(["kaldi", "sclite"]))
def test_no_choice_among_the_alternatives_is_better(ref, hyp, weights):
    alignment = align_networks(Network.of(parse(ref)), Network.of(parse(hyp)), Grammar(), weights)
    sides = itertools.product(sequences(parse(ref)), sequences(parse(hyp)))
    costs = {(*a, "|", *b): cost(align(a, b, weights), weights) for a, b in sides}
    assert costs[(*alignment.ref, "|", *alignment.hyp)] == min(costs.values())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from("abc")), st.lists(st.sampled_from("abc")))
def test_without_alternatives_both_weights_align_as_align_does(ref, hyp):
    for weights in ("kaldi", "sclite"):
        alignment = align_networks(Network.of(ref), Network.of(hyp), Grammar(), weights)
        scored = score({"u": " ".join([*ref, "z"])}, {"u": " ".join([*hyp, "z"])}, weights=weights)
        ends = align_networks(Network.of([*ref, "z"]), Network.of([*hyp, "z"]), Grammar(), weights)
        assert ends.steps == scored.utterances[0].steps
        assert (alignment.ref, alignment.hyp) == (ref, hyp)


def rates(ref, hyp, **grammar):
    result = score({"u": ref}, {"u": hyp}, aligner=nist_aligner(Grammar(**grammar)))
    (utterance,) = result.utterances
    return utterance.correct, utterance.substitutions, utterance.deletions, utterance.insertions


def test_the_issues_two_lines():
    refs = {"s-1": "{ a / b / @ } c", "s-2": "x { uh / @ } y"}
    result = score(refs, {"s-1": "c", "s-2": "x y"}, aligner=nist_aligner(Grammar()))
    assert (result.errors, result.ref_units) == (0, 3)
    assert [u.ref_text for u in result.utterances] == ["c", "x y"]
    assert score(refs, {"s-1": "c", "s-2": "x y"}).percent == 80.0  # as words, not as marks


def test_optional_words_are_correct_present_or_absent():
    assert rates("a (uh) b", "a b", optional=True) == (3, 0, 0, 0)
    assert rates("a (uh) b", "a uh b", optional=True) == (3, 0, 0, 0)
    assert rates("a b", "a (uh) b", optional=True) == (3, 0, 0, 0)
    assert rates("a (uh) b", "a b") == (2, 0, 1, 0)
    steps = score(
        {"u": "(a) b"}, {"u": "b (c)"}, aligner=nist_aligner(Grammar(optional=True))
    ).utterances[0]
    assert [*steps.steps][::2] == [OPTIONAL_DELETION, OPTIONAL_INSERTION]
    assert steps.pairs == (("(a)", "(a)"), ("b", "b"), ("(c)", "(c)"))


def test_fragments_match_words_that_begin_or_end_like_them():
    assert rates("wo- -rd -", "word word x", fragments=True) == (2, 1, 0, 0)
    assert rates("word", "wo-", fragments=True) == (1, 0, 0, 0)
    assert rates("wo-", "word") == (0, 1, 0, 0)
    assert rates("(wo-)", "word", fragments=True, optional=True) == (1, 0, 0, 0)


def test_characters_are_those_of_the_best_words():
    result = score(
        {"u": "{ abc / ab } d"}, {"u": "ab d"}, unit="char", aligner=nist_aligner(Grammar())
    )
    assert (result.errors, result.ref_units) == (0, 3)


def test_normalisation_applies_between_the_marks():
    result = score(
        {"u": "{ A / B } C"}, {"u": "b c"}, normalise=str.lower, aligner=nist_aligner(Grammar())
    )
    assert result.errors == 0


def test_alternatives_that_multiply_are_refused():
    many = "{ " + " / ".join(f"w{n}" for n in range(200)) + " } "
    with pytest.raises(GrammarError, match="u1: too many words and alternatives"):
        score({"u1": many * 2}, {"u1": many * 2}, aligner=nist_aligner(Grammar()))
    with pytest.raises(GrammarError, match="u1: too many alternatives in a row"):
        score({"u1": many * 30}, {"u1": "w1"}, aligner=nist_aligner(Grammar()))
