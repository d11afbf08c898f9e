"""L has all pronunciations of a few words, scored by the formula."""

import itertools
import math
from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fsa.transducers import assert_scores_equal, transductions, without_labels
from tests.lang.scored_sentences import probabilities, sentence_score, ways_to_say
from toolkit.fsa.decoding_graph import compose_words, make_lexicon
from toolkit.fsa.fst import fst_from_arcs
from toolkit.lang.lang import Lang
from toolkit.lang.lexicon import Lexicon

LEXICON = Lexicon({"A": [("a",), ("b", "b")], "AB": [("a", "b")], "C": [("a", "b")]})
LANG = Lang.of(LEXICON)
GIVEN = st.none() | probabilities(list(LEXICON.pairs()))
ALL_WORDS = [w for n in range(4) for w in itertools.product(LEXICON, repeat=n)]


def expected(weights, sentences):
    """The best score of each (phones, words) over all silences and pronunciations."""
    best = defaultdict(lambda: -math.inf)
    for words in sentences:
        for entries, silences in ways_to_say(LEXICON, words):
            phones = [LANG.phones["SIL"]] if silences[0] else []
            for (_, pronunciation), pause in zip(entries, silences[1:], strict=True):
                phones += [LANG.phones[p] for p in pronunciation]
                phones += [LANG.phones["SIL"]] if pause else []
            key = tuple(phones), tuple(LANG.words[w] for w in words)
            even = (len(words) + 1) * math.log(0.5)
            score = even if weights is None else sentence_score(entries, silences, weights)
            best[key] = max(best[key], score)
    return dict(best)


def all_sentences(weight: float):
    """A grammar of any word sequence with a score per word; `#0` is accepted."""
    loop = [(0, 0, LANG.words[w], LANG.words[w], weight) for w in LEXICON]
    return fst_from_arcs([*loop, (0, 0, LANG.words["#0"], LANG.words["#0"], 0.0)], [0])


@settings(deadline=None, max_examples=20)
@given(GIVEN)
def test_sentences_have_the_scores_of_the_formula(weights):
    scores = transductions(make_lexicon(Lang(LEXICON, LANG.phones, LANG.words, "", weights)), 12)
    symbols = [0, *(LANG.phones[s] for s in LANG.disambig_symbols)]
    without_epsilons = {
        k: v for k, v in without_labels(scores, *symbols).items() if LANG.words["#0"] not in k[1]
    }
    short = {k: v for k, v in without_epsilons.items() if len(k[1]) <= 1}
    assert_scores_equal(short, expected(weights, ALL_WORDS[:4]))


@settings(deadline=None, max_examples=10)
@given(GIVEN)
def test_sentences_have_these_scores_after_composition_and_determinization(weights):
    lexicon = make_lexicon(Lang(LEXICON, LANG.phones, LANG.words, "", weights))
    first = LANG.phones["#0"], LANG.words["#0"]
    graph = compose_words(lexicon, all_sentences(-0.25), *first)
    assert not (graph.labels == 0).any()
    scores = {k: v for k, v in transductions(graph, 8).items() if len(k[1]) <= 2}
    weighted_scores = expected(weights, ALL_WORDS[:13])
    expected_scores = {key: score - 0.25 * len(key[1]) for key, score in weighted_scores.items()}
    # Of words that sound alike in the same place, removing epsilons keeps the likeliest.
    assert_scores_equal(scores, {key: expected_scores[key] for key in scores})
    assert_scores_equal(_best_of_sound(scores), _best_of_sound(expected_scores))


def _best_of_sound(scores):
    best = defaultdict(lambda: -math.inf)
    for (phones, words), score in scores.items():
        best[phones, len(words)] = max(best[phones, len(words)], score)
    return dict(best)


def test_the_lexicon_transducer_has_no_unknown_word():
    assert LANG.words["<UNK>"] in [word for word, _ in LANG.disambiguated_entries()[0]]
    assert LANG.words["<UNK>"] not in make_lexicon(LANG).words
