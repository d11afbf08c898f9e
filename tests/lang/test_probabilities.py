from dataclasses import replace

import pytest
from hypothesis import given, settings

from tests.lang.scored_sentences import probabilities
from toolkit.errors import ToolkitError
from toolkit.lang.lang import Lang
from toolkit.lang.lexicon import Lexicon
from toolkit.lang.probabilities import EntryProbabilities, LexiconProbabilities

LEXICON = Lexicon({"A": [("a",), ("b", "b")], "AB": [("a", "b")]})
KNOWN = LexiconProbabilities({("A", ("a",)): EntryProbabilities(1, 0.25, 1.5)}, 0.9, 1.2, 0.1, 0.3)


@settings(deadline=None, max_examples=20)
@given(probabilities(list(LEXICON.pairs())))
def test_saved_and_loaded(tmp_path_factory, found):
    folder = tmp_path_factory.mktemp("lang")
    lang = replace(Lang.of(LEXICON), probabilities=found)
    lang.save(folder)
    assert Lang.load(folder) == lang


def test_a_folder_without_them(tmp_path):
    assert LexiconProbabilities.load(tmp_path) is None
    KNOWN.save(tmp_path)  # of a lexicon that was here before
    Lang.of(LEXICON).save(tmp_path)
    assert Lang.load(tmp_path).probabilities is None


def test_the_files_are_kaldis(tmp_path):
    KNOWN.save(tmp_path)
    assert (tmp_path / "lexiconp_silprob.txt").read_text() == "A 1 0.25 1.5 1.0 a\n"
    assert (tmp_path / "silprob.txt").read_text() == (
        "<s> 0.9\n</s>_s 1.2\n</s>_n 0.1\noverall 0.3\n"
    )


def test_pronunciations_without_an_entry():
    assert KNOWN.of(("A", ("b", "b"))) == EntryProbabilities(1.0, 0.3, 1.0, 1.0)


def test_renamed():
    usual, rare = EntryProbabilities(1.0, 0.1), EntryProbabilities(0.5, 0.2)
    entries = {("A", ("a_S",)): usual, ("A", ("a",)): rare, ("B", ("b",)): rare}
    names = {("A", ("a_S",)): ("A", ("a",)), ("A", ("a",)): ("A", ("a",))}
    found = replace(KNOWN, entries=entries).renamed(names.get)
    assert found == replace(KNOWN, entries={("A", ("a",)): usual})


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("lexiconp_silprob.txt", "A 1 0.2 1 1", r"txt:1: not `word probability"),
        ("lexiconp_silprob.txt", "A 1.5 0.2 1 1 a", r"txt:1: '1.5' is not a probability \(above"),
        ("lexiconp_silprob.txt", "A 1 1.0 1 1 a", "'1.0' is not a probability between 0 and 1"),
        ("lexiconp_silprob.txt", "A 1 0.5 0 1 a", "'0' is not a factor above 0"),
        ("lexiconp_silprob.txt", "A 1 0.5 1 inf a", "'inf' is not a factor above 0"),
        ("silprob.txt", "<s> 0.5 0.5", r"silprob.txt:1: not one of <s>, </s>_s"),
        ("silprob.txt", "<s> 0", "'0' is not a probability between"),
        ("silprob.txt", "<s> 0.5", "has no line '</s>_s'"),
    ],
)
def test_faults_name_file_and_line(tmp_path, name, line, message):
    KNOWN.save(tmp_path)
    (tmp_path / name).write_text(f"{line}\n")
    with pytest.raises(ToolkitError, match=message):
        LexiconProbabilities.load(tmp_path)


def test_one_file_without_the_other(tmp_path):
    KNOWN.save(tmp_path)
    (tmp_path / "silprob.txt").unlink()
    with pytest.raises(ToolkitError, match=r"silprob.txt is missing.*belong together"):
        LexiconProbabilities.load(tmp_path)
