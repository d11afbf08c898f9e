"""Letters that are not what they look like."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.corpus.tags import is_garbled, word_of_two_alphabets


@pytest.mark.parametrize(
    "text",
    [
        "e-mail від Windows",
        "naïve Käse",
        "ЧЕРВОНЕ СОНЦЕ",
        "αβγ abc",
        "हिन्दी",
        "5 µm",
        "東京タワー",
        "",
    ],
)
def test_texts_in_order(text):
    assert word_of_two_alphabets(text) is None
    assert not is_garbled(text)


def test_look_alikes_within_a_word():
    assert word_of_two_alphabets("це бiлого") == "бiлого"  # a Latin i
    assert word_of_two_alphabets("Αthens") == "Αthens"  # a Greek capital alpha


@given(st.text(st.characters(min_codepoint=0xA0, max_codepoint=0x24F), min_size=1))
def test_utf8_that_was_read_as_latin_1_is_garbled(text):
    assert is_garbled(text.encode().decode("latin-1"))
