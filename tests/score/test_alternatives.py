import re

import pytest

from toolkit.errors import ToolkitError
from toolkit.score.nist.grammar import Choice, Grammar, mapped, parse
from toolkit.score.normalise import ScoringFilter


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("a b/c @", ["a", "b/c", "@"]),
        ("{ a / b c / @ } d", [Choice((["a"], ["b", "c"], ["@"])), "d"]),
        ("{a/b c}d", [Choice((["a"], ["b", "c"])), "d"]),
        ("x { a / { b / c } d }", ["x", Choice((["a"], [Choice((["b"], ["c"])), "d"]))]),
        ("{ a / / b / }", [Choice((["a"], ["b"]))]),
        ("a* * b;t1;t2 ;", ["a", "*", "b", ";"]),
        ("a\u00a0b\u3000c", ["a\u00a0b\u3000c"]),
    ],
)
def test_transcripts_are_parsed_as_in_sclite(text, expected):
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{ a / b", "has no matching }"),
        ("a } b", "has no counterpart"),
        ("a{ b }", "inside the word 'a{'"),
        ("{ a{ b } }", "inside the word 'a'"),
        ("x { }", "braces contain no word"),
        ("{ / }", "braces contain no word"),
        ("{ a } }", "has no counterpart"),
        ("{ " * 20000 + "a" + " }" * 20000, "more than 50 deep"),
    ],
)
def test_braces_that_do_not_match_are_errors(text, message):
    with pytest.raises(ToolkitError, match=message):
        parse(text)


def test_normalisation_keeps_the_marks():
    items = parse("A! B { C, / ?? / (D) { E / @ } } (UH-HUH) @")
    lower = mapped(items, lambda text: re.sub("[,!?]", "", text.lower()), Grammar(optional=True))
    inner = Choice((["c"], ["@"], ["(d)", Choice((["e"], ["@"]))]))
    assert lower == ["a", "b", inner, "(uh-huh)", "@"]


def test_marks_depend_on_the_grammar():
    assert Grammar().marks("a @ b")
    assert not Grammar().marks("(a) b-")
    assert Grammar(optional=True).marks("(a)")
    assert Grammar(fragments=True).marks("b-")


@pytest.mark.parametrize(
    ("drop", "rules", "expected"),
    [
        ("(uh)", "", ["so", "(um)", "yes"]),
        ("uh", "", ["so", "(um)", "yes"]),
        ("", "(uh) => er", ["so", "er", "(um)", "yes"]),
        ("", "uh => er hm", ["so", "(er)", "(hm)", "(um)", "yes"]),
        ("", "(uh) => (er)", ["so", "(er)", "(um)", "yes"]),
    ],
)
def test_rules_may_name_optional_words_in_parentheses(tmp_path, drop, rules, expected):
    (tmp_path / "rules").write_text(rules)
    normalise = ScoringFilter("case", [drop] if drop else [], tmp_path / "rules")
    assert mapped(parse("SO (Uh) (um) yes"), normalise, Grammar(optional=True)) == expected
