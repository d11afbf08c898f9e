import pytest

from toolkit.lang.language import LanguageError, show_letters, survey_language
from toolkit.lang.lexicon import Lexicon

WORDS = ("THE", "CAT", "SAT", "ON", "MAT", "IS", "IN", "DIE", "MAN")
ENGLISH = Lexicon({word: [("X",)] for word in WORDS})
MANY = ["".join(map(chr, range(first, first + 9))) for first in range(0x4E00, 0x4F00, 9)]


def test_english_is_recognised_by_its_words():
    survey = survey_language(["The cat sat, on the mat.", "the cat is Tom"], ENGLISH)
    assert (survey.words, survey.known_share, survey.english) == (10, 0.9, True)
    assert not survey_language(["Die Katze saß in dem Haus, Mann"], ENGLISH).english


def test_letters_and_alphabet():
    survey = survey_language(["Ärger ärgert", "l'été"], ENGLISH)
    assert survey.letters == {"E": 2, "G": 2, "L": 1, "R": 4, "T": 2, "Ä": 2, "É": 2}
    assert survey.alphabet == "ABCDEFGHIJKLMNOPQRSTUVWXYZÄÉ'"
    assert survey_language(["Да, нет"], ENGLISH).alphabet == "АДЕНТ'"
    assert show_letters({"A": 5000, "B": 4000, "Ñ": 1}) == "A B Ñ (rare: Ñ 1)"
    assert show_letters({"क": 50, "ि": 40}) == "क \u25ccि"


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["", "12 %"], "no word"),
        (["我们今天去公园散步看到了很多漂亮的花还有可爱的小鸟"], "separate the words by spaces"),
        (MANY, "--lexicon"),
    ],
)
def test_texts_without_a_usable_alphabet_are_refused(texts, message):
    with pytest.raises(LanguageError, match=message):
        survey_language(texts, ENGLISH)
