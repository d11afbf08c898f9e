"""Beam search with a dictionary: equal to the sum over every alignment of every legal text."""

import itertools
import math
import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decode.ctc.toy_units import Toy
from toolkit.decode.config import WordsConfig
from toolkit.decode.ctc.dictionary import CtcDecodeError
from toolkit.decode.ctc.search import WordsDecoder
from toolkit.lang.ngram import BackoffModel, Level
from toolkit.lang.units import Characters

LN10 = math.log(10.0)
EXACT = {"width": 4000, "margin": math.inf, "nbest": 4000}


def posteriors(frames, columns, seed, sharpness=2.0):
    logits = sharpness * np.random.default_rng(seed).standard_normal((frames, columns))
    return torch.from_numpy(logits).log_softmax(dim=1).float()


def random_lm(words, order, seed):
    """Random n-grams, not normalised: equalities must not need that."""
    rng = np.random.default_rng(seed)
    vocabulary = sorted(["<s>", "</s>", "<UNK>", *words])
    count, levels, below = len(vocabulary), [], 1
    for n in range(1, order + 1):
        keys = np.arange(below * count)
        if n > 1:
            keys = np.sort(rng.choice(keys, len(keys) // 3, replace=False))
        logprob, backoff = rng.uniform(-2, 0, (2, len(keys)))
        backoff[rng.random(len(keys)) < 0.5] = 0.0  # states that matter to nothing
        levels.append(Level(keys // count, keys % count, logprob, backoff))
        below = len(keys)
    return BackoffModel(vocabulary, levels)


def all_texts(log_probs, units):
    """The log-probability of every label sequence, by enumerating all alignments."""
    sums = {}
    rows = np.asarray(log_probs, dtype=float)
    for path in itertools.product(*(np.flatnonzero(row > -math.inf).tolist() for row in rows)):
        score = sum(rows[t, s] for t, s in enumerate(path))
        labels = tuple(s for s, _ in itertools.groupby(path) if s != units.blank)
        sums[labels] = np.logaddexp(sums.get(labels, -math.inf), score)
    return sums


def legal(text, words, between, complete):
    """The words of a text, or None if it may not be written."""
    for character in between:
        text = text.replace(character, " ")
    text_words = text.split()
    if text_words and complete and not text.endswith(" ") and text_words[-1] not in words:
        continued = [w for w in words if w.startswith(text_words[-1])]
        if len(continued) == 1:
            text_words[-1] = continued[0]
    return text_words if all(word in words for word in text_words) else None


def expected(log_probs, units, words, lm, config):
    """Scores of all texts from all alignments."""
    sums = {}
    for labels, score in all_texts(log_probs, units).items():
        text = "".join(units.symbols[i] for i in labels)
        text_words = legal(text, words, config.between, config.complete)
        if text_words is None:
            continue
        score += config.word_bonus * len(text_words)
        if config.mode != "words":
            score += config.lm_weight * LN10 * lm.logprob(text_words)
        key = " ".join(text_words)
        sums[key] = np.logaddexp(sums.get(key, -math.inf), score)
    return sums


def assert_equal_scores(hypotheses, expected_scores):
    assert {h.text for h in hypotheses} == set(expected_scores)
    scores = [h.score for h in hypotheses]
    assert scores == sorted(scores, reverse=True)
    for hypothesis in hypotheses:
        assert hypothesis.score == pytest.approx(expected_scores[hypothesis.text], abs=1e-4)


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    words=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=5, unique=True),
    order=st.integers(1, 3),
    mode=st.sampled_from(["words", "ngrams", "forecast"]),
    weight=st.sampled_from([0.0, 0.7, 2.0]),
    bonus=st.sampled_from([-1.0, 0.0, 1.5]),
    complete=st.booleans(),
)
def test_all_texts_have_the_score_of_all_their_alignments(
    seed, words, order, mode, weight, bonus, complete
):
    units = Toy(" ab")
    lm = random_lm(words, order, seed)
    config = WordsConfig(mode=mode, lm_weight=weight, word_bonus=bonus, complete=complete, **EXACT)
    log_probs = posteriors(5, units.size, seed)
    hypotheses = WordsDecoder(units, words, lm, config).decode(log_probs)
    assert_equal_scores(hypotheses, expected(log_probs, units, words, lm, config))


@settings(max_examples=int(os.environ.get("CTC_COMPARISONS", "25")), deadline=None)
@given(
    seed=st.integers(0, 10**6),
    words=st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=4, unique=True),
    lm_only_words=st.lists(st.text("cd", min_size=1, max_size=2), max_size=3, unique=True),
    unlisted=st.integers(0, 3),
    order=st.integers(1, 4),
    mode=st.sampled_from(["words", "ngrams", "forecast"]),
    weight=st.sampled_from([0.3, 1.0, 2.0]),
    complete=st.booleans(),
)
def test_scores_are_exact_for_a_model_of_more_and_of_fewer_words_than_the_dictionary(
    seed, words, lm_only_words, unlisted, order, mode, weight, complete
):
    """To 1e-12, also where no n-gram of the highest order has dictionary words alone."""
    units = Toy(" ab")
    lm = random_lm([*words[unlisted:], *lm_only_words], order, seed)
    unknown = sum(word not in lm.ids for word in words)
    config = WordsConfig(mode=mode, lm_weight=weight, complete=complete, **EXACT)
    log_probs = posteriors(5, units.size, seed)
    hypotheses = WordsDecoder(units, words, lm, config).decode(log_probs)
    expected_scores = expected(log_probs, units, words, lm, config)
    assert {h.text for h in hypotheses} == set(expected_scores)
    for hypothesis in hypotheses:
        share = 0.0
        if mode != "words":  # words that the model lacks share the probability of <UNK>
            lost = sum(word not in lm.ids for word in hypothesis.text.split())
            share = -weight * lost * math.log(max(1, unknown))
        score = expected_scores[hypothesis.text] + share
        assert hypothesis.score == pytest.approx(score, rel=0, abs=1e-12)


def test_any_of_several_characters_between_words():
    units = Toy(" ,ab")
    words, config = ["a", "ba"], WordsConfig(mode="words", between=" ,", complete=False, **EXACT)
    log_probs = posteriors(5, units.size, 1)
    hypotheses = WordsDecoder(units, words, config=config).decode(log_probs)
    expected_scores = {}
    for labels, score in all_texts(log_probs, units).items():
        text = "".join(units.symbols[i] for i in labels)
        if legal(text, words, " ,", complete=False) is not None:
            key = " ".join(text.split())
            expected_scores[key] = np.logaddexp(expected_scores.get(key, -math.inf), score)
    assert any("," in text for text in expected_scores)
    assert_equal_scores(hypotheses, expected_scores)


@pytest.mark.parametrize("mode", ["words", "ngrams", "forecast"])
def test_pieces_need_nothing_between_words(mode):
    units = Toy("ABxy", starts="AB")  # A and B begin words, x and y continue them
    words = ["A", "Ax", "Bxy", "Byx"]
    lm = random_lm(words, 2, seed=3)
    config = WordsConfig(mode=mode, complete=False, word_bonus=0.3, lm_weight=0.8, **EXACT)
    log_probs = posteriors(5, units.size, 4)
    expected_scores = {}
    for labels, score in all_texts(log_probs, units).items():
        text_words = units.decode(labels).split()
        if all(word in words for word in text_words):
            score += 0.3 * len(text_words)
            score += 0.8 * LN10 * lm.logprob(text_words) if mode != "words" else 0.0
            expected_scores[" ".join(text_words)] = score
    assert_equal_scores(WordsDecoder(units, words, lm, config).decode(log_probs), expected_scores)


def test_a_frame_with_few_possible_symbols_among_many():
    letters = "abcdefghijklmnop"
    units = Toy(f" {letters}")
    words = [*letters, *(a + b for a, b in zip(letters, letters[5:], strict=False))]
    rng = np.random.default_rng(0)
    log_probs = np.full((6, units.size), -math.inf)
    for row in log_probs:
        possible = [*rng.choice(units.blank, 3, replace=False), units.blank]
        row[possible] = np.log(rng.dirichlet(np.ones(4)))
    config = WordsConfig(mode="words", **EXACT)
    hypotheses = WordsDecoder(units, words, config=config).decode(log_probs)
    assert_equal_scores(hypotheses, expected(log_probs, units, words, None, config))


def test_prefixes_grow_by_the_likeliest_symbols_alone():
    units = Toy(" abcd")
    log_probs = np.log([[0.02, 0.1, 0.4, 0.3, 0.08, 0.1]])
    config = WordsConfig(mode="words", symbols=2, nbest=9)
    hypotheses = WordsDecoder(units, ["a", "b", "c", "d"], config=config).decode(log_probs)
    assert [h.text for h in hypotheses] == ["b", "c", ""]


def test_prefixes_far_below_the_best_are_dropped():
    units = Toy(" abc")
    log_probs = np.log([[0.01, 0.91, 0.05, 0.001, 0.029]])
    config = WordsConfig(mode="words", margin=math.log(20), nbest=9)
    hypotheses = WordsDecoder(units, ["a", "b", "c"], config=config).decode(log_probs)
    assert [h.text for h in hypotheses] == ["a", "b"]


def test_an_unknown_word_has_its_share_of_the_unknown():
    units, words = Toy(" ab"), ["a", "b", "ab"]
    lm = random_lm(["a"], 2, seed=5)  # b and ab share what <UNK> has
    log_probs = posteriors(4, units.size, 6)
    expected_scores = {}
    for labels, score in all_texts(log_probs, units).items():
        text = "".join(units.symbols[i] for i in labels)
        text_words = legal(text, words, " ", complete=False)
        if text_words is not None:
            score += LN10 * lm.logprob(text_words) - math.log(2) * sum(w != "a" for w in text_words)
            key = " ".join(text_words)
            expected_scores[key] = np.logaddexp(expected_scores.get(key, -math.inf), score)
    for mode in ("ngrams", "forecast"):
        config = WordsConfig(mode=mode, complete=False, **EXACT)
        assert_equal_scores(
            WordsDecoder(units, words, lm, config).decode(log_probs), expected_scores
        )


def one_hot_like(rows):
    """Posteriors of Characters from {symbol: probability} for each frame."""
    units = Characters()
    table = np.full((len(rows), units.size), 1e-30)
    for frame, row in enumerate(rows):
        for symbol, probability in row.items():
            table[frame, units.symbols.index(symbol)] = probability
    return np.log(table)


def test_scheidls_example():
    log_probs = one_hot_like([{"a": 0.9, "b": 0.1}, {"<blank>": 1.0}, {"a": 0.6, "b": 0.4}])
    decoder = WordsDecoder(Characters(), ["A", "BA"], config=WordsConfig(mode="words"))
    best = decoder.decode(log_probs)[0]
    assert best.text == "BA"
    assert best.score == pytest.approx(math.log(0.06), abs=1e-5)


def test_double_letters_hold_the_separator():
    rows = [{c: 1.0} for c in ["c", "o", "_", "o", "l", " ", "a", "l", "_", "l"]]
    decoder = WordsDecoder(Characters(), ["COOL", "COL", "ALL"], config=WordsConfig(mode="words"))
    assert decoder.decode(one_hot_like(rows))[0].text == "COOL ALL"


def test_scores_far_below_what_linear_probabilities_hold():
    units = Toy(" ab")
    log_probs = np.full((60, 4), -2000.0, dtype=np.float32)
    log_probs[::2, units.symbols.index("a")] = -1000.0  # the best there is, always
    log_probs[1::2, units.blank] = -1000.0
    best = WordsDecoder(units, ["a" * 30], config=WordsConfig(mode="words")).decode(log_probs)[0]
    assert best.text == "a" * 30
    assert best.score == pytest.approx(-60_000.0)


def test_a_narrow_beam_finds_no_more_than_there_is():
    units, words = Toy(" abc"), ["a", "ab", "cab", "cb", "bca"]
    lm = random_lm(words, 2, seed=8)
    missed = 0
    for seed in range(8):
        log_probs = posteriors(6, units.size, seed, sharpness=1.0)
        exact = WordsDecoder(units, words, lm, WordsConfig(**EXACT)).decode(log_probs)
        scores = {h.text: h.score for h in exact}
        for width in (1, 3, 10):
            decoder = WordsDecoder(units, words, lm, WordsConfig(width=width, symbols=3))
            best = decoder.decode(log_probs)[0]
            if best.text in scores:
                assert best.score <= scores[best.text] + 1e-4
            missed += best.text != exact[0].text
    assert 0 < missed < 24


def test_a_word_that_only_one_begins_with_is_completed_on_request():
    log_probs = one_hot_like([{c: 1.0} for c in "it wash"])
    words = ["IT", "WAST", "WASHED"]
    for complete, text, score in ((True, "IT WASHED", 0.0), (False, "IT", -math.inf)):
        config = WordsConfig(mode="words", width=1, complete=complete)
        best = WordsDecoder(Characters(), words, config=config).decode(log_probs)[0]
        assert (best.text, best.score) == (text, pytest.approx(score, abs=1e-5))


def test_an_unfinished_end_is_left_out_when_nothing_else_remains():
    log_probs = one_hot_like([{c: 1.0} for c in "it was"])
    config = WordsConfig(mode="words", width=1, complete=True)
    decoder = WordsDecoder(Characters(), ["IT", "WAST", "WASH"], config=config)
    best = decoder.decode(log_probs)[0]
    assert (best.text, best.score) == ("IT", -math.inf)


def test_nothing_possible_gives_an_empty_text():
    log_probs = np.full((3, 4), -np.inf, dtype=np.float32)
    decoder = WordsDecoder(Toy(" ab"), ["a"], config=WordsConfig(mode="words"))
    assert [(h.text, h.score) for h in decoder.decode(log_probs)] == [("", -math.inf)]
    assert [(h.text, h.score) for h in decoder.decode(log_probs[:0])] == [("", 0.0)]


def test_jobs_change_nothing():
    units, words = Toy(" abc"), ["a", "ab", "cab", "cb", "bca"]
    decoder = WordsDecoder(units, words, config=WordsConfig(mode="words", nbest=3))
    utterances = [posteriors(20, units.size, seed) for seed in range(6)]
    serial = [decoder.decode(x) for x in utterances]
    assert list(decoder.decode_many(utterances, jobs=3)) == serial
    assert list(decoder.decode_many(utterances)) == serial


def test_a_reconfigured_decoder_equals_a_new_one():
    units, words = Toy(" ab"), ["a", "ba", "bb"]
    lm = random_lm(words, 2, seed=2)
    config = WordsConfig(lm_weight=2.0, word_bonus=1.0, nbest=5)
    log_probs = posteriors(6, units.size, 3)
    hypotheses = WordsDecoder(units, words, lm, config).decode(log_probs)
    assert WordsDecoder(units, words, lm).configured(config).decode(log_probs) == hypotheses


@pytest.mark.parametrize(
    ("log_probs", "message"),
    [
        (np.zeros((3, 5)), r"\[3, 5\], not \[frames, 4\]"),
        (np.array([[0.0] * 4, [math.nan] * 4]), "NaN at frame 1"),
    ],
)
def test_invalid_posteriors_are_refused(log_probs, message):
    decoder = WordsDecoder(Toy(" ab"), ["a"], config=WordsConfig(mode="words"))
    with pytest.raises(CtcDecodeError, match=message):
        decoder.decode(log_probs)


def test_ngram_modes_need_a_language_model():
    with pytest.raises(CtcDecodeError, match="mode='words'"):
        WordsDecoder(Toy(" ab"), ["a"])


@pytest.mark.parametrize(
    "wrong", [{"width": 0}, {"margin": 0.0}, {"mode": "best"}, {"lm_weight": -1.0}, {"nbest": 0}]
)
def test_invalid_configurations_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        WordsConfig(**wrong)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    frames=st.integers(0, 60),
    width=st.sampled_from([1, 3, 20]),
    mode=st.sampled_from(["words", "ngrams", "forecast"]),
    cuts=st.lists(st.integers(0, 60), max_size=8),
    expected_frames=st.sampled_from([1, 7, 256]),
)
def test_a_stream_finds_what_the_whole_utterance_does(
    seed, frames, width, mode, cuts, expected_frames
):
    """However it is divided, and however often the room for prefixes has to grow."""
    units, vocabulary = Toy(" ab"), ["a", "ab", "ba", "bab"]
    config = WordsConfig(width, mode, lm_weight=0.7, word_bonus=0.5, margin=6.0)
    decoder = WordsDecoder(units, vocabulary, random_lm(vocabulary, 3, seed), config)
    log_probs = posteriors(frames, units.size, seed)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("toolkit.decode.ctc.search.EXPECTED_FRAMES", expected_frames)
        stream = decoder.begin()
    for begin, end in itertools.pairwise([0, *sorted(cuts), max(60, frames)]):
        stream.advance(log_probs[begin:end])
        assert set(stream.text().split()) <= set(vocabulary)
    assert stream.frames == frames
    assert stream.hypotheses() == decoder.decode(log_probs)
