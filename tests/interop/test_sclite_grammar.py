"""Counts per utterance equal sclite on generated transcripts in NIST's grammar.

INTEROP_EXAMPLES raises the number of runs, each of up to 40 transcripts.
"""

import os
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.interop.sclite import counts_of, sclite_command
from toolkit.score.inputs import InputReader
from toolkit.score.nist.formats import write_trn
from toolkit.score.nist.grammar import Grammar, nist_aligner
from toolkit.score.nist.sclite_reports import pra_lines, raw_lines, sgml_lines
from toolkit.score.normalise import ScoringFilter
from toolkit.score.wer import score

pytestmark = pytest.mark.skipif(
    sclite_command() is None, reason="sclite is not installed (Debian: sctk)"
)
MANY = settings(
    max_examples=int(os.environ.get("INTEROP_EXAMPLES", "25")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
WORDS = ["a", "b", "c", "d", "ab", "A", "a-", "-b", "(a)", "(b)", "(a-)", "(-b)", "@", "a*", "b;t"]


def texts(depth):
    words = st.sampled_from(WORDS)
    if not depth:
        return st.lists(words, min_size=1, max_size=2).map(" ".join)
    parts = st.lists(texts(depth - 1), min_size=1, max_size=3)
    choices = parts.map(lambda alternatives: f"{{ {' / '.join(alternatives)} }}")
    return st.lists(words | words | choices, max_size=5, min_size=depth < 2).map(" ".join)


PAIRS = st.lists(
    st.tuples(texts(2), st.one_of(texts(0), texts(1), st.just(""))), min_size=20, max_size=40
)


@MANY
@given(PAIRS, st.booleans(), st.booleans(), st.booleans())
def test_the_counts_of_transcripts_equal_sclite(
    tmp_path_factory, pairs, fragments, optional, cased
):
    folder = tmp_path_factory.mktemp("trn")
    for number, name in enumerate(("ref", "hyp")):
        lines = (f"{pair[number]} (S-{n})\n" for n, pair in enumerate([*pairs, ("a", "a")]))
        (folder / f"{name}.trn").write_text("".join(lines))
    flags = ["-F"] * fragments + ["-D"] * optional + ["-s"] * cased
    command = [*sclite_command(), "-r", "ref.trn", "trn", "-h", "hyp.trn", "trn", "-i", "spu_id"]
    command += [*flags, "-o", "pralign", "-f", "0"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    sides = InputReader("trn").read(folder / "ref.trn", folder / "hyp.trn")
    result = score(
        sides.refs,
        sides.hyps,
        weights="sclite",
        normalise=ScoringFilter("none" if cased else "case"),
        aligner=nist_aligner(Grammar(fragments, optional)),
    )
    counts = {
        u.id.lower(): (u.correct, u.substitutions, u.deletions, u.insertions)
        for u in result.utterances
    }
    expected = counts_of(folder / "hyp.trn.pra")
    assert counts == {id.lower(): row for id, row in expected.items()}


@st.composite
def recordings(draw):
    """Lines of an STM and of a CTM with alternatives, unknown confidences and further fields."""
    stm, ctm = [], []
    for recording in ("R1", "r2"):
        for channel in "AB":
            at = 0
            for _ in range(draw(st.integers(1, 4))):
                end = at + draw(st.integers(1, 4))
                text = draw(texts(1))
                stm.append(f"{recording} {channel} s{draw(st.integers(1, 2))} {at} {end} {text}")
                at = end
            for n in range(draw(st.integers(1, 4 * at))):
                start, word = f"{n / 4 + 0.01:.2f}", draw(st.sampled_from(["a", "b", "ab", "c-"]))
                confidence = draw(st.sampled_from(["", " NA", " 0.5", " 0.25 1", " NA lex x y"]))
                length = draw(st.sampled_from(["0.2", "0.1", "-0.1"]))
                name = recording.lower() if draw(st.booleans()) else recording
                line = f"{name} {channel} {start} {length} "
                if draw(st.integers(0, 4)) == 0:
                    alternative = draw(st.sampled_from(["@", "b", "c"]))
                    marks = f"{name} {channel} * * "
                    ctm += [f"{marks}<ALT_BEGIN>", f"{line}{word}", f"{marks}<ALT>"]
                    ctm += [f"{line}{alternative}", f"{marks}<ALT_END>"]
                else:
                    ctm.append(f"{line}{word}{confidence}")
    return stm, ctm


@MANY
@given(recordings())
def test_words_and_alternatives_of_a_ctm_are_scored_as_by_sclite(tmp_path_factory, lines):
    folder = tmp_path_factory.mktemp("ctm")
    for name, content in zip(("x.stm", "x.ctm"), lines, strict=True):
        (folder / name).write_text("".join(f"{line}\n" for line in content))
    command = [*sclite_command(), "-r", "x.stm", "stm", "-h", "x.ctm", "ctm", "-F", "-D"]
    subprocess.run(
        [*command, "-o", "pralign", "-f", "0"], cwd=folder, check=True, capture_output=True
    )
    (folder / "mixed.stm").write_text("".join(f"{line}\n" for line in reversed(lines[0])))
    by_file = []
    for stm in ("x.stm", "mixed.stm"):  # ours may be in any order
        sides = InputReader().read(folder / stm, folder / "x.ctm")
        result = score(
            sides.refs,
            sides.hyps,
            speakers=sides.speakers,
            weights="sclite",
            normalise=ScoringFilter("case"),
            aligner=nist_aligner(Grammar(fragments=True, optional=True)),
        )
        counts = {}
        for u in result.utterances:
            row = (u.correct, u.substitutions, u.deletions, u.insertions)
            counts.setdefault(u.speaker, []).append(row)
        by_file.append(counts)
    expected = {}
    for id, row in counts_of(folder / "x.ctm.pra").items():
        expected.setdefault(id.rpartition("-")[0], []).append(row)
    assert by_file[0] == expected
    assert by_file[0] == by_file[1]


def test_sclite_reads_the_reports_as_its_own(tmp_path):
    refs = {f"s{n % 3}-{n}": f"a b c{n % 5} d:e" for n in range(12)}
    hyps = {
        id: text.replace("c1", "x y").replace("b", "", n % 2)
        for n, (id, text) in enumerate(refs.items())
    }
    result = score(refs, hyps, speakers={id: id[:2] for id in refs}, weights="sclite")
    (tmp_path / "ours.sgml").write_text("".join(f"{line}\n" for line in sgml_lines(result, "hyp")))
    command = [*sclite_command(), "-P", "-o", "pralign", "rsum", "-f", "0", "-n", "back", "-O", "."]
    with open(tmp_path / "ours.sgml") as sgml:
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, stdin=sgml)
    sclite_lines = (tmp_path / "back.pra").read_text().split("\n")
    assert [line for line in sclite_lines if line.strip()] == [
        line for line in pra_lines(result, "hyp") if line.strip()
    ]
    sclite_rows = [
        line.replace("|", " ").split() for line in (tmp_path / "back.raw").read_text().split("\n")
    ]
    rows = [line.replace("|", " ").split() for line in raw_lines(result, "hyp")]
    assert [row for row in rows if len(row) == 9] == [row for row in sclite_rows if len(row) == 9]


def test_a_folder_of_scores_can_be_scored_by_sclite(tmp_path):
    """The chosen alternatives, written as trn, have the same counts."""
    result = score(
        {"s-1": "{ a / b } c", "s-2": "d"},
        {"s-1": "b", "s-2": "d"},
        aligner=nist_aligner(Grammar()),
    )
    write_trn({u.id: u.ref_text for u in result.utterances}, tmp_path / "ref.trn")
    write_trn({u.id: u.hyp_text for u in result.utterances}, tmp_path / "hyp.trn")
    command = [*sclite_command(), "-r", "ref.trn", "trn", "-h", "hyp.trn", "trn", "-i", "spu_id"]
    subprocess.run([*command, "-o", "pralign", "-f", "0"], cwd=tmp_path, check=True)
    assert counts_of(tmp_path / "hyp.trn.pra") == {"s-1": (1, 0, 1, 0), "s-2": (1, 0, 0, 0)}
