"""The dictionary of the CTC search: words that the units can write."""

import pytest

from tests.decode.ctc.toy_units import Toy
from toolkit.decode.ctc.dictionary import CtcDecodeError, Dictionary
from toolkit.lang.units import Characters


def test_dictionary_keeps_one_of_words_written_alike_and_says_what_it_cannot_write():
    units = Characters()
    made = Dictionary.of(["IT", "it", "3D", "AS"], units)
    assert made.words == ("AS", "IT")
    assert made.unwritable == ("3D",)


@pytest.mark.parametrize(
    ("units", "words", "message"),
    [
        (Toy(" ab"), ["x"], "can write none of the dictionary's 1 words"),
        (Toy(" ab"), ["a b"], "separates words"),
        (Toy("AB"), ["AB", "B"], "word boundaries are ambiguous"),
    ],
)
def test_dictionaries_that_cannot_be(units, words, message):
    with pytest.raises(CtcDecodeError, match=message):
        Dictionary.of(words, units)
