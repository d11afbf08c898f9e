"""Dictionary files in the forms of Kaldi and of the Montreal Forced Aligner."""

import logging

import pytest

from toolkit.lang.dictionary import read_dictionary
from toolkit.lang.lexicon import LexiconError
from toolkit.lang.probabilities import EntryProbabilities

KNOWN = "".join(f"w{number} P\n" for number in range(20))


def read(tmp_path, text, name="lexicon.txt"):
    path = tmp_path / name
    path.write_text(text)
    return read_dictionary(path)


def shares(dictionary):
    return {
        word: [dictionary.probabilities.of((word, phones)).pronunciation for phones in variants]
        for word, variants in dictionary.lexicon.items()
    }


def test_a_dictionary_without_probabilities(tmp_path):
    dictionary = read(tmp_path, "a A1\nb\tB C\n")
    assert dictionary.lexicon == {"A": [("A1",)], "B": [("B", "C")]}
    assert dictionary.probabilities is None


def test_lexiconp(tmp_path):
    dictionary = read(tmp_path, "a 1.0 A\na 0.25 AH\nb 1e-1 B\n")
    assert dictionary.lexicon == {"A": [("A",), ("AH",)], "B": [("B",)]}
    assert shares(dictionary) == {"A": [1.0, 0.25], "B": [0.1]}
    assert dictionary.probabilities.start == dictionary.probabilities.overall == 0.5


def test_lexiconp_silprob_with_and_without_silprob_txt(tmp_path):
    text = "a 1.0 0.2 1.5 0.7 A\nb 0.5 0.3 0.0 1.0 B\n"
    probabilities = read(tmp_path, text, "lexiconp_silprob.txt").probabilities
    assert probabilities.of(("A", ("A",))) == EntryProbabilities(1.0, 0.2, 1.5, 0.7)
    assert probabilities.of(("B", ("B",))) == EntryProbabilities(0.5, 0.3, 0.01, 1.0)
    (tmp_path / "silprob.txt").write_text("<s> 0.9\n</s>_s 1.2\n</s>_n 0.8\noverall 0.1\n")
    probabilities = read(tmp_path, text, "lexiconp_silprob.txt").probabilities
    assert probabilities.start == 0.9
    assert probabilities.silence_at_end == 1.2
    assert probabilities.no_silence_at_end == 0.8
    assert probabilities.overall == 0.1


def test_a_dictionary_of_the_montreal_forced_aligner(tmp_path):
    """Tabs separate the columns, whose number differs from line to line."""
    dictionary = read(
        tmp_path,
        "ab\t0.99\t0.14\t2.31\t1.08\ta1 b\nab\t0\ta b\ncd\tc d\nef\t1\te f\n"
        "gh\t1\t0.5\t1\t1\t1 h\nij\t0.5\t0.25\ti j\n",
    )
    assert dictionary.lexicon == {
        "AB": [("a1", "b"), ("a", "b")],
        "CD": [("c", "d")],
        "EF": [("e", "f")],
        "GH": [("1", "h")],
        "IJ": [("i", "j")],
    }
    of = dictionary.probabilities.of
    assert of(("AB", ("a1", "b"))) == EntryProbabilities(0.99, 0.14, 2.31, 1.08)
    assert of(("AB", ("a", "b"))) == EntryProbabilities(0.01, 0.5)
    assert of(("CD", ("c", "d"))) == of(("EF", ("e", "f"))) == EntryProbabilities(1.0, 0.5)
    assert of(("GH", ("1", "h"))) == EntryProbabilities(1.0, 0.5)
    assert of(("IJ", ("i", "j"))) == EntryProbabilities(0.5, 0.25)
    assert "probabilities of 5 of 6 pronunciations are used" in dictionary.notes


def test_an_integer_in_nearly_all_lines_is_a_probability(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    dictionary = read(tmp_path, "a 1 A a1\nb 1 B\nb 0.5 B C\n")
    assert shares(dictionary) == {"A": [1.0], "B": [1.0, 0.5]}
    assert "2 pronunciations have the integer 1 in column 2: these" in caplog.text


def test_an_integer_that_is_a_phone_elsewhere_is_a_phone(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    dictionary = read(tmp_path, f"{KNOWN}uit 9 y t\nin b 9\n")
    assert dictionary.lexicon["UIT"] == [("9", "y", "t")]
    assert dictionary.probabilities is None
    assert "the integer 9 in column 2: these integers are read as phones" in caplog.text
    digits = "".join(f"w{number} {number} {number % 3} {number}\n" for number in range(9))
    assert read(tmp_path, digits).lexicon["W7"] == [("7", "1", "7")]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"{KNOWN}a 1 A\n", 21),  # few lines, no such phone
        ("a 1 A\nb 1 B 1\n", 1),  # all lines, and such a phone
        (f"{KNOWN}c 0.5 C\na 1 A\nb B 1\n", 22),  # some lines have probabilities
    ],
)
def test_an_ambiguous_integer_is_an_error_that_names_the_line(tmp_path, text, line):
    with pytest.raises(LexiconError, match=rf"lexicon\.txt:{line}: '1' of the word '\w' may be"):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a 1.5 A\n", ":1: 1.5 is not a probability"),
        ("a 0.5 0.5 0.5 0.5 0.5 A\n", ":1: the number '0.5' is among the phones"),
        ("a 0.5\n", "'0.5' is among the phones"),
    ],
)
def test_invalid_columns_are_errors(tmp_path, text, message):
    with pytest.raises(LexiconError, match=message):
        read(tmp_path, text)


def test_spellings_of_the_same_word_add_their_probabilities(tmp_path):
    assert shares(read(tmp_path, "Ab 0.25 A\nab 0.5 A\n")) == {"AB": [0.75]}
