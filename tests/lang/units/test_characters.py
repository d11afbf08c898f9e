import itertools
import json
import re
from string import ascii_lowercase

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.lang.units.characters import Characters
from toolkit.lang.units.factory import UnitsConfig, load_units, make_units
from toolkit.lang.units.units import UnitsError

UNITS = Characters()


def test_the_thirty_in_the_papers_order():
    assert UNITS.symbols == [" ", *ascii_lowercase, "'", "_", "<blank>"]
    assert (UNITS.size, UNITS.blank, UNITS.separator, UNITS.space) == (30, 29, 28, 0)


def test_the_separator_stands_inside_double_letters():
    def written(text):
        return "".join(UNITS.symbols[i] for i in UNITS.encode(text))

    assert written("COOL") == "co_ol"
    assert written("ALL LLAMAS") == "al_l l_lamas"
    assert written("  aaa  o'er ") == "a_a_a o'er"


@settings(deadline=None)
@given(st.text(alphabet=" 'abcXYZlL"))
def test_what_is_written_reads_the_same(text):
    ids = UNITS.encode(text)
    assert all(a != b for a, b in itertools.pairwise(ids))
    assert UNITS.blank not in ids
    assert UNITS.decode(ids) == " ".join(text.upper().split())
    # The definition: a separator between any two equal characters that follow each other.
    plain = " ".join(text.lower().split())
    assert "".join(UNITS.symbols[i] for i in ids) == re.sub(r"(.)(?=\1)", r"\1_", plain)


def test_reads_what_a_network_may_write():
    assert UNITS.decode([0, 28, 1, 0, 28, 0, 2, 28]) == "A B"
    assert UNITS.decode([]) == ""


@pytest.mark.parametrize("labels", [[29], [30], [-1]])
def test_reads_labels_alone(labels):
    with pytest.raises(UnitsError, match="not a label"):
        UNITS.decode(labels)


@pytest.mark.parametrize("text", ["ROOM 3", "CAFÉ", "A-B", "A_B"])
def test_refuses_what_it_cannot_write(text):
    with pytest.raises(UnitsError, match=r"not among the 27 letters.*normalise.*units\.kind=bpe"):
        UNITS.encode(text)


def test_saved_and_loaded(tmp_path):
    make_units(UnitsConfig(), []).save(tmp_path)
    loaded = load_units(tmp_path)
    assert (loaded.kind, loaded.symbols) == ("characters", UNITS.symbols)
    path = tmp_path / "units.json"
    path.write_text(json.dumps({"kind": "characters", "symbols": ["a"]}))
    with pytest.raises(UnitsError, match="other symbols"):
        load_units(tmp_path)
    path.write_text(json.dumps({"kind": "characters", "symbols": [" ", "ab", "_", "<blank>"]}))
    with pytest.raises(UnitsError, match=r"units\.json: 'ab' is no letter; make the units again"):
        load_units(tmp_path)
    path.unlink()
    with pytest.raises(UnitsError, match="not a file of output units"):
        load_units(tmp_path)


@pytest.mark.parametrize(
    ("texts", "letters"),
    [
        (["ЦЕ ДІМ", "їжа"], "едімцїжа"),
        (["DER ÄRGER", "Straße"], "dersatgäß"),
        (["ΣΟΦΟΣ", "σοφος"], "σοφ"),
        (["हिन्दी"], "हिन्दी"),
        (["მე ვსვამ"], "მევსამ"),
        (["ISTANBUL", "İZMİR"], "istanbulzmrİ"),
    ],
)
def test_other_languages_have_the_letters_of_their_transcripts(texts, letters, tmp_path):
    units = make_units(UnitsConfig(), texts)
    assert set(units.symbols) == {" ", *letters, "_", "<blank>"}
    units.save(tmp_path)
    assert load_units(tmp_path).symbols == units.symbols
    for text in texts:
        capitals = "".join(one if one in "ßმევსამ" else one.upper() for one in text)
        assert load_units(tmp_path).decode(units.encode(text)) == capitals


def test_english_transcripts_have_the_papers_symbols_whichever_letters_occur():
    assert make_units(UnitsConfig(), ["A CAB"]).symbols == UNITS.symbols


@pytest.mark.parametrize("letters", [["a", "A"], ["ab"], ["_"], [" "], [""]])
def test_what_is_no_letter_is_refused(letters):
    with pytest.raises(UnitsError, match=r"no letter|twice"):
        Characters(letters)


@pytest.mark.parametrize("wrong", [{"kind": "words"}, {"pieces": 0}])
def test_refuses_impossible_settings(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        UnitsConfig(**wrong)
