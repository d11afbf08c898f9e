"""Corpora whose words are not letters in upper case: from one command to the first error rates."""

import json
import re

import pytest

from tests.guide.conftest import make_project, typed
from tests.guide.made_up_speech import lexicon_lines, record, write_kaldi
from tests.recipes.conftest import SMALL
from toolkit.corpus.manifest import iter_cuts, text_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

TRANSLITERATED = {
    "san": "s a n",
    "saN": "s a N",
    "San": "S a n",
    "naS": "n a S",
    "nas": "n a s",
    "da": "d a",
    "Da": "D a",
    "aDa": "a D a",
    "nuD": "n u D",
    "NuS": "N u S",
}
WITH_SYMBOLS = {
    "dr.": "d a k t a",
    "3": "t r i",
    "97.4": "n a i n t i",
    "i.e.": "a i i",
    "/": "s t r a k",
    "rain": "r a i n",
    "Rain": "r a i n i",
    "(left": "l i f t",
    "{LG}": "k k",
    "m'": "m i",
}
TINY = (
    "rooms.labelled_hours=0.01",
    "rooms.labelled_speakers=0.75",
    "rooms.unlabelled_hours=0.006",
    "rooms.val_hours=0.002",
    "rooms.test_hours=0.002",
    "prepare.select.hours=0.005",
    "prepare.select.hours_per_file=0.003",
    "repartition.hours=0.002",
    "student.hours_per_sub_epoch=0.004",
)
"""Amounts for the far-field recipe on two minutes of speech."""
WHOLE = " ".join(
    f"--set {setting}"
    for setting in (
        *(s for s in SMALL if not s.startswith(("ce.", "blstm.", "decode.", "sequence."))),
        *("lstm=false", "adapted=false", "bidirectional=false", "chain=true", "neural=true"),
        *("chain_features=adapted", "gmm_decode.scales=0.1", "chain_decode.scales=1"),
        *(
            "chain_decode.penalties=0",
            "pronunciation_probabilities=false",
            "lfmmi.epochs=3",
            "bundle=chain",
        ),
    )
)
"""The whole recipe, of which the TDNN-F is the only network."""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return make_project(tmp_path_factory.mktemp("given") / "project")


def run_recipe(project, name, rows, arguments="--stop-stage 8"):
    """Run the recipe; words that come out are those that went in, byte for byte."""
    printed = typed(f"recipes/{name}/run.py --jobs 2 {arguments}", project)
    exp = project / "recipes" / name / "exp/base"
    written = {
        cut.id: text_of(cut)
        for path in sorted((exp / "data").glob("*.jsonl"))
        for cut in iter_cuts(path)
    }
    assert sorted(written.values()) == sorted(text for _, text, _ in rows)
    vocabulary = {word for _, text, _ in rows for word in text.split()}
    assert set((exp / "lang/vocab.txt").read_text().splitlines()) == vocabulary
    assert json.loads((exp / "lang/lang.json").read_text())["normaliser"] == "as-given"
    rates = {s: float(r) for s, r in re.findall(r"mono (\w+) 3gram: %WER ([\d.]+)", printed)}
    assert set(rates) == {"dev", "test"}
    assert max(rates.values()) < 20, printed
    texts = [*(exp / "decode").rglob("text")]
    assert_words(texts, range(1, 100), vocabulary)
    return exp, vocabulary


def assert_words(paths, columns, vocabulary):
    """Each file has words, in these columns of its lines, all of them in the vocabulary."""
    assert paths
    for path in paths:
        lines = [line.split(" ") for line in path.read_text().splitlines()]
        words = {fields[n] for fields in lines for n in columns if n < len(fields)} - {""}
        assert words, path
        assert words <= vocabulary, path


def test_a_case_sensitive_transliteration_in_kaldis_form(project):
    data = project / "speech/data"
    rows = record(data, TRANSLITERATED)
    write_kaldi(data, rows)
    (data / "local/dict").mkdir(parents=True)
    silences = "!SIL SIL\n<unk> SPN\n"
    (data / "local/dict/lexicon.txt").write_text(silences + lexicon_lines(TRANSLITERATED))
    printed = typed(".venv/bin/toolkit new-corpus translit --from-kaldi speech/data", project)
    tokens = sum(len(text.split()) for _, text, _ in rows)
    assert f"text: as-given; as written, {tokens} of {tokens} words are in the lexicon" in printed
    exp, vocabulary = run_recipe(project, "translit", rows, WHOLE)
    phones = (exp / "lang/phones.txt").read_text()
    assert "\nN_B " in phones
    assert "\nn_B " in phones
    results = json.loads((exp / "results.json").read_text())
    assert {row["system"] for row in results} >= {"mono", "sat", "chain"}
    assert "4gram+lstm" in {row["lm"] for row in results}
    assert_words([*(exp / "decode").rglob("words.ctm")], [4], vocabulary)
    test = exp / "data/test.jsonl"
    model = f"--model {exp / 'final'}"
    typed(f".venv/bin/toolkit transcribe {model} {test} > words.txt", project)
    assert_words([project / "words.txt"], range(1, 100), vocabulary)
    scored = typed(f".venv/bin/toolkit score --ref {test} --hyp words.txt", project)
    assert re.search(r"%WER \d", scored)
    same = typed(f".venv/bin/toolkit score --ref {test} --hyp {test}", project)
    assert "%WER 0.00" in same


def test_the_words_that_are_aligned_are_those_of_the_texts(project):
    """After the recipe above: its aligner, on texts as they are written."""
    exp, speech = project / "recipes/translit/exp/base", project / "few"
    rows = record(speech, TRANSLITERATED, 6)
    texts = {file[4:7]: text for file, text, _ in rows}
    (speech / "text").write_text("".join(f"{id} {text}\n" for id, text in texts.items()))
    arguments = f"--audio-dir {speech / 'wav'} --text {speech / 'text'} --out {speech / 'out'}"
    typed(f".venv/bin/toolkit align --model {exp / 'final'} {arguments}", project)
    aligned = {}
    for line in (speech / "out/words.ctm").read_text().splitlines():
        id, _, _, _, word, *_ = line.split(" ")
        aligned.setdefault(id, []).append(word)
    assert {id: " ".join(words) for id, words in aligned.items()} == texts


def test_the_far_field_recipe(project):
    """After the recipe above: the same corpus, until the student's decoding."""
    from tests.recipes.test_farfield_ssl import ROOMS
    from tests.recipes.test_farfield_ssl import SMALL as SMALL_NETWORKS

    data = project / "speech/data"
    settings = (
        f"corpus.root={data}",
        "corpus.name=kaldi",
        f"lang.lexicon={data / 'local/dict/lexicon.txt'}",
        "lang.normaliser=as-given",
        *("corpus.dev_speakers=1", "corpus.test_speakers=1", *ROOMS, *SMALL_NETWORKS, *TINY),
    )
    arguments = " ".join(f"--set {setting}" for setting in settings)
    exp = project / "far"
    typed(f"recipes/farfield_ssl/run.py --exp {exp} --jobs 2 --stop-stage 27 {arguments}", project)
    assert {*(exp / "lang/vocab.txt").read_text().split()} == {*TRANSLITERATED}
    texts = [path for path in (exp / "decode").rglob("text") if "student" in str(path)]
    assert_words(texts, range(1, 100), {*TRANSLITERATED})


def test_digits_and_symbols_that_the_lexicon_has(project):
    folder = project / "symbols"
    rows = record(folder, WITH_SYMBOLS)
    lines = "".join(f"{file}\t{text}\t{speaker}\n" for file, text, speaker in rows)
    (folder / "table.tsv").write_text("audio\ttext\tspeaker\n" + lines)
    (folder / "symbols.lexicon").write_text(lexicon_lines(WITH_SYMBOLS))
    arguments = "--from-csv symbols/table.tsv --lexicon symbols/symbols.lexicon"
    printed = typed(f".venv/bin/toolkit new-corpus symbols {arguments}", project)
    assert "text: as-given; as written" in printed
    assert "with digits" not in printed
    exp, _ = run_recipe(project, "symbols", rows)
    report = (exp / "check/report.txt").read_text()
    assert "bad-characters" not in report
    assert "NOTE tag" not in report
