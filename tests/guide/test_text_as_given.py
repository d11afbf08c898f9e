"""Corpora whose words are not letters in upper case: from one command to the first error rates."""

import json
import re

import numpy as np
import pytest
import soundfile

from tests.guide.conftest import make_project, typed
from toolkit.corpus.manifest import iter_cuts, text_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

RATE = 16000
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


def write_audio(path, phones, rng):
    """Write a sentence in which every phone is a chord of its own, with pauses around it."""
    pieces = [np.zeros(3200)]
    for phone in phones:
        own = np.random.default_rng(ord(phone))
        frequencies = own.uniform(200, 5000, 4)
        seconds = np.arange(round(RATE * rng.uniform(0.08, 0.12))) / RATE
        chord = sum(np.sin(2 * np.pi * f * rng.uniform(0.99, 1.01) * seconds) for f in frequencies)
        pieces.append(chord * np.hanning(len(seconds)) ** 0.3)
    samples = np.concatenate([*pieces, np.zeros(3200)]) * 0.1
    samples += 0.002 * rng.standard_normal(len(samples))
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples, RATE, subtype="PCM_16")


def sentences(lexicon, number):
    """Return sentences of three to five words."""
    rng = np.random.default_rng(7)
    return [" ".join(rng.choice(list(lexicon), rng.integers(3, 6))) for _ in range(number)]


def record(folder, lexicon, number=60):
    """Record sentences; return (file, text, speaker) of each."""
    rng = np.random.default_rng(3)
    rows = []
    for index, text in enumerate(sentences(lexicon, number)):
        file = f"wav/{index:03d}.wav"
        phones = " ".join(lexicon[word] for word in text.split()).split()
        write_audio(folder / file, phones, rng)
        rows.append((file, text, f"s{index % 6}"))
    return rows


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return make_project(tmp_path_factory.mktemp("given") / "project")


def lexicon_lines(lexicon):
    return "".join(f"{word} {phones}\n" for word, phones in lexicon.items())


def run_to_first_error_rates(project, name, rows):
    """Run the recipe; words that come out are those that went in."""
    printed = typed(f"recipes/{name}/run.py --stop-stage 8 --jobs 2", project)
    exp = project / "recipes" / name / "exp/base"
    written = {
        cut.id: text_of(cut)
        for path in sorted((exp / "data").glob("*.jsonl"))
        for cut in iter_cuts(path)
    }
    assert sorted(written.values()) == sorted(text for _, text, _ in rows)
    known = {word for _, text, _ in rows for word in text.split()}
    assert set((exp / "lang/vocab.txt").read_text().splitlines()) == known
    assert json.loads((exp / "lang/lang.json").read_text())["normaliser"] == "as-given"
    rates = {s: float(r) for s, r in re.findall(r"mono (\w+) 3gram: %WER ([\d.]+)", printed)}
    assert set(rates) == {"dev", "test"}
    assert max(rates.values()) < 20, printed
    decoded = [path.read_text().splitlines() for path in (exp / "decode/mono").rglob("text")]
    recognised = {word for lines in decoded for line in lines for word in line.split()[1:]}
    assert recognised
    assert recognised <= known
    return exp, printed


def test_a_case_sensitive_transliteration_in_kaldis_form(project):
    data = project / "speech/data"
    rows = record(data, TRANSLITERATED)
    for name, column in (("wav.scp", 0), ("text", 1), ("utt2spk", 2)):
        lines = (f"{row[2]}-{row[0][4:7]} {row[column]}\n" for row in rows)
        (data / name).write_text("".join(sorted(lines)))
    (data / "local/dict").mkdir(parents=True)
    silences = "!SIL SIL\n<unk> SPN\n"
    (data / "local/dict/lexicon.txt").write_text(silences + lexicon_lines(TRANSLITERATED))
    printed = typed(".venv/bin/toolkit new-corpus translit --from-kaldi speech/data", project)
    tokens = sum(len(text.split()) for _, text, _ in rows)
    assert f"text: as-given; as they stand {tokens} of {tokens} words are in the lexicon" in printed
    exp, _ = run_to_first_error_rates(project, "translit", rows)
    phones = (exp / "lang/phones.txt").read_text()
    assert "\nN_B " in phones
    assert "\nn_B " in phones


def test_digits_and_symbols_that_the_lexicon_has(project):
    folder = project / "symbols"
    rows = record(folder, WITH_SYMBOLS)
    lines = "".join(f"{file}\t{text}\t{speaker}\n" for file, text, speaker in rows)
    (folder / "table.tsv").write_text("audio\ttext\tspeaker\n" + lines)
    (folder / "symbols.lexicon").write_text(lexicon_lines(WITH_SYMBOLS))
    arguments = "--from-csv symbols/table.tsv --lexicon symbols/symbols.lexicon"
    printed = typed(f".venv/bin/toolkit new-corpus symbols {arguments}", project)
    assert "text: as-given; as they stand" in printed
    assert "with digits" not in printed
    exp, _ = run_to_first_error_rates(project, "symbols", rows)
    report = (exp / "check/report.txt").read_text()
    assert "bad-characters" not in report
    assert "NOTE tag" not in report
