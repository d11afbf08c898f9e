import random

import jiwer
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import ToolkitError
from toolkit.score.alignment import CORRECT, DELETION, INSERTION, SUBSTITUTION, UtteranceScore
from toolkit.score.wer import Score, pool, score

REFS = {"u1": "the cat sat", "u2": "on the mat", "u3": "quietly"}
TEXT = st.lists(st.sampled_from(["ab", "b", "abc", "c"]), min_size=1, max_size=6).map(" ".join)


def kaldi_score(insertions, deletions, substitutions, correct):
    steps = (
        [INSERTION] * insertions
        + [DELETION] * deletions
        + [SUBSTITUTION] * substitutions
        + [CORRECT] * correct
    )
    return Score("word", (UtteranceScore("u", "", "", bytes(steps)),))


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
    assert result.unmatched_hypotheses == ("a", "v")
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
    assert score(refs, hyps, "char-with-spaces").percent == pytest.approx(100 * jiwer.cer(*sides))


@pytest.mark.parametrize(("unit", "units"), [("char", 2), ("char-with-spaces", 3)])
def test_character_line_is_named_cer(unit, units):
    line = score({"u": "a b"}, {"u": "a  c"}, unit).summary().splitlines()[0]
    assert line == f"%CER {100 / units:.2f} [ 1 / {units}, 0 ins, 0 del, 1 sub ]"


@pytest.mark.parametrize(
    ("ref", "hyp", "unit", "errors", "units"),
    [
        # The same characters in other words, as segmenters of Chinese and Japanese write them.
        ("今天 天气 很好", "今天天气 很 好", "char", 0, 6),
        ("今天 天气 很好", "今天天气 很 好", "char-with-spaces", 2, 8),
        ("今天 天气 很好", "今天天 很 好", "char", 1, 6),
        ("東京タワー へ 行く", "東京 タワー へ行く", "char", 0, 8),
        ("ฉันรัก คุณ", "ฉัน รักคุณ", "char", 0, 9),
        ("ខ្ញុំ ស្រលាញ់", "ខ្ញុំស្រលាញ់", "char", 0, 12),
        ("می روم", "میروم", "char", 0, 5),
        ("a <UNK> b", "a b", "char", 1, 3),
        ("<b>我是</b>", "<b>我是</b>", "char", 0, 9),
        ("葛\U000e0100城 x", "葛\U000e0100城x", "mixed", 0, 3),
        ("Привет мир", "Привет мор", "mixed", 1, 2),
        ("a <UNK> b", "a <UNK> c", "mixed", 1, 3),
        ("我 想 check 一下 email", "我想 check一下 mail", "mixed", 1, 6),
        ("我 想 check 一下 email", "我想 check一下 mail", "char", 1, 14),
        ("ใช้ app นี้", "ใช้app นี้", "mixed", 0, 7),
        ("ein café 好", "ein cafe 好", "mixed", 1, 3),
    ],
)
def test_characters_and_mixed_units_as_counted_by_hand(ref, hyp, unit, errors, units):
    result = score({"u": ref}, {"u": hyp}, unit)
    assert (result.errors, result.ref_units) == (errors, units)
    assert result.summary().startswith("%MER" if unit == "mixed" else "%CER")


def test_case_differences_get_a_remark():
    remarks = score({"u": "The Cat, sat"}, {"u": "the cat sit"}).remarks()
    assert any("2 of 3 substitutions differ only in case or punctuation" in r for r in remarks)
    assert score(REFS, REFS).remarks() == []


@pytest.mark.parametrize(
    ("refs", "hyps", "message"),
    [
        ({}, {"u": "a"}, "reference set is empty"),
        ({"u": "a"}, {"v": "a"}, "no utterance id in common"),
    ],
)
def test_unscorable_texts_are_an_error(refs, hyps, message):
    with pytest.raises(ToolkitError, match=message):
        score(refs, hyps)


@pytest.mark.parametrize("hyp", ["", "a b"])
def test_empty_references_are_scored_like_jiwer(hyp):
    result = score({"u": " ", "v": ""}, {"u": hyp, "v": ""})
    assert result.percent == 100 * jiwer.wer(["", ""], [hyp, ""])
    assert result.summary(interval=True).startswith(f"%WER {result.percent:.2f} [")
    assert "all 2 references are empty" in result.remarks()[0]
    assert result.interval is None


def test_nothing_decoded_is_all_deletions():
    result = score(REFS, {})
    assert (result.deletions, result.errors) == (7, 7)
    assert result.percent == 100


SPEAKERS = {"u1": "ann", "u2": "bob", "u3": "ann"}


def draw_texts(number, seed=0):
    """Return references of ten words, hypotheses with errors, and eight speakers."""
    generator = random.Random(seed)
    refs = {f"u{n:03d}": "a b c d e f g h i j" for n in range(number)}
    hyps = {
        u: " ".join(w if generator.random() < 0.8 else "x" for w in refs[u].split()) for u in refs
    }
    return refs, hyps, {u: "stuvwxyz"[n % 8] for n, u in enumerate(refs)}


def test_interval_follows_the_rate_on_the_first_line():
    refs, hyps, _ = draw_texts(50)
    result = score(refs, hyps)
    first, *following = result.summary(interval=True).splitlines()
    assert following == result.summary().splitlines()[1:]
    head, tail = first.split(" 95% Conf Interval ")
    assert head == result.summary().splitlines()[0]
    low, high = map(float, tail.strip("[ ]").split(", "))
    assert low < result.percent < high
    # 500 words, each wrong with probability 0.2 on its own
    assert high - low == pytest.approx(2 * 1.96 * 100 * (0.2 * 0.8 / 500) ** 0.5, rel=0.25)


@pytest.mark.parametrize("speakers_known", [False, True])
def test_interval_depends_on_no_order(speakers_known):
    refs, hyps, speakers = draw_texts(40)
    backwards = dict(reversed(refs.items()))
    utterance_speakers = speakers if speakers_known else None
    forward, backward = (
        score(refs, hyps, "word", utterance_speakers),
        score(backwards, hyps, "word", utterance_speakers),
    )
    assert forward.interval == backward.interval
    expected = ("speaker", 8) if speakers_known else ("utterance", 40)
    assert (forward.interval.by, forward.interval.units) == expected


def test_speakers_as_similar_as_utterances_give_the_same_interval():
    refs, hyps, _ = draw_texts(40)
    alone = score(refs, hyps, speakers={u: f"speaker of {u}" for u in refs})
    assert (alone.interval.low, alone.interval.high) == (
        score(refs, hyps).interval.low,
        score(refs, hyps).interval.high,
    )


def test_few_speakers_are_resampled_by_utterance_and_one_utterance_not_at_all():
    refs, hyps, speakers = draw_texts(40)
    few = score(refs, hyps, speakers={u: min(s, "w") for u, s in speakers.items()})
    assert few.interval == score(refs, hyps).interval
    assert "5 speakers are fewer than the 6" in " ".join(few.interval_remarks())
    assert (
        score(refs, hyps, speakers={u: min(s, "x") for u, s in speakers.items()}).interval.units
        == 6
    )
    alone = score({"u": "a b"}, {"u": "a c"})
    assert alone.interval is None
    assert alone.summary(interval=True) == alone.summary()
    assert alone.interval_remarks() == ["one utterance alone has no confidence interval"]


def test_remarks_tell_what_an_interval_rests_on():
    refs, hyps, speakers = draw_texts(40)
    few = " ".join(score(refs, hyps, speakers=speakers).interval_remarks())
    assert "10000 bootstrap resamples of 8 speakers" in few
    assert "too narrow" in few
    assert "too narrow" not in " ".join(score(refs, hyps).interval_remarks())
    # 1 - (1 - p)^400 = 0.95 at p = 0.75 %
    assert "below 0.75 %" in " ".join(score(refs, refs).interval_remarks())


def test_every_utterance_needs_a_speaker():
    with pytest.raises(ToolkitError, match="1 of 3 utterances have no speaker, first 'u3'"):
        score(REFS, REFS, speakers={"u1": "ann", "u2": "bob"})
    with pytest.raises(ToolkitError, match="3 of 3 utterances have no speaker"):
        score(REFS, REFS, speakers={})


def test_scores_by_speaker_add_up():
    result = score(REFS, {"u1": "a cat", "u2": "on the mat x", "u3": "quiet lee"}, "word", SPEAKERS)
    parts = result.by_speaker()
    assert list(parts) == ["ann", "bob"]
    assert [u.id for u in parts["ann"].utterances] == ["u1", "u3"]
    for name in ("insertions", "deletions", "substitutions", "ref_units", "wrong_utterances"):
        assert sum(getattr(part, name) for part in parts.values()) == getattr(result, name)
    silent = score({"u1": "", "u2": "a b"}, {"u1": "x y"}, "word", SPEAKERS).by_speaker()
    assert silent["ann"].percent == 200
    assert score(REFS, REFS).by_speaker() == {}


def test_pool_keeps_every_utterance_and_puts_speakers_together():
    dev = score(REFS, {**REFS, "u1": "the hat sat", "v": "x"}, "word", SPEAKERS)
    test = score({"u1": "a b"}, {"u1": "a"}, "word", SPEAKERS)
    pooled = pool({"dev": dev, "test": test})
    assert [u.id for u in pooled.utterances] == ["dev/u1", "dev/u2", "dev/u3", "test/u1"]
    assert (pooled.errors, pooled.ref_units) == (2, 9)
    assert pooled.by_speaker()["ann"].errors == 2
    assert pooled.unmatched_hypotheses == ("dev/v",)
    for scores in ({}, {"words": dev, "characters": score(REFS, REFS, "char")}):
        with pytest.raises(ToolkitError, match="must have the same unit"):
            pool(scores)


def test_texts_too_long_for_the_memory_are_named():
    def too_long(*_):
        raise MemoryError("Allocation failed (probably too large).")

    with pytest.raises(ToolkitError, match=r"of u2 \(4 characters\) with its reference \(10\)"):
        score(REFS, {"u1": "a", "u2": "on a", "u3": "x"}, aligner=too_long)


def test_a_rate_of_few_words_without_errors_is_bounded_by_all_of_them():
    remarks = score({"u1": "a", "u2": "b"}, {"u1": "a", "u2": "b"}).interval_remarks()
    assert "would be below 100 % with 95 %" in remarks[-1]
