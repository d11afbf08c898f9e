from toolkit.lang.graphemes import grapheme_lexicon, spell


def test_letters_and_marks_are_phones():
    assert spell("FÜR") == ("F", "Ü", "R")
    assert spell("L'EAU") == ("L", "E", "A", "U")
    assert spell("में") == ("म", "े", "ं")


def test_what_is_not_spelled():
    assert [spell(word) for word in ("4", "A4", "[NOISE]", "'", "")] == [()] * 5


def test_a_lexicon_has_the_words_that_can_be_spelled():
    assert grapheme_lexicon(["SÍ", "NO", "NO", "3"]) == {"NO": [("N", "O")], "SÍ": [("S", "Í")]}
