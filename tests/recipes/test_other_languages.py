"""The CTC recipe up to its output units, on transcripts that are not English."""

import pytest

from recipes.librispeech.run_ctc import recipe
from tests.recipes.small_recipe import noise
from toolkit.corpus.manifest import iter_cuts, text_of
from toolkit.lang.arpa import read_arpa
from toolkit.lang.units import load_units

GREEK = ("Το κλειδί, χθες!", "Ο γιατρός τραγούδησε.", "Έβαψε την κουζίνα;", "Είδε το άλογο.")


@pytest.fixture
def sentences():
    return GREEK


@pytest.fixture
def run(sentences, tmp_path, capsys):
    """Return a function that runs the recipe on the sentences; it gives status and output."""
    rows = ["audio,text,speaker,split"]
    for split, speaker in (("train", "ann"), ("train", "ben"), ("dev", "dora"), ("test", "emil")):
        for number, text in enumerate(sentences):
            noise(tmp_path / f"{speaker}/{number}.wav", len(rows), seconds=2.0)
            rows.append(f'{speaker}/{number}.wav,"{text}",{speaker},{split}')
    (tmp_path / "table.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    settings = ("corpus.name=table", f"corpus.root={tmp_path / 'table.csv'}")

    def run_recipe(*overrides):
        words = [word for setting in (*settings, *overrides) for word in ("--set", setting)]
        arguments = ("--profile", "kaldi", *words, "--stop-stage", "4", "--jobs", "1")
        with pytest.raises(SystemExit) as end:
            recipe.main([*arguments, "--exp", str(tmp_path / "exp")])
        captured = capsys.readouterr()
        return end.value.code, captured.out + captured.err

    return run_recipe


def test_word_pieces_of_another_alphabet(run, tmp_path):
    code, output = run("normaliser=letters-upper-1", "units.kind=bpe", "units.pieces=60")
    assert code == 0, output
    units = load_units(tmp_path / "exp/units")
    text = "ΤΟ ΚΛΕΙΔΊ ΧΘΕΣ"
    assert units.decode(units.encode(text)) == text
    words = (tmp_path / "exp/words.txt").read_text(encoding="utf-8").split()
    assert "ΚΛΕΙΔΊ" in words
    assert all(word.isalpha() for word in words)
    vocabulary = (tmp_path / "exp/lm/lm.arpa").read_text(encoding="utf-8")
    assert "\tΚΛΕΙΔΊ" in vocabulary


def test_characters_of_another_alphabet(run, tmp_path):
    code, output = run("normaliser=letters-upper-1")
    assert code == 0, output
    units = load_units(tmp_path / "exp/units")
    assert set(units.symbols[1:-2]) == set("".join(GREEK).lower()) - set(" ,;!.ς")
    assert units.decode(units.encode("ΓΙΑΤΡΌΣ")) == "ΓΙΑΤΡΌΣ"


@pytest.mark.parametrize("sentences", [("dr. saN 3", "san 97.4 / i.e.", "dr. Dr.", "f_g m\u00a0m")])
def test_the_as_given_normaliser_keeps_words_as_written(run, sentences, tmp_path):
    """Words of transcripts, dictionary, n-grams and units stay as written."""
    words = {word for text in sentences for word in text.split(" ")}
    (tmp_path / "lm.txt").write_text("<s> dr. saN 97.4 </s>\nDr. 98 <unk>\n", encoding="utf-8")
    code, output = run(
        "normaliser=as-given", f"lm.text={tmp_path / 'lm.txt'}", "check.max_excluded=1"
    )
    assert code == 0, output
    assert "bad-characters" not in (tmp_path / "exp/check/report.txt").read_text(encoding="utf-8")
    manifest = iter_cuts(tmp_path / "exp/data/train.jsonl")
    assert {text_of(cut) for cut in manifest} == set(sentences)
    listed = (tmp_path / "exp/words.txt").read_text(encoding="utf-8").split("\n")
    assert {*listed} - {""} == words
    assert {*read_arpa(tmp_path / "exp/lm/lm.arpa").vocabulary} == {*words, "<s>", "</s>", "<UNK>"}
    units = load_units(tmp_path / "exp/units")
    assert [units.decode(units.encode(text)) for text in sentences] == [*sentences]


def test_without_rules_transcripts_stay_unchanged(run, tmp_path):
    code, output = run()
    assert code == 1
    assert "would contain no word of the training transcripts" in output
    assert "set normaliser=letters-upper-1" in output
    assert "ΧΘΕΣ!" in (tmp_path / "exp/data/train.jsonl").read_text(encoding="utf-8")


@pytest.mark.parametrize("sentences", [("grün ist gut", "grün, gut [lachen]", "gut", "ist gut")])
def test_words_that_the_english_rules_change_are_reported(run):
    code, output = run()
    assert code == 0, output
    assert "lacks 2 of 4 words of the training transcripts" in output
    assert "turn GRÜN into GRUN" in output
    assert "normaliser=letters-upper-1" in output
    code, output = run("normaliser=letters-upper-1")
    assert code == 0, output
    assert "the training transcripts" not in output
