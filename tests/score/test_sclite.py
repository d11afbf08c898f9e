"""Comparison with NIST's sclite on the same files; skipped without sclite."""

import random
import re
import subprocess

import pytest
from click.testing import CliRunner

from benchmarks.score import sclite
from toolkit import cli
from toolkit.score.alignment import align_all
from toolkit.score.inputs import InputReader
from toolkit.score.nist.formats import write_trn
from toolkit.score.report import speaker_lines
from toolkit.score.wer import score

pytestmark = pytest.mark.skipif(sclite() is None, reason="sclite is not installed (Debian: sctk)")


def run_sclite(folder, *arguments):
    command = [*sclite(), *arguments, "-o", "sum", "rsum", "pralign", "-O", ".", "-f", "0"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def utterances_of(path):
    """Return (correct, sub, del, ins) by id from sclite's alignments, in order."""
    text = path.read_text()
    ids = re.findall(r"^id: \((.*)\)$", text, re.MULTILINE)
    rows = re.findall(r"^Scores: \(#C #S #D #I\) (\d+) (\d+) (\d+) (\d+)$", text, re.MULTILINE)
    return [(id, *map(int, row)) for id, row in zip(ids, rows, strict=True)]


def table_of(path):
    """Return the numbers of sclite's table by row name."""
    rows = [re.split(r"[|\s]+", line.strip("| \n")) for line in path.read_text().splitlines()]
    return {row[0]: [float(x) for x in row[1:]] for row in rows if len(row) == 9 and row[1] != "#"}


def random_pairs(number, seed):
    rng = random.Random(seed)
    for _ in range(number):
        words = [f"w{n}" for n in range(rng.choice([2, 3, 8, 60]))]
        ref = rng.choices(words, k=rng.randint(0, rng.choice([3, 9, 40])))
        if rng.random() < 0.5:
            yield ref, rng.choices(words, k=rng.randint(0, 12))
        else:
            yield ref, [rng.choice([w, w, w, *words[:2]]) for w in ref if rng.random() > 0.1]


@pytest.fixture(scope="module")
def thousand(tmp_path_factory):
    """1,000 random pairs scored by sclite: (folder, refs, hyps by id)."""
    folder = tmp_path_factory.mktemp("sclite")
    refs, hyps = {}, {}
    for number, (ref, hyp) in enumerate(random_pairs(1000, seed=5)):
        id = f"s{number % 5}-{number:04d}"
        refs[id], hyps[id] = " ".join(ref), " ".join(hyp)
    write_trn(refs, folder / "ref.trn")
    write_trn(hyps, folder / "hyp.trn")
    run_sclite(folder, "-r", "ref.trn", "trn", "-h", "hyp.trn", "trn", "-i", "spu_id", "-s")
    return folder, refs, hyps


def test_a_thousand_pairs_split_as_sclite_splits_them(thousand):
    folder, refs, hyps = thousand
    result = score(refs, hyps, weights="sclite")
    counts_by_id = {
        u.id: (u.correct, u.substitutions, u.deletions, u.insertions) for u in result.utterances
    }
    assert counts_by_id == dict(map(id_and_counts, utterances_of(folder / "hyp.trn.pra")))
    kaldi = score(refs, hyps)
    assert kaldi.errors < result.errors  # what sclite pays for words that are right
    splits = [
        align_all([u.ref], [u.hyp], weights)[1].tolist()
        for u in result.utterances
        for weights in ("kaldi", "sclite")
    ]
    assert splits[::2] != splits[1::2]


def id_and_counts(row):
    return row[0], tuple(row[1:])


def test_the_table_of_speakers_is_sclites(thousand):
    folder, refs, hyps = thousand
    speakers = {id: id.partition("-")[0] for id in refs}
    lines = list(speaker_lines(score(refs, hyps, speakers=speakers, weights="sclite")))
    rows = {name: [float(x) for x in cells] for name, *cells in map(str.split, lines[1:])}
    percent, raw = table_of(folder / "hyp.trn.sys"), table_of(folder / "hyp.trn.raw")
    for name in (*set(speakers.values()), "Sum/Avg"):
        assert rows[name][7:] == percent[name][2:], name
        counts = raw[name.removesuffix("/Avg")]
        assert rows[name][:2] == counts[:2]
        assert rows[name][2:7] == counts[2:7]
    for name in ("Mean", "S.D.", "Median"):
        assert rows[name] == pytest.approx(percent[name][2:], abs=0.1), name


def test_words_of_a_ctm_fall_into_the_segments_that_sclite_gives_them(tmp_path):
    rng = random.Random(3)
    stm, ctm = [], []
    for recording in ("r1", "r2", "r3"):
        for channel in "AB":
            at = rng.random()
            for _ in range(12):
                end = at + rng.uniform(0.5, 3)
                words = " ".join(rng.choices("abc", k=rng.randint(0, 6)))
                label = rng.choice(["", "<o,f0,male> "])
                who = f"{recording} {channel} s{rng.randint(1, 3)}"
                stm.append(f"{who} {at:.2f}1 {end:.2f}1 {label}{words}")
                at = end + rng.choice([0, 0, 0.4])
            begin = 0.0
            while begin < at + 2:
                length = rng.uniform(0.05, 0.5)
                ctm.append(
                    f"{recording} {channel} {begin:.2f} {length:.2f} {rng.choice('abc')} 0.5"
                )
                begin += length + rng.choice([0, 0.1])
    stm[5] = "r1 A s1 " + " ".join(stm[5].split()[3:5]) + " IGNORE_TIME_SEGMENT_IN_SCORING"
    (tmp_path / "x.stm").write_text(";; a comment\n" + "\n".join(stm) + "\n")
    (tmp_path / "x.ctm").write_text("\n".join(ctm) + "\n")
    run_sclite(tmp_path, "-r", "x.stm", "stm", "-h", "x.ctm", "ctm", "-s")
    sides = InputReader().read(tmp_path / "x.stm", tmp_path / "x.ctm")
    result = score(sides.refs, sides.hyps, speakers=sides.speakers, weights="sclite")
    by_speaker = {}
    for u in result.utterances:
        counts = (u.correct, u.substitutions, u.deletions, u.insertions)
        by_speaker.setdefault(u.speaker, []).append(counts)
    expected = {}
    for id, *counts in utterances_of(tmp_path / "x.ctm.pra"):
        expected.setdefault(id.rpartition("-")[0], []).append(tuple(counts))
    assert by_speaker == expected
    assert len(sides.refs) == 71


def test_the_command_gives_sclites_sums(thousand):
    folder, _, _ = thousand
    arguments = ["--ref", folder / "ref.trn", "--hyp", folder / "hyp.trn", "--speakers", "id"]
    method = ["--weights", "sclite", "--normalise", "case", "--per-speaker"]
    result = CliRunner().invoke(cli.main, ["score", *map(str, arguments), *method])
    assert result.exit_code == 0, result.output
    _, words, _, substitutions, deletions, insertions, errors, wrong = table_of(
        folder / "hyp.trn.raw"
    )["Sum"]
    numbers = f"[ {errors:.0f} / {words:.0f}, {insertions:.0f} ins, {deletions:.0f} del, "
    assert f"{numbers}{substitutions:.0f} sub ]" in result.stdout
    assert f"[ {wrong:.0f} / 1000 ]" in result.stdout
    assert "Normaliser: case-1; alignment weights: sclite" in result.stdout
    assert "Sum/Avg" in result.stdout
