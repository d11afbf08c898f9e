"""The graph of a transcript has all its pronunciations, scored by the formula."""

import math
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fsa.transducers import assert_scores_equal, transductions
from tests.lang.scored_sentences import probabilities, sentence_score, ways_to_say
from toolkit.fsa.fst import FINAL
from toolkit.fsa.lexicon import (
    GAP,
    LONGEST_COUNTED_JUMP,
    MAX_WORDS,
    GapScores,
    LexiconSizeError,
    pack_label,
    transcript_graph,
    unpack_label,
    weighted_transcript_graph,
)
from toolkit.lang.lang import Lang
from toolkit.lang.lexicon import Lexicon
from toolkit.lang.probabilities import EntryProbabilities, LexiconProbabilities

LEXICON = Lexicon({"A": [("a",), ("b", "b")], "AB": [("a", "b")], "C": [("b",)]})
LANG = Lang.of(LEXICON)
SILENCE = LANG.phones["SIL"]


@settings(deadline=None, max_examples=40)
@given(probabilities(list(LEXICON.pairs())), st.lists(st.sampled_from(list(LEXICON)), max_size=3))
def test_every_pronunciation_of_a_transcript_has_the_score_of_the_formula(weights, words):
    lang = replace(LANG, probabilities=weights)
    graph = weighted_transcript_graph(
        [lang.words[w] for w in words],
        [lang.pronunciation_ids(w) for w in words],
        [lang.pronunciation_weights(w) for w in words],
        weights,
        SILENCE,
    )
    assert not (graph.labels == 0).any()
    expected = defaultdict(lambda: -math.inf)
    for entries, silences in ways_to_say(LEXICON, words):
        written = [(SILENCE, 0)] if silences[0] else []
        for (word, phones), pause in zip(entries, silences[1:], strict=True):
            written += [
                (LANG.phones[p], 0 if i else LANG.words[word]) for i, p in enumerate(phones)
            ]
            written += [(SILENCE, 0)] if pause else []
        read = tuple(phone for phone, _ in written)
        key = read, tuple(written)
        expected[key] = max(expected[key], sentence_score(entries, silences, weights))
    scores = transductions(graph, 12)
    split = {(read, tuple(map(unpack_label, wrote))): s for (read, wrote), s in scores.items()}
    assert_scores_equal(split, dict(expected))


def test_likelier_pronunciations_and_silences_win():
    entries = {("A", ("a",)): EntryProbabilities(0.01, 0.9, 1.0, 1.0)}
    weights = LexiconProbabilities(entries, 0.9, 1.0, 1.0, 0.2)
    lang = replace(LANG, probabilities=weights)
    graph = weighted_transcript_graph(
        [lang.words["A"]],
        [lang.pronunciation_ids("A")],
        [lang.pronunciation_weights("A")],
        weights,
        SILENCE,
    )
    scores = transductions(graph, 8)
    (read, _), best = max(scores.items(), key=lambda item: item[1])
    assert read == (SILENCE, LANG.phones["b"], LANG.phones["b"])
    assert np.isclose(best, math.log(0.9 * 1.0 * 0.8))


def gap_ways(words, gaps):
    """Ways to say words with gaps: {(phones, labels): score}, by the definition of `GapScores`."""
    ways = defaultdict(lambda: -math.inf)

    def extend(done, written, score, place):
        """`place`: what was written last, "word", "silence" or "gap"."""
        options = []
        if place != "silence":
            options.append((done, [(SILENCE, 0)], 0.0, "silence"))
        if place != "gap":
            options.append((done, [(SILENCE, GAP)], gaps.entry, "gap"))
        if place == "gap":
            jumps = [2**k for k in range(5) if done + 2**k <= len(words)]
            options += [(done + n, [(SILENCE, GAP)], n * gaps.jump, "gap") for n in jumps]
        if done < len(words):
            for phones in LANG.pronunciation_ids(words[done]):
                labels = [(p, (done + 1, p) if i == 0 else p) for i, p in enumerate(phones)]
                options.append((done + 1, labels, 0.0, "word"))
        if done == len(words):
            key = tuple(written)
            ways[key] = max(ways[key], score)
        for reached, labels, added, now in options:
            if len(written) + len(labels) <= 6:
                extend(reached, [*written, *labels], score + added, now)

    extend(0, [], 0.0, "word")
    return ways


@settings(deadline=None, max_examples=20)
@given(st.lists(st.sampled_from(list(LEXICON)), min_size=1, max_size=3))
def test_gaps_take_audio_and_jump_over_any_number_of_words(words):
    gaps = GapScores(entry=-3.0, jump=-0.5)
    graph = transcript_graph(
        range(1, len(words) + 1), [LANG.pronunciation_ids(w) for w in words], SILENCE, gaps
    )
    expected = {}
    for way, score in gap_ways(words, gaps).items():
        wrote = [
            (phone, 0) if label == 0 else (GAP, 0) if label == GAP else unpacked(label)
            for phone, label in way
        ]
        expected[tuple(phone for phone, _ in way), tuple(wrote)] = score
    scores = transductions(graph, 7)
    split = {(read, tuple(map(unpack_label, wrote))): s for (read, wrote), s in scores.items()}
    assert_scores_equal(split, expected)


def test_more_words_to_jump_over_never_cost_less():
    gaps = GapScores(entry=-3.0, jump=-0.5)
    for count in (*range(1, 36), 62, 63, 64, 127, 130):
        graph = transcript_graph([1] * count, [LANG.pronunciation_ids("C")] * count, SILENCE, gaps)
        # The best score of a path to each state, and to the end, without a word.
        arcs = list(zip(graph.source, graph.target, graph.labels, graph.scores, strict=True))
        arcs = [arc for arc in arcs if arc[2] in (SILENCE, FINAL)]
        best, end = {0: 0.0}, -math.inf
        for _ in range(12):
            for source, target, label, score in arcs:
                reached = best.get(source, -math.inf) + score
                if label == FINAL:
                    end = max(end, reached)
                else:
                    best[target] = max(best.get(target, -math.inf), reached)
        assert end == pytest.approx(gaps.entry + gaps.jump * min(count, LONGEST_COUNTED_JUMP))


def test_gaps_have_the_scores_of_silences_besides_their_own():
    entries = {("C", ("b",)): EntryProbabilities(0.9, 0.3, 0.7, 0.6)}
    weights = LexiconProbabilities(entries, 0.4, 0.2, 0.8, 0.1)
    lang = replace(LANG, probabilities=weights)
    (weight,) = lang.pronunciation_weights("C")
    graph = weighted_transcript_graph(
        [3], [lang.pronunciation_ids("C")], [[weight]], weights, SILENCE, GapScores(-3.0, -0.5)
    )
    scores = {
        (read, tuple(map(unpack_label, wrote))): score
        for (read, wrote), score in transductions(graph, 4).items()
    }
    gap, word = (GAP, 0), (LANG.phones["b"], 3)
    said = math.log(weight.pronunciation)
    expected = {
        (gap, word): -3.0
        + said
        + math.log(weight.silence_before)
        + math.log1p(-weight.silence_after)
        + math.log(weights.no_silence_at_end),
        (word, gap): math.log1p(-weights.start)
        + said
        + math.log(weight.no_silence_before)
        + math.log(weight.silence_after)
        - 3.0
        + math.log(weights.silence_at_end),
        (gap, gap): -3.5 + math.log(weights.silence_at_end),
    }
    found = {wrote: scores[read, wrote] for read, wrote in scores if wrote in expected}
    assert_scores_equal(found, expected)


def unpacked(label):
    """The phone and the word of an entry of `gap_ways`."""
    return (label[1], label[0]) if isinstance(label, tuple) else (label, 0)


@pytest.mark.parametrize("ids", [(GAP, 0), (1, MAX_WORDS)])
def test_a_lexicon_that_labels_have_no_room_for_is_refused(ids):
    assert unpack_label(pack_label(GAP - 1, MAX_WORDS - 1)) == (GAP - 1, MAX_WORDS - 1)
    largest = transcript_graph([MAX_WORDS - 1], [[[GAP - 1]]], 1)
    assert unpack_label(int(largest.words.max())) == (GAP - 1, MAX_WORDS - 1)
    phone, word = ids
    with pytest.raises(LexiconSizeError, match="make the lexicon smaller"):
        transcript_graph([word], [[[phone]]], 1)
