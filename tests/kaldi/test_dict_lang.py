"""Dictionary directories, and the words of lang directories."""

import pytest

from toolkit.errors import ToolkitError
from toolkit.kaldi.dict_lang import (
    KaldiDict,
    read_dict,
    read_lang,
    read_lexicon,
    write_dict,
    write_lang,
)
from toolkit.lang.lang import Lang
from toolkit.lang.lexicon import Lexicon
from toolkit.lang.probabilities import EntryProbabilities, LexiconProbabilities
from toolkit.lang.tables import SymbolTable

LEXICON = Lexicon(
    {"A": [("AH0",), ("EY1",)], "CAT": [("K", "AE1", "T")], "HUH": [("HH", "SPN"), ("AH1",)]}
)


@pytest.fixture
def folder(tmp_path):
    write_dict(Lang.of(LEXICON), tmp_path)
    return tmp_path


def lines(folder, name):
    return (folder / name).read_text().splitlines()


def test_the_files_of_a_dictionary(folder):
    assert lines(folder, "lexicon.txt") == [
        "!SIL SIL", "<UNK> SPN", "A AH0", "A EY1", "CAT K AE1 T", "HUH HH SPN", "HUH AH1",
    ]  # fmt: skip
    assert lines(folder, "lexiconp.txt")[4] == "CAT 1.0 K AE1 T"
    assert lines(folder, "silence_phones.txt") == ["SIL", "SPN"]
    assert lines(folder, "optional_silence.txt") == ["SIL"]
    assert lines(folder, "nonsilence_phones.txt") == ["AE1", "AH0 AH1", "EY1", "HH", "K", "T"]
    assert lines(folder, "extra_questions.txt") == ["SIL SPN", "HH K T", "AH0", "AE1 AH1 EY1"]


def test_a_question_splits_each_two_phones_of_a_line(folder):
    questions = [set(line.split()) for line in lines(folder, "extra_questions.txt")]
    for line in lines(folder, "nonsilence_phones.txt"):
        first, *variants = line.split()
        for variant in variants:
            assert any((first in q) != (variant in q) for q in questions)


def test_a_dictionary_round_trips_bit_for_bit(folder, tmp_path):
    loaded = read_dict(folder)
    assert loaded.lexicon == LEXICON
    assert loaded.notes == ("words left out, because the toolkit adds its own: !SIL <UNK>",)
    write_dict(Lang.of(loaded.lexicon), tmp_path / "again")
    for path in folder.glob("*.txt"):
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


def test_word_position_markers_are_removed(folder, tmp_path):
    write_dict(Lang.of(LEXICON.with_positions()), tmp_path / "marked")
    for path in folder.glob("*.txt"):
        assert path.read_bytes() == (tmp_path / "marked" / path.name).read_bytes()


def test_the_dictionary_of_another_recipe(tmp_path):
    files = {
        "lexiconp.txt": "<oov> 1.0 oov\ncat 0.7 k ae t\ncat 1 k @ t\n<sil> 1 sil\n[laugh] 1 lau\n",
        "silence_phones.txt": "sil\noov lau\n",
        "optional_silence.txt": "sil\n",
        "nonsilence_phones.txt": "k\nae @\nt\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    loaded = read_dict(tmp_path)
    assert loaded.lexicon == {"CAT": [("k", "ae", "t"), ("k", "@", "t")], "[LAUGH]": [("SPN",)]}
    assert loaded.renamed == {"sil": "SIL", "oov": "SPN", "lau": "SPN"}
    assert loaded.notes[0].endswith("<oov> <sil>")
    likelier = loaded.probabilities.of(("CAT", ("k", "@", "t")))
    assert likelier.pronunciation == 1.0
    assert loaded.probabilities.of(("CAT", ("k", "ae", "t"))) == EntryProbabilities(0.7, 0.5)
    assert sorted(word for word, _ in loaded.probabilities.entries) == ["CAT", "CAT", "[LAUGH]"]


def test_words_of_any_form_come_back_from_the_folder(tmp_path):
    words = ("L’EAU", "E\u0301te\u0301", "RT(2)", "#TAG", ";;;A", "x")
    files = {
        "lexicon.txt": "".join(f"{word} A\n" for word in words) + "SIL SIL\n",
        "silence_phones.txt": "SIL\n",
        "optional_silence.txt": "SIL\n",
        "nonsilence_phones.txt": "A\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    lang = read_dict(tmp_path).lang(position_dependent=True)
    lang.save(tmp_path / "lang")
    assert Lang.load(tmp_path / "lang") == lang
    expected = {"L'EAU", "ÉTÉ", "RT(2)", "#TAG", ";;;A", "X"}
    assert expected <= {*lang.lexicon}


def test_without_probabilities_there_are_none(folder):
    assert read_dict(folder).probabilities is None


@pytest.mark.parametrize("marked", [False, True])
def test_probabilities_round_trip(tmp_path, marked):
    entries = {
        entry: EntryProbabilities(1 / (n + 1), 0.25, 1.5, n + 0.5)
        for n, entry in enumerate(LEXICON.pairs())
    }
    probabilities = LexiconProbabilities(entries, 0.9, 1.2, 0.1, 0.3)
    lang = KaldiDict(LEXICON, {}, (), probabilities).lang(marked)
    write_dict(lang, tmp_path)
    assert lines(tmp_path, "lexiconp.txt")[3] == "A 0.5 EY1"
    assert "!SIL 1.0 0.3 1.0 1.0 SIL" in lines(tmp_path, "lexiconp_silprob.txt")
    assert len(lines(tmp_path, "lexiconp_silprob.txt")) == len(lines(tmp_path, "lexicon.txt"))
    loaded = read_dict(tmp_path)
    assert loaded.probabilities == probabilities
    assert loaded.lang(marked) == lang
    write_dict(KaldiDict(LEXICON, {}, ()).lang(marked), tmp_path)
    assert read_dict(tmp_path).probabilities is None
    if marked:
        entry = ("CAT", ("K_B", "AE1_I", "T_E"))
        assert lang.probabilities.of(entry) == probabilities.of(("CAT", ("K", "AE1", "T")))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("lexicon.txt", "A AH0\nB XX\n", "lexicon.txt:2: the phone 'XX' is not in any list"),
        ("lexicon.txt", "A\n", "lexicon.txt:1: the word 'A' has no phones"),
        ("lexicon.txt", "<UNK> SPN\n", "the lexicon contains no word except"),
        ("optional_silence.txt", "K\n", "expected one of the phones of silence_phones"),
        ("silence_phones.txt", "SIL\nSPN\nK\n", "'K' is both a silence and a nonsilence"),
    ],
)
def test_faults_name_file_and_line(folder, name, content, message):
    (folder / name).write_text(content)
    with pytest.raises(ToolkitError, match=message):
        read_dict(folder)


def test_invalid_probabilities_and_missing_files_are_errors(folder):
    (folder / "lexicon.txt").unlink()
    (folder / "lexiconp.txt").write_text("A 1.5 AH0\n")
    with pytest.raises(ToolkitError, match=r"lexiconp.txt:1: '1.5' is not a probability"):
        read_dict(folder)
    (folder / "silence_phones.txt").unlink()
    with pytest.raises(ToolkitError, match=r"has no silence_phones.txt"):
        read_dict(folder)


@pytest.mark.parametrize("lexicon", [{"<s>": [("K",)]}, {"A": [("K_B", "T")]}])
def test_words_and_phones_that_kaldi_reserves_are_refused(lexicon, tmp_path):
    table = Lang.of(LEXICON)
    lang = Lang(Lexicon(lexicon), table.phones, table.words)
    with pytest.raises(ToolkitError, match=r"reserve|disambiguation symbol"):
        write_dict(lang, tmp_path)


SMALL_LEXICON = Lexicon({"A": [("AH",), ("EY",)], "CAT": [("K", "AE", "T")]})


@pytest.mark.parametrize("marked", [False, True])
def test_words_and_ids_round_trip(tmp_path, marked):
    lang = Lang.of(SMALL_LEXICON.with_positions() if marked else SMALL_LEXICON)
    write_lang(lang, tmp_path)
    assert SymbolTable.read(tmp_path / "phones.txt") == lang.phones
    assert SymbolTable.read(tmp_path / "words.txt") == lang.words
    imported, notes = read_lang(tmp_path)
    assert (imported.lexicon, imported.phones, imported.words) == (
        lang.lexicon,
        lang.phones,
        lang.words,
    )
    assert notes == ("words left out, because the toolkit adds its own: <UNK>",)


def test_sets_have_names_numbers_and_lists(tmp_path):
    lang = Lang.of(SMALL_LEXICON.with_positions())
    write_lang(lang, tmp_path)
    read = {p.name: p.read_text() for p in (tmp_path / "phones").iterdir()}
    assert read["silence.txt"] == "SIL\nSPN\n"
    assert read["silence.int"] == "1\n2\n"
    assert read["silence.csl"] == "1:2\n"
    assert read["disambig.txt"].split() == lang.disambig_symbols
    assert read["word_boundary.txt"].splitlines()[:4] == [
        "SIL nonword", "SPN singleton", "AE_I internal", "AH_S singleton",
    ]  # fmt: skip
    assert read["align_lexicon.txt"].splitlines()[:3] == [
        "<eps> <eps> SIL",
        "<UNK> <UNK> SPN",
        "A A AH_S",
    ]
    assert read["align_lexicon.int"].splitlines()[0] == "0 0 1"
    assert (tmp_path / "oov.int").read_text() == f"{lang.words['<UNK>']}\n"


def test_a_directory_that_kaldi_made(tmp_path):
    (tmp_path / "phones").mkdir()
    files = {
        "phones.txt": "<eps> 0\nsil 1\nsil_S 2\noov 3\noov_S 4\nk_B 5\nt_E 6\n#0 7\n",
        "words.txt": "<eps> 0\n<oov> 1\nkt 2\n<sil> 3\n",
        "oov.txt": "<oov>\n",
        "phones/silence.txt": "sil\nsil_S\noov\noov_S\n",
        "phones/optional_silence.txt": "sil\n",
        "phones/word_boundary.txt": "sil nonword\n",
        "phones/align_lexicon.txt": "<eps> <eps> sil\n<oov> <oov> oov_S\n<sil> <sil> sil_S\n"
        "kt kt k_B t_E\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    lang, notes = read_lang(tmp_path)
    assert lang.lexicon == {"<UNK>": [("SPN",)], "KT": [("k_B", "t_E")]}
    assert notes == ("words left out, because the toolkit adds its own: <oov> <sil>",)
    (tmp_path / "phones/align_lexicon.txt").write_text("<eps> <eps> sil\nkt kt k_B t_E\n")
    assert read_lang(tmp_path)[1] == ()


def test_faults_name_the_file(tmp_path):
    with pytest.raises(ToolkitError, match=r"phones.txt: no such file"):
        read_lang(tmp_path)
    write_lang(Lang.of(SMALL_LEXICON), tmp_path)
    (tmp_path / "phones/align_lexicon.txt").write_text("A A XX\n")
    with pytest.raises(ToolkitError, match=r"align_lexicon.txt:1: expected `word word phone"):
        read_lang(tmp_path)


def test_folders_of_kaldi(tmp_path):
    lexicon = Lexicon({"MA": [("m", "a1"), ("m", "a")], "UM": [("SPN",)]})
    unmarked = Lang.of(lexicon)
    write_dict(unmarked, tmp_path / "dict")
    (tmp_path / "dict/lexicon.txt").unlink()
    weighted = (tmp_path / "dict/lexiconp.txt").read_text().replace("MA 1.0 m a1", "MA 0.5 m a1")
    (tmp_path / "dict/lexiconp.txt").write_text(weighted)
    (tmp_path / "dict/lexiconp_silprob.txt").unlink(missing_ok=True)
    loaded = read_lexicon(tmp_path / "dict")
    assert {word: sorted(variants) for word, variants in loaded.lexicon.items()} == {
        "MA": [("m", "a"), ("m", "a1")],
        "UM": [("SPN",)],
    }
    assert loaded.probabilities.of(("MA", ("m", "a1"))).pronunciation == 0.5
    for name, lang in {"lang": unmarked, "marked": Lang.of(lexicon.with_positions())}.items():
        write_lang(lang, tmp_path / name)
        assert read_lexicon(tmp_path / name).lexicon == loaded.lexicon
    (tmp_path / "other").mkdir()
    with pytest.raises(ToolkitError, match=r"neither Kaldi's dict folder .* nor its lang folder"):
        read_lexicon(tmp_path / "other")
