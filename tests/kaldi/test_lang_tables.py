import pytest

from toolkit.errors import ToolkitError
from toolkit.kaldi.dict_lang import read_lang, read_lexicon, write_dict, write_lang
from toolkit.lang.lang import Lang
from toolkit.lang.lexicon import Lexicon
from toolkit.lang.tables import SymbolTable

LEXICON = Lexicon({"A": [("AH",), ("EY",)], "CAT": [("K", "AE", "T")]})


@pytest.mark.parametrize("marked", [False, True])
def test_words_and_ids_come_back_as_they_were(tmp_path, marked):
    lang = Lang.of(LEXICON.with_positions() if marked else LEXICON)
    write_lang(lang, tmp_path)
    assert SymbolTable.read(tmp_path / "phones.txt") == lang.phones
    assert SymbolTable.read(tmp_path / "words.txt") == lang.words
    back, notes = read_lang(tmp_path)
    assert (back.lexicon, back.phones, back.words) == (lang.lexicon, lang.phones, lang.words)
    assert notes == ("left out, as the toolkit adds its own: <UNK>",)


def test_sets_have_names_numbers_and_lists(tmp_path):
    lang = Lang.of(LEXICON.with_positions())
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
    assert notes == ("left out, as the toolkit adds its own: <oov> <sil>",)
    (tmp_path / "phones/align_lexicon.txt").write_text("<eps> <eps> sil\nkt kt k_B t_E\n")
    assert read_lang(tmp_path)[1] == ()


def test_faults_name_the_file(tmp_path):
    with pytest.raises(ToolkitError, match=r"phones.txt: no such file"):
        read_lang(tmp_path)
    write_lang(Lang.of(LEXICON), tmp_path)
    (tmp_path / "phones/align_lexicon.txt").write_text("A A XX\n")
    with pytest.raises(ToolkitError, match=r"align_lexicon.txt:1: not `word word phone"):
        read_lang(tmp_path)


def test_folders_of_kaldi(tmp_path):
    lexicon = Lexicon({"MA": [("m", "a1"), ("m", "a")], "UM": [("SPN",)]})
    plain = Lang.of(lexicon)
    write_dict(plain, tmp_path / "dict")
    (tmp_path / "dict/lexicon.txt").unlink()
    weighted = (tmp_path / "dict/lexiconp.txt").read_text().replace("MA 1.0 m a1", "MA 0.5 m a1")
    (tmp_path / "dict/lexiconp.txt").write_text(weighted)
    (tmp_path / "dict/lexiconp_silprob.txt").unlink(missing_ok=True)
    found = read_lexicon(tmp_path / "dict")
    assert {word: sorted(variants) for word, variants in found.lexicon.items()} == {
        "MA": [("m", "a"), ("m", "a1")],
        "UM": [("SPN",)],
    }
    assert found.probabilities.of(("MA", ("m", "a1"))).pronunciation == 0.5
    for name, lang in {"lang": plain, "marked": Lang.of(lexicon.with_positions())}.items():
        write_lang(lang, tmp_path / name)
        assert read_lexicon(tmp_path / name).lexicon == found.lexicon
    (tmp_path / "other").mkdir()
    with pytest.raises(ToolkitError, match=r"neither Kaldi's dict folder .* nor its lang folder"):
        read_lexicon(tmp_path / "other")
