import sys
import unicodedata
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.lang.config import Rules
from toolkit.lang.letters import (
    NORMALISERS,
    WHOLE_LETTERS,
    LetterNormaliser,
    SecondLetterNormaliser,
    UnknownNormaliserError,
    normaliser,
)
from toolkit.lang.lexicon import spell
from toolkit.lang.policy import AS_GIVEN
from toolkit.lang.text import QUOTES, Normaliser


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Über den Wolken, straße!", "ÜBER DEN WOLKEN STRASSE"),
        ("u\u0308ber", "ÜBER"),
        ("¿Dónde está el niño?", "DÓNDE ESTÁ EL NIÑO"),
        ("l’homme d'État - 'oui'", "L'HOMME D'ÉTAT OUI"),
        ("Всё хорошо — по-русски", "ВСЁ ХОРОШО ПО РУССКИ"),
        ("हिन्दी में।", "हिन्दी में"),
        ("მე ვსვამ წყალს.", "მე ვსვამ წყალს"),
        ("Zwi\u00adschen\u200b x", "ZWISCHEN X"),
        ("ʼn", "N"),
        ("a\u0149b", "A'NB"),
        ("", ""),
    ],
)
def test_rules(text, words):
    rules = LetterNormaliser()
    assert rules(text) == words
    assert not rules.removed


def test_other_characters_are_removed_and_counted():
    rules = LetterNormaliser()
    assert rules("5 Äpfel für 3€") == "ÄPFEL FÜR"
    assert rules.removed == {"5": 1, "3": 1, "€": 1}


@pytest.mark.parametrize("kind", [LetterNormaliser, SecondLetterNormaliser])
@given(text=st.text())
def test_output_is_letters_and_stable(kind, text):
    rules = kind()
    words = rules.words(text)
    for word in words:
        assert word.strip("'")
        letters = word if kind is LetterNormaliser else word.replace("L·L", "LL")
        assert all(c == "'" or unicodedata.category(c)[0] in "LM" for c in letters)
        assert unicodedata.is_normalized("NFC", word)
    assert kind().words(" ".join(words)) == words


LETTERS = [
    chr(code)
    for code in range(sys.maxunicode + 1)
    if unicodedata.category(chr(code))[0] == "L" and code not in QUOTES
]
PHRASES = "\ufdfa\ufdfb"  # two Arabic ligatures of several words
RAISED = ("<super>", "<sub>")


def test_every_letter_of_unicode_stays_one_word_in_its_ordinary_form():
    rules = SecondLetterNormaliser()
    for letter in LETTERS:
        (word, *more) = rules.words(letter)
        assert not more or letter in PHRASES, letter
        assert rules.words(word) == [word]
        kind = unicodedata.decomposition(letter).split(" ")[0]
        if letter not in WHOLE_LETTERS and letter not in PHRASES and kind not in RAISED:
            plain = unicodedata.normalize("NFKC", letter).strip()
            assert word == (rules.words(plain) or [""])[0], letter
    assert not rules.removed


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ｆｕｌｌ ﬁne ﬀ", "FULL FINE FF"),
        ("ｶﾞｽ", "ガス"),
        ("\ufee3\ufeae\ufea3\ufe92\ufe8e \ufefb", "مرحبا لا"),
        ("\u3131\u314f \uffa1", "가 \u1100"),
        ("น้ำ ນໍ້າ \u0eb3 \u0edc", "น้ำ ນໍ້າ \u0eb3 \u0edc"),
        ("𝐁𝑜𝓁𝒅", "BOLD"),
        ("kʷ", "Kʷ"),
        ("col·legi, coŀlegi a·b", "COL·LEGI COL·LEGI A B"),
        ("ինչո՞ւ, այո՛", "ԻՆՉՈՒ ԱՅՈ"),
        ("'oui' l’homme dogs'", "OUI L'HOMME DOGS"),
        ("STRAẞE Straße", "STRASSE STRASSE"),
        ("½ ² ①", ""),
    ],
)
def test_ordinary_forms_of_letters(text, words):
    assert SecondLetterNormaliser()(text) == words


def test_a_middle_dot_stays_if_the_lexicon_has_the_word_with_it():
    assert SecondLetterNormaliser({"COL·LEGI"})("col·legi aŀlot") == "COL·LEGI AL LOT"
    assert spell("COL·LEGI") == tuple("COLLEGI")


def test_an_apostrophe_at_an_edge_stays_if_the_lexicon_has_it():
    rules = SecondLetterNormaliser({"PO'", "L'"})
    assert rules("un po' 'po' l' 'homme' dogs'") == "UN PO' PO' L' HOMME DOGS"
    assert rules.transcript("po' 5'") == "PO' 5"


@pytest.mark.parametrize("id", sorted(NORMALISERS))
@given(text=st.text())
def test_a_transcript_keeps_what_words_removes_and_no_more(id, text):
    rules = normaliser(id)
    kept = rules.transcript(text)
    assert not rules.removed
    assert normaliser(id).transcript(kept) == kept
    if not (found := normaliser(id)).words(text) or not found.removed:
        return
    assert any(character in kept for character in found.removed)


@pytest.mark.parametrize("id", sorted(NORMALISERS))
@given(text=st.text(st.characters(categories=["Lu", "Ll", "Po", "Pd", "Zs"], max_codepoint=0x24F)))
def test_a_transcript_is_words_where_nothing_is_removed(id, text):
    rules = normaliser(id)
    words = rules.words(text.translate(dict.fromkeys(map(ord, "[]<>"))))
    if not rules.removed:
        plain = text.translate(dict.fromkeys(map(ord, "[]<>")))
        assert normaliser(id).transcript(plain).split() == words


def test_tags_and_digits_stay_in_a_transcript():
    assert Normaliser().transcript("Well, [laughter] 3 <noise> café.") == (
        "WELL [laughter] 3 <noise> CAFE"
    )
    assert LetterNormaliser().transcript("Nr. 5: café.") == "NR 5 CAFÉ"


def test_unknown_rules():
    assert type(normaliser("english-upper-2")) is Normaliser
    assert {*NORMALISERS, AS_GIVEN} == {*get_args(Rules)}
    known = "'english-upper-1' and 'english-upper-2' and 'english-upper-3' and 'letters-upper-1'"
    with pytest.raises(UnknownNormaliserError, match=known):
        normaliser("klingon-1")
