"""The dictionary of the CTC search: words that the units can write."""

import pytest

from tests.decode.ctc.toy_units import Toy
from toolkit.decode.ctc.dictionary import CtcDecodeError, Dictionary
from toolkit.lang.units import Characters


def test_dictionary_merges_equal_spellings_and_lists_unwritable_words():
    units = Characters()
    dictionary = Dictionary.of(["IT", "it", "3D", "AS"], units)
    assert dictionary.words == ("AS", "IT")
    assert dictionary.unwritable == ("3D",)


@pytest.mark.parametrize(
    ("units", "words", "message"),
    [
        (Toy(" ab"), ["x"], "none of the dictionary's 1 words can be written"),
        (Toy(" ab"), ["a b"], "separates words"),
        (Toy("AB"), ["AB", "B"], "word boundaries are ambiguous"),
    ],
)
def test_invalid_dictionaries_are_refused(units, words, message):
    with pytest.raises(CtcDecodeError, match=message):
        Dictionary.of(words, units)
