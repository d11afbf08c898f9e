import unicodedata
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.lang.config import Rules
from toolkit.lang.letters import NORMALISERS, LetterNormaliser, UnknownNormaliserError, normaliser
from toolkit.lang.policy import AS_GIVEN
from toolkit.lang.text import Normaliser


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


@given(st.text())
def test_output_is_letters_and_stable(text):
    rules = LetterNormaliser()
    words = rules.words(text)
    for word in words:
        assert word.strip("'")
        assert all(c == "'" or unicodedata.category(c)[0] in "LM" for c in word)
        assert unicodedata.is_normalized("NFC", word)
    assert LetterNormaliser().words(" ".join(words)) == words


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
    known = "'english-upper-1' and 'english-upper-2' and 'letters-upper-1'"
    with pytest.raises(UnknownNormaliserError, match=known):
        normaliser("klingon-1")
