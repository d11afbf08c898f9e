import pytest
from click.testing import CliRunner

from toolkit import cli
from toolkit.errors import ToolkitError
from toolkit.score.ctm import filtered, read_scored_ctm
from toolkit.score.glm import Glm, GlmError, Rule
from toolkit.score.inputs import InputReader

RULES = """;; comment
* name = "x"
[CAN'T] => [{ CAN'T / CAN NOT }] / [ ] __ [ ]
[ONE] => [TWO] ;; no context
"Q" => "R S" / [A ] __ [ ]
;; INPUT_DEPENDENT_APPLICATION = "stm|hyp"
[UH] => [(%HES)] / [ ] __ [ ]
"""


@pytest.fixture
def glm(tmp_path):
    def glm(text=RULES, kind="trn", side="hyp"):
        (tmp_path / "x.glm").write_text(text)
        return Glm.read(tmp_path / "x.glm", kind, side)

    return glm


def test_rules_and_their_contexts(glm):
    assert glm().rules == (
        Rule("CAN'T", "{ CAN'T / CAN NOT }", " ", " "),
        Rule("ONE", "TWO"),
        Rule("Q", "R S", "A ", " "),
        Rule("UH", "(%HES)", " ", " "),
    )
    assert len(glm(side="ref").rules) == 3
    assert len(glm(kind="stm", side="ref").rules) == 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i can't", "I { CAN'T / CAN NOT }"),
        ("bone", "BTWO"),
        ("a q q", "A R S Q"),  # the context is that of the text before
        ("uh uh", "(%HES) (%HES)"),
        ("well-known -ly re- a-b-c", "WELL KNOWN -LY RE- A B C"),
        ("(you know) é", "(YOU) (KNOW) é"),
    ],
)
def test_texts_are_filtered_as_by_csrfilt(glm, text, expected):
    assert glm()(text) == expected


def test_settings(glm):
    assert glm(';;\n* CASE_SENSITIVE = "F"\n[a] => [b]\n').apply("A") == "b"
    assert glm(';;\n* COPY_NO_HIT = "F"\n[a] => [b]\n').apply("cac") == "b"
    assert glm(";;\n[a] => [b]\n").apply("A") == "A"


@pytest.mark.parametrize(
    ("rules", "text", "message"),
    [
        (";;\nA B\n", "", "x.glm:2: no => in the rule 'A B'"),
        (";;\n* NAME\n", "", "x.glm:2: a setting without a value"),
        ("", "", "there is no rule"),
        (RULES, "(a", "do not match"),
        (RULES, "((a))", "or are nested"),
    ],
)
def test_faults(glm, rules, text, message):
    with pytest.raises(ToolkitError, match=message):
        glm(rules)(text)


def test_the_command_scores_as_hubscr_does(glm, tmp_path):
    glm(RULES.replace("stm|hyp", "hyp"))
    (tmp_path / "x.stm").write_text("R1 A s 0 2 i can't (%hes) wo- say\n")
    (tmp_path / "x.ctm").write_text(
        "r1 A 0 .1 I\nr1 A .2 .1 can\nr1 A .4 .1 NOT NA\nr1 A .6 .1 word\nr1 A .8 .1 uh\n"
    )
    names = [f"--{key}={tmp_path}/x.{end}" for key, end in (("ref", "stm"), ("hyp", "ctm"))]
    result = CliRunner().invoke(cli.main, ["score", *names, f"--glm={tmp_path}/x.glm"])
    assert result.exit_code == 0, result.output
    assert "[ 1 / 6, 0 ins, 0 del, 1 sub ]" in result.stdout
    assert "Normaliser: case-1, GLM x.glm (sha256 " in result.stdout
    assert "fragments, optional; alignment weights: sclite" in result.stdout
    bad = CliRunner().invoke(cli.main, ["score", *names, "--normalise=basic", "--optional"])
    assert bad.exit_code == 2
    assert "removes the marks" in bad.output
    (tmp_path / "x.stm").write_text("R1 A s 0 2 { i\n")
    bad = CliRunner().invoke(cli.main, ["score", *names])
    assert bad.exit_code == 1
    message = bad.stderr
    assert f"{tmp_path}/x.stm, {tmp_path}/x.ctm: R1-A_0000000-0002000: '{{ i': a {{ wit" in message


def test_a_text_that_cannot_be_filtered_is_named(tmp_path):
    (tmp_path / "x.glm").write_text(";;\n[A] => [B]\n")
    (tmp_path / "ref.trn").write_text("x y z (a-1)\n")
    (tmp_path / "hyp.trn").write_text("x ( y z (a-1)\n")
    reader = InputReader(glm=tmp_path / "x.glm")
    with pytest.raises(GlmError, match=r"hyp\.trn: a-1: .*parentheses"):
        reader.read(tmp_path / "ref.trn", tmp_path / "hyp.trn")


def test_alternatives_of_a_rule_join_those_of_a_ctm(tmp_path):
    (tmp_path / "x.glm").write_text(";;\n[CAN'T] => [{ CAN'T / CAN NOT }] / [ ] __ [ ]\n")
    (tmp_path / "hyp.ctm").write_text(
        "r 1 * * <ALT_BEGIN>\nr 1 0.1 0.2 can't\nr 1 * * <ALT>\nr 1 0.1 0.2 can\n"
        "r 1 * * <ALT_END>\n"
    )
    entries = filtered(
        read_scored_ctm(tmp_path / "hyp.ctm"), Glm.read(tmp_path / "x.glm", "ctm", "hyp")
    )
    assert [entry.token.upper() for entry in entries] == [
        *("<ALT_BEGIN>", "CAN'T", "<ALT>", "CAN", "NOT", "<ALT>", "CAN", "<ALT_END>")
    ]
