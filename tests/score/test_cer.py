from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.score import wer
from toolkit.score.wer import ScoreError, error_rates, jiwer_percent, percent_of_longer, score

WORDS = st.lists(st.sampled_from(["a", "bb", "ab", "c'a"]), max_size=5).map(" ".join)


def distance(x, y):
    """Levenshtein's distance by its recursive definition."""

    @cache
    def distance_of_prefixes(i, j):
        if not i or not j:
            return i + j
        same = distance_of_prefixes(i - 1, j - 1) + (x[i - 1] != y[j - 1])
        return min(same, distance_of_prefixes(i - 1, j) + 1, distance_of_prefixes(i, j - 1) + 1)

    return distance_of_prefixes(len(x), len(y))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=3))
def test_all_rates_follow_their_definitions(pairs):
    refs = {f"u{i}": ref for i, (ref, _) in enumerate(pairs)}
    hyps = {f"u{i}": hyp for i, (_, hyp) in enumerate(pairs)}
    rates = error_rates(refs, hyps)
    characters = sum(distance(ref, hyp) for ref, hyp in pairs)
    words = sum(distance(tuple(ref.split()), tuple(hyp.split())) for ref, hyp in pairs)
    # Without any unit, each error counts as 100 %.
    longer = max(1, sum(max(len(ref), len(hyp)) for ref, hyp in pairs))
    in_refs = max(1, sum(len(ref) for ref, _ in pairs))
    words_in_refs = max(1, sum(len(ref.split()) for ref, _ in pairs))
    assert rates.cer == pytest.approx(100 * characters / longer)
    assert rates.cer_usual == pytest.approx(100 * characters / in_refs)
    assert rates.wer == pytest.approx(100 * words / words_in_refs)
    assert rates.ser == pytest.approx(100 * sum(r != h for r, h in pairs) / len(pairs))
    assert rates.cer <= min(100, rates.cer_usual + 1e-9)


def test_the_papers_rate_divides_by_the_longer_side():
    refs, hyps = {"u": "AB"}, {"u": "ABCD"}  # two insertions
    assert percent_of_longer(score(refs, hyps, unit="char-with-spaces")) == 50.0
    assert error_rates(refs, hyps).cer_usual == 100.0


def test_a_missing_hypothesis_counts_as_empty():
    refs = {"u": "A B", "v": "C"}
    assert error_rates(refs, {"u": "A B"}) == error_rates(refs, {"u": "A B", "v": ""})
    assert error_rates(refs, {"u": "A B"}).wer == pytest.approx(100 / 3)


def test_spaces_at_the_ends_and_in_a_row_do_not_count():
    assert jiwer_percent({"u": " A  B "}, {"u": "A B"}) == 0.0


def test_disagreement_with_jiwer_is_an_error(monkeypatch):
    monkeypatch.setattr(wer, "jiwer_percent", lambda refs, hyps: 12.5)
    with pytest.raises(ScoreError, match=r"12\.5 %"):
        error_rates({"u": "A"}, {"u": "A"})
