"""Lists of words in the forms that files have."""

import gzip

import pytest

from toolkit.lang.lang import LangError
from toolkit.lang.letters import LetterNormaliser
from toolkit.lang.lexicon import Lexicon
from toolkit.lang.text import Normaliser
from toolkit.lang.word_list import possible_words, read_words


@pytest.mark.parametrize(
    "text",
    [
        "cat\nTom's\n\n",
        "# a comment\nCAT K AE T\ncat(2) K AA T\n;;; TOOLKIT\nTOM'S T AA M Z\n",
        "cat\t12\ntom’s 3\n",
        "     12 cat\n      3 tom's\n",
    ],
)
def test_words_lexicons_and_counts(tmp_path, text):
    (tmp_path / "words.txt").write_text(text)
    assert read_words(tmp_path / "words.txt", Normaliser()) == {"CAT", "TOM'S"}


def test_packed_words_of_another_alphabet(tmp_path):
    (tmp_path / "words.txt.gz").write_bytes(gzip.compress("да\nнет-нет\n".encode()))
    assert read_words(tmp_path / "words.txt.gz", LetterNormaliser()) == {"ДА", "НЕТ"}


def test_a_file_without_words_is_an_error(tmp_path):
    (tmp_path / "words.txt").write_text("# nothing\n42\n")
    with pytest.raises(LangError, match=r"words\.txt has no word"):
        read_words(tmp_path / "words.txt", Normaliser())


def test_entries_that_no_text_has_are_no_words():
    lexicon = Lexicon({"CAT": [("K",)], "A.M.": [("M",)], "<UNK>": [("SPN",)], "'BOUT": [("B",)]})
    assert list(possible_words(lexicon, Normaliser())) == ["CAT", "'BOUT"]
