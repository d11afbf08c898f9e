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
from toolkit.fsa.lexicon import (
    MAX_PHONES,
    MAX_WORDS,
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


@pytest.mark.parametrize("ids", [(MAX_PHONES, 0), (1, MAX_WORDS)])
def test_a_lexicon_that_labels_have_no_room_for_is_refused(ids):
    assert unpack_label(pack_label(MAX_PHONES - 1, MAX_WORDS - 1)) == (
        MAX_PHONES - 1,
        MAX_WORDS - 1,
    )
    largest = transcript_graph([MAX_WORDS - 1], [[[MAX_PHONES - 1]]], 1)
    assert unpack_label(int(largest.words.max())) == (MAX_PHONES - 1, MAX_WORDS - 1)
    phone, word = ids
    with pytest.raises(LexiconSizeError, match="make the lexicon smaller"):
        transcript_graph([word], [[[phone]]], 1)
