import itertools
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.errors import ToolkitError
from toolkit.score.compare import compare, comparison_lines, comparison_numbers
from toolkit.score.nist.grammar import Grammar, nist_aligner
from toolkit.score.wer import score

REFS = {"u1": "the cat sat", "u2": "on the mat", "u3": "quietly"}
FIRST = {"u1": "the hat sat", "u2": "on mat", "u3": "quietly so"}
SECOND = {"u1": "the cat sat", "u2": "on a mat", "u3": "loudly"}
SPEAKERS = {"u1": "ann", "u2": "bob", "u3": "ann"}
TEXT = st.lists(st.sampled_from("abc"), max_size=4).map(" ".join)


def compare_texts(first, second, refs=REFS, speakers=None):
    return compare(score(refs, first, "word", speakers), score(refs, second, "word", speakers))


def resamples(number):
    return itertools.product(range(number), repeat=number)


def test_probability_and_interval_are_those_of_all_resamples():
    refs = {f"u{n}": " ".join("abcde"[: n + 2]) for n in range(4)}
    hyps = [{"u0": "x b", "u1": "a b c", "u2": "a", "u3": "a b c d"}, {"u0": "a b", "u1": "x"}]
    result = compare_texts(*hyps, refs)
    first, second = ([u.errors for u in s.utterances] for s in (result.first, result.second))
    words = [u.ref_units for u in result.first.utterances]
    wins, rates = 0.0, []
    for draw in resamples(4):
        a, b, n = (sum(counts[i] for i in draw) for counts in (first, second, words))
        wins += 1.0 if b < a else 0.5 if b == a else 0.0
        rates.append(100 * (b - a) / n)
    assert result.probability == pytest.approx(wins / 4**4, abs=0.02)
    rates.sort()
    assert rates[0] <= result.interval.low <= rates[len(rates) // 40]
    assert rates[-len(rates) // 40] <= result.interval.high <= rates[-1]


def test_system_against_itself_is_neither_better_nor_worse():
    result = compare_texts(FIRST, FIRST)
    assert (result.difference, result.probability, result.p_value) == (0.0, 0.5, 1.0)
    assert (result.interval.low, result.interval.high) == (0.0, 0.0)
    assert result.matched_pairs.p_value == 1.0
    assert result.better_equal_worse == (0, 3, 0)
    assert not any(word.difference for word in result.words())


@settings(max_examples=20)
@given(st.lists(st.tuples(TEXT, TEXT, TEXT), min_size=2, max_size=5), st.randoms())
def test_exchanging_the_systems_changes_signs_and_order_changes_nothing(rows, generator):
    refs = {f"u{n}": f"a {ref}" for n, (ref, _, _) in enumerate(rows)}
    first = {f"u{n}": hyp for n, (_, hyp, _) in enumerate(rows)}
    second = {f"u{n}": hyp for n, (_, _, hyp) in enumerate(rows)}
    forward, backward = compare_texts(first, second, refs), compare_texts(second, first, refs)
    assert backward.p_value == forward.p_value
    assert backward.probability == pytest.approx(1 - forward.probability)
    assert backward.difference == pytest.approx(-forward.difference)
    assert backward.interval.low == pytest.approx(-forward.interval.high)
    assert [w.difference for w in backward.words()] == [-w.difference for w in forward.words()]
    order = list(refs)
    generator.shuffle(order)
    shuffled = compare_texts(first, second, {u: refs[u] for u in order})
    assert (shuffled.interval, shuffled.p_value) == (forward.interval, forward.p_value)
    assert shuffled.words() == forward.words()


def test_words_hold_every_error_once():
    result = compare_texts(FIRST, SECOND)
    words = result.words()
    assert sum(word.first for word in words) == result.first.errors == 3
    assert sum(word.second for word in words) == result.second.errors == 2
    rows = [(w.word, w.count, w.first, w.second) for w in words]
    assert rows == [
        ("cat", 1, 1, 0),
        ("quietly", 1, 0, 1),
        ("so", 0, 1, 0),
        ("mat", 1, 0, 0),
        ("on", 1, 0, 0),
        ("sat", 1, 0, 0),
        ("the", 2, 1, 1),
    ]


def test_speakers_are_exchanged_as_a_whole_if_there_are_enough():
    refs = {f"u{n:02d}": "a" for n in range(24)}
    assert compare_texts({}, refs, refs).p_value == 2 / 2**24
    for each, units, p in ((3, 8, 2 / 2**8), (4, 6, 2 / 2**6), (5, 24, 2 / 2**24)):
        speakers = {u: f"s{n // each}" for n, u in enumerate(refs)}
        result = compare_texts(dict.fromkeys(refs, "b"), refs, refs, speakers)
        assert (result.units, result.p_value) == (units, p)


def test_a_difference_that_cannot_be_significant_gets_a_remark():
    refs = {f"u{n}": "a" for n in range(4)}
    assert any(
        "4 utterances no difference can" in r
        for r in compare_texts({"u0": "b"}, refs, refs).remarks()
    )
    refs = {f"u{n}": "a" for n in range(60)}
    assert compare_texts({"u0": "b"}, refs, refs).remarks() == []


def test_p_values_of_equal_systems_are_uniform():
    generator = random.Random(1)
    refs = {f"u{n:02d}": "a b c d" for n in range(30)}

    def add_errors(text):
        return " ".join(word if generator.random() < 0.7 else "x" for word in text.split())

    def decode():
        return {utterance: add_errors(text) for utterance, text in refs.items()}

    values = []
    for _ in range(100):
        a, b = score(refs, decode()), score(refs, decode())
        values.append(compare(a, b).p_value)
    assert sum(p <= 0.2 for p in values) <= 20 + 3 * 4
    assert sum(p <= 0.5 for p in values) >= 50 - 5 * 4 - 3


def test_systems_on_empty_references_have_no_interval():
    refs = {"u1": "", "u2": ""}
    result = compare(score(refs, {"u1": "x y", "u2": ""}), score(refs, {"u1": "x", "u2": ""}))
    assert (result.difference, result.interval) == (-100.0, None)
    assert list(comparison_lines(result, ("A", "B")))


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (score(REFS, FIRST), score(REFS, SECOND, "char"), "in the unit word, the other in char"),
        (score(REFS, FIRST), score({"u1": "the cat"}, SECOND), "3 utterances .* 1 for the other"),
        (score(REFS, FIRST), score({**REFS, "u3": "aloud"}, SECOND), "different references.* 'u3'"),
        (score(REFS, FIRST), score(REFS, SECOND, "word", SPEAKERS), "different references.* 'u1'"),
    ],
)
def test_only_the_same_references_can_be_compared(first, second, message):
    with pytest.raises(ToolkitError, match=message):
        compare(first, second)


def test_lines_tell_differences_words_and_speakers():
    lines = list(comparison_lines(compare_texts(FIRST, SECOND, speakers=SPEAKERS), ("A", "B")))
    assert lines[0].startswith("%WER of B minus A: -14.29 (-33.3 % relative) 95% Conf Inter")
    assert lines[2].startswith(
        "p-value: 1.0000 (two-sided, exchanging the systems' results for 3 utterances"
    )
    assert "Utterances: B better in 1, worse in 0, same number of errors in 2" in lines
    assert "Matched pairs: none, 3 segments are too few for NIST's test" in lines
    fewer = lines.index("FEWER ERRORS BY B (2 words)")
    assert [line.split() for line in lines[fewer + 2 : fewer + 4]] == [
        ["-1", "1", "0", "1", "cat"],
        ["-1", "1", "0", "0", "so"],
    ]
    speakers = lines.index("EACH SPEAKER")
    assert [line.split() for line in lines[speakers + 2 :]] == [
        ["-25.00", "50.00", "25.00", "4", "ann"],
        ["+0.00", "33.33", "33.33", "3", "bob"],
    ]


def test_first_system_without_errors_has_no_relative_difference():
    line = next(comparison_lines(compare_texts(REFS, SECOND), ("A", "B")))
    assert line.startswith("%WER of B minus A: +28.57 95% Conf Interval")


def test_systems_may_take_different_alternatives_of_a_reference():
    refs = {f"u{n}": "{ a b / c } d (uh) e" for n in range(6)}
    sides = [
        score(refs, {id: text for id in refs}, aligner=nist_aligner(Grammar(optional=True)))
        for text in ("a b d x", "c d e (uh)")
    ]
    assert [side.ref_units for side in sides] == [30, 30]
    assert [u.ref_text for u in (sides[0].utterances[0], sides[1].utterances[0])] == [
        "a b d (uh) e",
        "c d (uh) e",
    ]
    comparison = compare(*sides)
    assert comparison.difference == pytest.approx(-20.0)
    assert comparison.interval.low == comparison.interval.high == pytest.approx(-20.0)
    assert comparison.matched_pairs.segments == 6
    rescored = score(
        {**refs, "u0": "{ a b / z } d"}, {id: "c d" for id in refs}, aligner=nist_aligner(Grammar())
    )
    with pytest.raises(ToolkitError, match=r"scored against different references, .* 'u0'"):
        compare(sides[0], rescored)


def test_an_infinite_z_is_null_in_json():
    refs = {f"u{n}": "a b" for n in range(50)}
    comparison = compare_texts(refs, dict.fromkeys(refs, "a x"), refs)
    assert comparison.matched_pairs.z == float("inf")
    numbers = json.loads(json.dumps(comparison_numbers(comparison), allow_nan=False))
    assert numbers["matched_pairs"]["z"] is None


def test_systems_that_chose_alternatives_of_different_lengths():
    refs = {"u1": "{ a / @ }", "u2": "b", "u3": "c"}
    first, second = (
        score(refs, {"u1": hypothesis, "u2": "b", "u3": "x"}, aligner=nist_aligner(Grammar()))
        for hypothesis in ("a", "")
    )
    assert (first.ref_units, second.ref_units) == (3, 2)
    comparison = compare(first, second)
    assert comparison.difference == pytest.approx(100 / 2 - 100 / 3)
    rates = []
    for drawn in resamples(3):
        units = [sum(s.utterances[n].ref_units for n in drawn) for s in (first, second)]
        errors = [sum(s.utterances[n].errors for n in drawn) for s in (first, second)]
        if all(units):
            rates.append(100 * errors[1] / units[1] - 100 * errors[0] / units[0])
    assert min(rates) <= comparison.interval.low <= comparison.interval.high <= max(rates)


def test_systems_with_different_utterances_are_not_compared():
    sides = [score(REFS, {id: "x"}, mode="present") for id in ("u1", "u2")]
    with pytest.raises(ToolkitError, match=r"\(2 and 2 utterances\): use --mode all"):
        compare(*sides)


def test_the_numbers_list_missing_and_extra_utterances():
    numbers = comparison_numbers(compare_texts({"u1": "the"}, SECOND | {"u9": "so"}))
    assert numbers["missing"] == {"first": ["u2", "u3"], "second": []}
    assert numbers["extra"] == {"first": [], "second": ["u9"]}


@pytest.mark.parametrize("segments", [49, 50])
def test_the_numbers_have_no_p_value_of_too_few_segments(segments):
    refs = {f"u{n}": "a" for n in range(segments)}
    first = {id: "b" for id in refs}
    numbers = comparison_numbers(compare_texts(first, first | {"u0": "a"}, refs))["matched_pairs"]
    assert numbers["segments"] == segments
    assert [numbers[key] is None for key in ("p_value", "z")] == 2 * [segments < 50]
