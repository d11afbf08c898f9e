"""Corpora with broken lines: one command and a run; each is a finding, and no other is lost."""

import csv
import io
import re

import pytest

from tests.guide.conftest import make_project, typed
from tests.guide.made_up_speech import lexicon_lines, record, write_kaldi
from tests.recipes.conftest import SMALL
from toolkit.corpus.findings import ERROR
from toolkit.corpus.manifest import read_cuts, text_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

LEXICON = {
    "für": "f y r",
    "böse": "b o z e",
    "nüsse": "n y s e",
    "see": "z e",
    "das": "d a s",
    "rad": "r a t",
    "tal": "t a l",
}
CUT = "böse".encode()[:2]
"""A word that ends within the bytes of its second letter."""
NUMBER = 90


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    root = make_project(tmp_path_factory.mktemp("faulty") / "project")
    folder = root / "speech"
    rows = record(folder, LEXICON, NUMBER)
    (folder / "german.dict").write_text(lexicon_lines(LEXICON), encoding="utf-8")
    (folder / rows[10][0]).unlink()
    return root, folder, rows


def write_faulty_kaldi(folder, rows):
    """Break lines of a data directory; return texts and kinds of findings by utterance."""
    texts = {f"{speaker}-{file[4:7]}": text for file, text, speaker in rows}
    write_kaldi(folder, rows)
    lines = (folder / "text").read_bytes().splitlines()
    ids = [line.split()[0].decode() for line in lines]
    lines[20] = ids[20].encode() + b" das " + CUT + b" rad"
    lines[30] = ids[30].encode()
    lines[40] = ids[40].encode() + b"  \t "
    lines[50] = lines[50].replace(b" ", b"\t") + b"  "
    lines[51] = lines[51].replace(b" ", b"  ") + b"\t"
    lines.append(lines[60])
    text = b"\xef\xbb\xbf" + b"\r\n".join(lines) + b"\r\n"
    (folder / "text").write_bytes(text)
    scp = (folder / "wav.scp").read_bytes()
    (folder / "wav.scp").write_bytes(scp.replace(b"\n", b" \r\n") + b"s5-new wav/new.wav\r\n")
    missing = {line.split()[0]: line for line in scp.decode().splitlines() if "010.wav" in line}
    return texts, {
        **dict.fromkeys(missing, "missing-audio"),
        ids[20]: "not-utf8",
        ids[30]: "empty-transcript",
        ids[40]: "empty-transcript",
        ids[60]: "duplicate-id",
        "s5-new": "missing-audio",
    }


def write_faulty_table(folder, rows):
    """Write a table with broken lines; return texts and kinds of findings by utterance."""
    texts = {f"u{number:03d}": text for number, (_, text, _) in enumerate(rows)}
    rows = [(f"u{number:03d}", *row) for number, row in enumerate(rows)]
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=";").writerows([("id", "audio", "text", "speaker"), *rows])
    lines = file.getvalue().encode().splitlines()
    lines[21] = b"u020;" + rows[20][1].encode() + b";das " + CUT + b" rad;s2"
    lines[31] = b"u030"
    lines[41] = b"u040;" + rows[40][1].encode() + b";  ;s4"
    lines[51] = lines[51].replace(b";", b" ; \t") + b"  "
    lines.append(lines[61])
    (folder / "table.csv").write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(lines) + b"\r\n\r\n")
    return texts, {
        "u010": "missing-audio",
        "u020": "not-utf8",
        "u030": "bad-line",
        "u040": "empty-transcript",
        "u060": "duplicate-id",
    }


@pytest.mark.parametrize("form", ["kaldi", "table"])
def test_broken_lines(project, form):
    root, folder, rows = project
    write = {"kaldi": write_faulty_kaldi, "table": write_faulty_table}[form]
    texts, faults = write(folder, rows)
    source = {"kaldi": "--from-kaldi speech", "table": "--from-csv speech/table.csv"}[form]
    printed = typed(
        f".venv/bin/toolkit new-corpus from_{form} {source} --lexicon speech/german.dict", root
    )
    for kind in {*faults.values()}:
        assert f"{kind}, left out, first" in printed, printed
    settings = " ".join(
        f"--set {setting}" for setting in SMALL if setting.startswith(("mono.", "gmm_"))
    )
    printed = typed(f"recipes/from_{form}/run.py --stop-stage 8 --jobs 2 {settings}", root)
    exp = root / "recipes" / f"from_{form}" / "exp/base"
    findings = (exp / "check/findings.tsv").read_text(encoding="utf-8")
    listed = [line.split("\t") for line in findings.splitlines()[1:]]
    assert {fields[3]: fields[1] for fields in listed if fields[0] == ERROR} == faults, findings
    written = {
        cut.id: text_of(cut)
        for split in ("train", "dev", "test")
        for cut in read_cuts(exp / f"data/{split}.jsonl", exp / "check/excluded.tsv")
    }
    lost = {id for id, kind in faults.items() if kind != "duplicate-id"}
    assert written == {id: text.upper() for id, text in texts.items() if id not in lost}
    rates = {s: float(r) for s, r in re.findall(r"mono (\w+) 3gram: %WER ([\d.]+)", printed)}
    assert set(rates) == {"dev", "test"}
    assert max(rates.values()) < 20, printed
