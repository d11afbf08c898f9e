"""Filtering equals NIST's csrfilt.sh on generated rules and texts; scoring equals hubscr.pl."""

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.interop.sclite import counts_of, nist_script
from toolkit import cli
from toolkit.score.nist.glm import Glm

CSRFILT, HUBSCR = nist_script("csrfilt.sh"), nist_script("hubscr.pl")
pytestmark = pytest.mark.skipif(
    CSRFILT is None or HUBSCR is None, reason="csrfilt.sh is not installed (Debian: sctk)"
)
MANY = settings(
    max_examples=int(os.environ.get("INTEROP_EXAMPLES", "25")) // 2 + 1,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
SOURCES = st.lists(
    st.sampled_from(["A", "B", "CAN'T", "C", "UH", "A-B", "x"]), min_size=1, max_size=2
)
TARGETS = ["", "(%HES)", "{ A / B C }", "B C", "(X Y)", "@", "c-d", "{ (UH) / @ }"]
CONTEXTS = ["[ ] __ [ ]", "[ ] __ ", "[A ] __ [ ]", "[] __ [ B]", "[ ] __ [ ] ;; why"]
RULES = st.builds(
    lambda source, target, context: f"[{' '.join(source)}] => [{target}] / {context}",
    SOURCES,
    st.sampled_from(TARGETS),
    st.sampled_from(CONTEXTS),
)
WORDS = [
    "a",
    "B",
    "can't",
    "c",
    "uh",
    "a-b",
    "(uh)",
    "(a b)",
    "x-",
    "-y",
    "a-b-c",
    "{ a / b }",
    "@",
    "é",
]
TEXTS = st.lists(
    st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join), min_size=20, max_size=20
)


def nist(command, folder, **options):
    tools = {**os.environ, "PATH": f"{Path(CSRFILT).parent}:{os.environ['PATH']}"}
    return subprocess.run(
        command, cwd=folder, env=tools, check=True, capture_output=True, text=True, **options
    )


@MANY
@given(st.lists(RULES, min_size=1, max_size=8), TEXTS, st.booleans())
def test_texts_are_filtered_as_by_csrfilt(tmp_path_factory, rules, texts, cased):
    folder = tmp_path_factory.mktemp("glm")
    head = [";; comment", '* NAME = "x"', f'* CASE_SENSITIVE = "{"T" if cased else "F"}"']
    (folder / "x.glm").write_text("\n".join([*head, *rules]) + "\n")
    lines = "".join(f"{text} (s-{n})\n" for n, text in enumerate(texts))
    result = nist([CSRFILT, "-i", "trn", "-t", "hyp", "-dh", "x.glm"], folder, input=lines)
    glm = Glm.read(folder / "x.glm", "trn", "hyp")
    expected = [" ".join(line.rpartition("(")[0].split()) for line in result.stdout.splitlines()]
    assert [glm(text) for text in texts] == expected


def test_the_flow_of_hubscr(tmp_path):
    (tmp_path / "x.glm").write_text(
        ";; comment\n"
        "[CAN'T] => [{ CAN'T / CAN NOT }] / [ ] __ [ ]\n"
        "[GONNA] => [GOING TO] / [ ] __ [ ]\n"
        ';; INPUT_DEPENDENT_APPLICATION = "hyp"\n'
        "[UH] => [(%HESITATION)] / [ ] __ [ ]\n"
    )
    (tmp_path / "x.stm").write_text(
        ';; CATEGORY "0" "" ""\n;; LABEL "o" "Overall" "all"\n'
        ';; CATEGORY "1" "" ""\n;; LABEL "f0" "Base" "planned"\n'
        "r1 A sp1 0.0 2.0 <o,f0> hello { can't / can not } (%hesitation) wo- you\n"
        "r1 A sp2 2.0 4.0 <o,f0> the well-known a-b gonna go\n"
        "r1 A sp1 4.0 5.0 <o,f0> IGNORE_TIME_SEGMENT_IN_SCORING\n"
        "r2 B sp2 0 2 <o,f0> I can't (um) say @ this\n"
    )
    words = "hello can't word you", "the well known a c going to", "i can not uh say"
    ctm = []
    for text, (name, start) in zip(words, (("r1 A", 0), ("r1 A", 2), ("r2 B", 0)), strict=True):
        for n, word in enumerate(text.split()):
            ctm.append(f"{name} {start + 0.2 + n * 0.25:.2f} 0.2 {word} 0.9\n")
    (tmp_path / "x.ctm").write_text("".join(reversed(ctm)))
    nist(
        [HUBSCR, "-V", "-g", "x.glm", "-l", "english", "-h", "hub4", "-r", "x.stm", "x.ctm"],
        tmp_path,
    )
    sclite_counts = [
        sum(column) for column in zip(*counts_of(tmp_path / "x.ctm.filt.pra").values(), strict=True)
    ]
    names = [f"--ref={tmp_path}/x.stm", f"--hyp={tmp_path}/x.ctm", f"--glm={tmp_path}/x.glm"]
    result = CliRunner().invoke(cli.main, ["score", *names])
    correct, substituted, deleted, inserted = sclite_counts
    errors, ref_words = substituted + deleted + inserted, correct + substituted + deleted
    rate = f"[ {errors} / {ref_words}, {inserted} ins, "
    assert f"{rate}{deleted} del, {substituted} sub ]" in result.stdout
    assert substituted + deleted > 0
