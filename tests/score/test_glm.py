from dataclasses import replace

import pytest
from click.testing import CliRunner

from toolkit import cli
from toolkit.errors import ToolkitError
from toolkit.score.inputs import InputReader
from toolkit.score.nist.glm import Glm, Rule

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


def test_rules_apply_in_their_contexts(glm):
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
        ("(you know it) ( no yes )", "(YOU) (KNOW) (IT) (NO) (YES)"),
    ],
)
def test_texts_are_filtered_as_by_csrfilt(glm, text, expected):
    assert glm()(text) == expected


def test_many_words_in_parentheses_take_linear_time(glm):
    assert glm()(f"({'a ' * 50_000})") == " ".join(["(A)"] * 50_000)


def test_many_spaces_that_a_rule_writes_take_linear_time(glm):
    rules = f'* name = "x"\n[A] => [B{" " * 200_000}C]\n'
    assert glm(rules)("x a (%uh) y") == "X B C (%UH) Y"


def test_rules_are_sorted_once(glm):
    class Rules(tuple):
        passes = 0

        def __iter__(self):
            Rules.passes += 1
            return super().__iter__()

    read = glm(';;\n* CASE_SENSITIVE = "F"\n[a] => [b]\n')
    sorted_once = replace(read, rules=Rules(read.rules))
    assert sorted_once.apply("A") == "b"
    assert sorted_once.apply("ca") == "cb"
    assert Rules.passes == 1


def test_errors_name_the_place_and_the_text_as_read(glm, tmp_path):
    for name, text in {
        "r.trn": "ok (a-1)\nbad (b (a-2)\n",
        "r.stm": "r 1 ann 0 1 bad (b\n",
        "s.stm": "r 1 ann 0 1 b\n",
        "h.ctm": "r 1 0.5 0.1 bad(b\n",
    }.items():
        (tmp_path / name).write_text(text)
    glm()
    reader = InputReader(glm=tmp_path / "x.glm")
    for ref, message in {
        "r.trn": "r.trn: a-2: 'bad (b': its paren",
        "r.stm": "r.stm: r at 0 s: 'bad (b': its paren",
        "s.stm": "h.ctm: r 1 at 0.5 s: 'bad(b': its paren",
    }.items():
        with pytest.raises(ToolkitError) as caught:
            reader.read(tmp_path / ref, tmp_path / "h.ctm")
        assert message in str(caught.value)


def test_the_settings_of_a_glm_are_applied(glm):
    assert glm(';;\n* CASE_SENSITIVE = "F"\n[a] => [b]\n').apply("A") == "b"
    assert glm(';;\n* COPY_NO_HIT = "F"\n[a] => [b]\n').apply("cac") == "b"
    assert glm(";;\n[a] => [b]\n").apply("A") == "A"


@pytest.mark.parametrize(
    ("rules", "text", "message"),
    [
        (";;\nA B\n", "", "x.glm:2: the rule 'A B' contains no `=>`"),
        ("cat => feline\n", "", "x.glm:1: .* put a line with `;;` above this line"),
        ("[A] => [B]\n[C] => [D]\n", "", "x.glm:1: .* put a line with `;;` above this line"),
        ("r1 A 0.1 0.2 word\n", "", "x.glm:1: .* put a line with `;;` above this line"),
        (";;\n* NAME\n", "", "x.glm:2: the setting has no value"),
        ("", "", "there is no rule"),
        (RULES, "(a", "do not match"),
        (RULES, "((a))", "or are nested"),
    ],
)
def test_faulty_rules_are_refused(glm, rules, text, message):
    with pytest.raises(ToolkitError, match=message):
        glm(rules)(text)


def test_a_rule_may_be_commented_out_in_the_first_line(glm):
    assert glm(";; [A] => [B]\n[C] => [D]\n").rules == (Rule("C", "D"),)


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
    assert "removes the hyphens and" in bad.output
    (tmp_path / "x.stm").write_text("R1 A s 0 2 { i\n")
    bad = CliRunner().invoke(cli.main, ["score", *names])
    assert bad.exit_code == 1
    message = bad.stderr
    assert f"{tmp_path}/x.stm, {tmp_path}/x.ctm: R1-A_0000000-0002000: '{{ i': a {{ has" in message
