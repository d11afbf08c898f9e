import pytest

from toolkit.lang.lang import Lang, LangError
from toolkit.lang.lexicon import Lexicon


@pytest.fixture
def lang():
    lexicon = Lexicon()
    for line in ("BARE B EH", "BEAR B EH", "A AH", "A EY", "ARE AH R"):
        word, *phones = line.split()
        lexicon.add(word, phones)
    return Lang.of(lexicon)


def test_tables(lang):
    assert lang.real_phones == ["SIL", "SPN", "AH", "B", "EH", "EY", "R"]
    assert lang.disambig_symbols == ["#0", "#1", "#2", "#3"]
    assert lang.vocabulary == ["A", "ARE", "BARE", "BEAR"]
    assert lang.lexicon["<UNK>"] == [("SPN",)]
    assert lang.normaliser == "english-upper-2"


def test_ids(lang):
    unknown = lang.words["<UNK>"]
    assert [lang.word_id(w) for w in ("A", "ARE", "Q", "<eps>", "#0")] == [1, 2, *[unknown] * 3]
    assert lang.pronunciation_ids("A") == [[lang.phones["AH"]], [lang.phones["EY"]]]
    assert lang.pronunciation_ids("Q") == [[lang.phones["SPN"]]]


def test_disambiguated_entries(lang):
    entries, silence = lang.disambiguated_entries()
    assert silence == lang.phones["#3"]
    text = [
        (lang.words.symbol(word), " ".join(map(lang.phones.symbol, phones)))
        for word, phones in entries
    ]
    assert text == [
        ("<UNK>", "SPN"),
        ("A", "AH #1"),
        ("A", "EY"),
        ("ARE", "AH R"),
        ("BARE", "B EH #1"),
        ("BEAR", "B EH #2"),
    ]


def test_save_and_load_round_trip(lang, tmp_path):
    lang.save(tmp_path / "lang")
    assert Lang.load(tmp_path / "lang") == lang
    assert sorted(p.name for p in (tmp_path / "lang").iterdir()) == [
        "disambig.txt",
        "lang.json",
        "lexicon.txt",
        "lexicon_disambig.txt",
        "phones.txt",
        "vocab.txt",
        "words.txt",
    ]
    assert "BEAR B EH #2\n" in (tmp_path / "lang/lexicon_disambig.txt").read_text()


def test_stress_survives(tmp_path):
    lexicon = Lexicon()
    lexicon.add("A", ("AH0",))
    Lang.of(lexicon).save(tmp_path)
    assert Lang.load(tmp_path).lexicon["A"] == [("AH0",)]


def test_files_that_do_not_belong_together_are_an_error(lang, tmp_path):
    lang.save(tmp_path)
    with open(tmp_path / "lexicon.txt", "a") as file:
        file.write("NEW Z\n")
    with pytest.raises(LangError, match=r"'Z' has no id.*run the language stage again"):
        Lang.load(tmp_path)
    (tmp_path / "lang.json").write_text("[]")
    with pytest.raises(LangError, match=r"lang\.json"):
        Lang.load(tmp_path)


def test_empty_vocabulary():
    with pytest.raises(LangError, match="empty"):
        Lang.of(Lexicon())
