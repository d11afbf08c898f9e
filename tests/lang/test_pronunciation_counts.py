"""Estimates from planted counts, computed here as Kaldi's script does, entry by entry."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.lang.lexicon import Lexicon
from toolkit.lang.pronunciation_counts import (
    END,
    START,
    NothingCountedError,
    PronunciationCounts,
    estimate_probabilities,
)

LEXICON = Lexicon({"A": [("a",), ("b", "b")], "AB": [("a", "b")], "C": [("c",)]})
ENTRIES = list(LEXICON.pairs())


def counted(*utterances):
    counts = PronunciationCounts()
    for spoken, silences in utterances:
        counts.add(spoken, silences)
    return counts


def test_pairs_are_counted():
    a, ab = ENTRIES[0], ENTRIES[2]
    counts = counted(([a, ab], [True, False, True]), ([a], [True, False]), ([], [True]))
    assert counts.pairs == {
        (START, True, a): 2,
        (a, False, ab): 1,
        (ab, True, END): 1,
        (a, False, END): 1,
        (START, True, END): 1,
    }


def test_known_estimates():
    usual, rare, ab, _ = ENTRIES
    spoken = [([usual, ab], [True, False, False])] * 8 + [([rare, ab], [True, True, False])] * 2
    found = estimate_probabilities(counted(*spoken), LEXICON)
    assert found.overall == 0.4  # 12 silences before 30 words and ends
    assert [found.of(e).pronunciation for e in ENTRIES] == [1.0, 0.333333, 1.0, 1.0]
    # (0 + 0.8) / (8 + 2), (2 + 0.8) / (2 + 2), (0 + 0.8) / (10 + 2), 0.8 / 2
    assert [found.of(e).silence_after for e in ENTRIES] == [0.08, 0.7, 0.07, 0.4]
    assert found.start == 0.9  # (10 + 0.8) / (10 + 2)
    # AB: 2 silences before it, 8 * 0.08 + 2 * 0.7 = 2.04 expected; 8 without, 7.96 expected
    assert found.of(ab).silence_before == pytest.approx(round(4 / 4.04, 2))
    assert found.of(ab).no_silence_before == pytest.approx(round(10 / 9.96, 2))
    # the end: none, 10 * 0.07 = 0.7 expected; 10 without, 9.3 expected
    assert found.silence_at_end == round(2 / 2.7, 2)
    assert found.no_silence_at_end == round(12 / 11.3, 2)
    assert found.of(ENTRIES[3]).silence_before == found.of(ENTRIES[3]).no_silence_before == 1.0


def test_nothing_counted():
    with pytest.raises(NothingCountedError, match="no utterance is aligned"):
        estimate_probabilities(PronunciationCounts(), LEXICON)


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from(ENTRIES), max_size=4).flatmap(
            lambda w: st.tuples(
                st.just(w), st.lists(st.booleans(), min_size=len(w) + 1, max_size=len(w) + 1)
            )
        ),
        min_size=1,
        max_size=6,
    )
)
def test_estimates_are_those_of_the_script(utterances):
    found = estimate_probabilities(counted(*utterances), LEXICON)
    chains = [([START, *words, END], silences) for words, silences in utterances]
    links = [
        (chain[i], pause, chain[i + 1])
        for chain, silences in chains
        for i, pause in enumerate(silences)
    ]

    def clipped(x):
        return min(0.99, max(0.01, round(x, 2)))

    overall = clipped(sum(pause for _, pause, _ in links) / len(links))
    assert found.overall == overall

    def follows(entry):
        here = [pause for left, pause, _ in links if left == entry]
        return clipped((sum(here) + 2 * overall) / (len(here) + 2))

    def factor(silent, entry):
        here = [(left, pause) for left, pause, right in links if right == entry]
        seen = sum(pause == silent for _, pause in here)
        foreseen = sum(follows(left) if silent else 1 - follows(left) for left, _ in here)
        return max(0.01, round((seen + 2) / (foreseen + 2), 2))

    assert found.start == follows(START)
    assert found.silence_at_end == pytest.approx(factor(True, END), abs=0.0101)
    assert found.no_silence_at_end == pytest.approx(factor(False, END), abs=0.0101)
    said = [left for left, _, _ in links]
    for word, phones in ENTRIES:
        p = found.of((word, phones))
        most = max(1 + said.count((word, other)) for other in LEXICON[word])
        assert p.pronunciation == pytest.approx((1 + said.count((word, phones))) / most, rel=1e-5)
        assert p.silence_after == follows((word, phones))
        # A sum in another order may fall on the other side of half a hundredth.
        assert p.silence_before == pytest.approx(factor(True, (word, phones)), abs=0.0101)
        assert p.no_silence_before == pytest.approx(factor(False, (word, phones)), abs=0.0101)
