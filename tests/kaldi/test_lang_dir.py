"""Exported lang directories have what Kaldi's validate_lang.pl asks for, and say what ours say."""

from dataclasses import replace

import pytest
from click.testing import CliRunner

from tests.fsa.transducers import agree, silent, transductions
from tests.kaldi.openfst_files import fst_of
from tests.kaldi.rules import lang_faults
from toolkit import cli
from toolkit.decode.graph import make_lexicon
from toolkit.fsa.grammar import grammar_acceptor
from toolkit.hmm.phone_sets import default_roots, read_roots
from toolkit.hmm.topology import Topology
from toolkit.kaldi.dict_lang import KaldiDictError, read_lang
from toolkit.kaldi.lang_dir import write_lang_dir
from toolkit.lang.arpa import write_arpa
from toolkit.lang.lang import Lang
from toolkit.lang.lexicon import Lexicon
from toolkit.lang.ngram import estimate
from toolkit.lang.probabilities import EntryProbabilities, LexiconProbabilities

LEXICON = Lexicon(
    {
        "A": [("AH0",), ("EY1",)],
        "AN": [("AH0", "N")],
        "CAT": [("K", "AE1", "T")],
        "EH": [("EY1",)],
        "É": [("EY0", "EY1")],
    }
)
TEXT = [["A", "CAT"], ["A", "CAT", "EH"], ["AN", "É"], ["A"], ["EH", "A", "CAT"]]
KNOWN = LexiconProbabilities(
    {("EH", ("EY1",)): EntryProbabilities(1.0, 0.25, 1.5)}, 0.9, 1.2, 0.5, 0.3
)
KINDS = ("plain", "marked", "weighted")


def vocabulary(kind):
    lang = Lang.of(LEXICON.with_positions() if kind == "marked" else LEXICON)
    return replace(lang, probabilities=KNOWN) if kind == "weighted" else lang


def exported(folder, kind="marked"):
    """The vocabulary and its directory."""
    lang = vocabulary(kind)
    write_arpa(estimate(TEXT, lang.vocabulary, 2, (1,))[0], folder / "lm.arpa")
    write_lang_dir(lang, folder / "lang", grammar_acceptor(folder / "lm.arpa", lang.words))
    return lang, folder / "lang"


@pytest.mark.parametrize("kind", KINDS)
def test_kaldi_finds_nothing_wrong(tmp_path, kind):
    _, folder = exported(tmp_path, kind)
    assert lang_faults(folder) == []


@pytest.mark.parametrize(
    ("name", "before", "after", "fault"),
    [
        ("phones/silence.int", "2\n", "3\n", "silence.int"),
        ("phones/nonsilence.csl", "3:", "", "nonsilence.csl"),
        ("phones/roots.txt", "not-split SPN", "not-split", "roots: other phones in .int"),
        ("phones/sets.int", "2\n", "", "sets: other lines in .int"),
        ("phones/word_boundary.txt", "SPN singleton", "SPN nonword", "word_boundary: other"),
        ("phones/extra_questions.txt", "SIL", "SPN", "extra_questions: other phones in .int"),
        ("phones/wdisambig_words.int", "7", "8", "wdisambig_words.int"),
        ("phones/optional_silence.txt", "SIL", "AH0_S", "optional silence"),
        ("topo", "<ForPhones>\n1", "<ForPhones>\n3", "topo: not each phone once"),
        ("words.txt", "CAT 3", "CAT 4", "words.txt: an id twice"),
        ("oov.int", "6", "5", "oov"),
    ],
)
def test_the_rules_find_what_is_wrong(tmp_path, name, before, after, fault):
    _, folder = exported(tmp_path)
    text = (folder / name).read_text("utf-8")
    assert before in text
    (folder / name).write_text(text.replace(before, after, 1), "utf-8")
    assert any(fault in found for found in lang_faults(folder))


def test_the_rules_find_unk_that_is_no_word(tmp_path):
    _, folder = exported(tmp_path)
    for end, spn in (("txt", "SPN"), ("int", "2")):
        path = folder / f"phones/word_boundary.{end}"
        path.write_text(path.read_text().replace(f"{spn} singleton", f"{spn} nonword"))
    assert {*lang_faults(folder)} == {
        "L.fst: another number of words",
        "L_disambig.fst: another number of words",
    }


@pytest.mark.parametrize("kind", KINDS)
def test_lexicon_and_grammar_are_the_toolkits(tmp_path, kind):
    lang, folder = exported(tmp_path, kind)
    own = make_lexicon(lang, unknown=True)
    length = 7
    expected = transductions(own, length)
    agree(transductions(fst_of((folder / "L_disambig.fst").read_bytes()), length), expected)
    symbols = [lang.phones[symbol] for symbol in lang.disambig_symbols]
    # Where L_disambig reads a symbol, L reads nothing; #0 is in neither what it reads nor writes.
    backoff = lang.words["#0"]
    spoken = {key: score for key, score in expected.items() if backoff not in key[1]}
    found = silent(transductions(fst_of((folder / "L.fst").read_bytes()), length), 0)
    agree(found, silent(spoken, 0, *symbols))
    grammar = grammar_acceptor(tmp_path / "lm.arpa", folder / "words.txt")
    found = transductions(fst_of((folder / "G.fst").read_bytes()), 4)
    agree(found, transductions(grammar, 4))
    assert lang.words["<UNK>"] in {word for _, words in expected for word in words}


def test_roots_are_those_of_the_toolkits_trees(tmp_path):
    lang, folder = exported(tmp_path)
    topology = Topology(tuple(lang.real_phones))
    assert read_roots(folder / "phones/roots.txt", topology) == default_roots(topology)
    assert "not-shared split EY0_B EY1_E EY1_S\n" in (folder / "phones/roots.txt").read_text()


def test_questions_are_about_silence_stress_and_position(tmp_path):
    _, folder = exported(tmp_path)
    lines = (folder / "phones/extra_questions.txt").read_text().splitlines()
    assert lines == [
        "SIL SPN",
        "K_B N_E T_E",
        "AH0_B AH0_S EY0_B",
        "AE1_I EY1_E EY1_S",
        "AH0_B EY0_B K_B",
        "EY1_E N_E T_E",
        "AE1_I",
        "AH0_S EY1_S",
    ]


def test_an_export_without_a_grammar_leaves_none_of_an_earlier_one(tmp_path):
    lang, folder = exported(tmp_path)
    write_lang_dir(lang, folder)
    assert not (folder / "G.fst").exists()
    assert lang_faults(folder) == []
    assert read_lang(folder)[0].lexicon == lang.lexicon


def test_a_model_that_cannot_be_read_leaves_nothing_behind(tmp_path):
    vocabulary("plain").save(tmp_path / "lang")
    (tmp_path / "empty").touch()
    command = ["kaldi", "export-lang", "--lang", tmp_path / "lang", "--lm", tmp_path / "empty"]
    done = CliRunner().invoke(cli.main, [*map(str, command), "--out", str(tmp_path / "out")])
    assert done.exit_code == 1
    assert f"{tmp_path / 'empty'}:1: no line" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_word_with_a_no_break_space_is_refused(tmp_path):
    lexicon = Lexicon({"A": [("AH0",)], "A\N{NO-BREAK SPACE}B": [("AH0", "N")]})
    with pytest.raises(KaldiDictError, match="white space"):
        write_lang_dir(Lang.of(lexicon), tmp_path)


def export_with(tmp_path, arpa):
    vocabulary("plain").save(tmp_path / "lang")
    (tmp_path / "lm.arpa").write_text(arpa)
    command = ["kaldi", "export-lang", "--lang", tmp_path / "lang", "--lm", tmp_path / "lm.arpa"]
    return CliRunner().invoke(cli.main, [*map(str, command), "--out", str(tmp_path / "out")])


def test_a_model_in_the_other_case_is_refused(tmp_path):
    """Its n-grams of <unk> and </s> alone are no grammar."""
    words = ["<s>", "</s>", "<unk>", *map(str.lower, vocabulary("plain").vocabulary)]
    grams = "".join(f"-1.0\t{word}\n" for word in words)
    arpa = f"\\data\\\nngram 1={len(words)}\n\n\\1-grams:\n{grams}\n\\end\\\n"
    done = export_with(tmp_path, arpa)
    assert done.exit_code == 1
    assert "spell words alike in both" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_model_that_lacks_most_words_is_told(tmp_path, caplog):
    known = vocabulary("plain").vocabulary
    grams = "".join(f"-1.0\t{word}\n" for word in ("<s>", "</s>", known[0]))
    done = export_with(tmp_path, f"\\data\\\nngram 1=3\n\n\\1-grams:\n{grams}\n\\end\\\n")
    assert done.exit_code == 0, done.output
    (warning,) = [record.getMessage() for record in caplog.records]
    assert f"{tmp_path / 'lm.arpa'}: the model lacks {len(known) - 1} of {len(known)}" in warning
