import math

import pytest

from toolkit.errors import ToolkitError
from toolkit.score.nist.formats import filtered, read_scored_ctm, timed_words
from toolkit.score.nist.glm import Glm
from toolkit.score.transcripts import read_transcripts


@pytest.fixture
def read(tmp_path):
    def read(text):
        (tmp_path / "x.ctm").write_text(text)
        return read_scored_ctm(tmp_path / "x.ctm")

    return read


def test_lines_of_sclites_ctm_format_are_read(read):
    entries = read(
        ";; comment\n\n"
        "r A 1.5 0.2 one NA\n"
        "r A 2 -0.5 two 0.25 lex spk\n"
        "r A * * three\n"
        "r A &&3 0.5 four 1 C\n"
    )
    assert [(e.start, e.duration, e.token, e.confidence) for e in entries[:2]] == [
        (1.5, 0.2, "one", None),
        (2.0, -0.5, "two", 0.25),
    ]
    assert math.isnan(entries[2].start)
    assert math.isnan(entries[2].duration)
    assert (entries[3].start, entries[3].confidence) == (3.0, 1.0)
    assert [(w.start, w.middle) for w in timed_words(entries)] == [
        (1.5, 1.6),
        (2.0, 1.75),
        (2.0, 2.0),  # the place of the word before
        (3.0, 3.25),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("r A 1 2\n", r"x.ctm:1: the line has 4 fields"),
        ("r A one 2 a\n", "start 'one' is neither"),
        ("r A 1 inf a\n", "duration 'inf' is neither"),
        ("r A -1 2 a\n", "start -1 must not be negative"),
        ("r A 1 2 <ALT_END>\n", "does not match"),
        ("r A 1 2 <ALT>\n", "does not match"),
        ("r A 1 2 <ALT_BEGIN>\nr A 1 2 <ALT_BEGIN>\n", "does not match"),
        ("r A 1 2 <ALT_BEGIN>\nr A 1 2 a\n", "without an <ALT_END>"),
        ("r A 1 2 <ALT_BEGIN>\nr A 1 2 <ALT_END>\n", "alternatives without a word"),
        ("r A 1 2 <ALT_BEGIN>\nr A 1 2 1/2\nr A 1 2 <ALT_END>\n", "'1/2' of an alternative"),
    ],
)
def test_faults_name_their_place(read, text, message):
    with pytest.raises(ToolkitError, match=message):
        timed_words(read(text))


def test_alternatives_of_an_utterance_are_in_braces(tmp_path):
    (tmp_path / "x.ctm").write_text(
        "u 1 2 1 z\nu 1 0 1 a\nu 1 * * <ALT_BEGIN>\nu 1 1 1 b\nu 1 * * <alt>\nu 1 * * <ALT_END>\n"
    )
    transcripts = read_transcripts(tmp_path / "x.ctm")
    assert transcripts.texts == {"u": "a { b / @ } z"}
    assert transcripts.marked
    with pytest.raises(ToolkitError, match="'u' has alternatives"):
        transcripts.plain_texts()


def test_rules_split_words_in_time(read, tmp_path):
    (tmp_path / "x.glm").write_text(
        ";; x\n[A] => [{ B C / @ }] / [ ] __ [ ]\n[D] => [E F] / [ ] __ [ ]\n"
        "[UH] => [] / [ ] __ [ ]\n"
    )
    glm = Glm.read(tmp_path / "x.glm", "ctm", "hyp")
    split_entries = filtered(
        read("r 1 1 1 a 0.5\nr 1 2 1 uh\nr 1 3 1 d\nr 1 * * <ALT_BEGIN>\n"), glm
    )
    alternatives = ["<ALT_BEGIN>", "B", "C", "<ALT>", "@", "<ALT_END>"]
    assert [e.token for e in split_entries] == [*alternatives, "E", "F", "<ALT_BEGIN>"]
    assert [e.start for e in split_entries if e.token in "BCEF"] == [1.0, 1.5, 3.0, 3.5]


def test_rules_with_alternatives_add_to_those_around_a_word(read, tmp_path):
    (tmp_path / "x.glm").write_text(";;\n[CAN'T] => [{ CAN'T / CAN NOT }] / [ ] __ [ ]\n")
    lines = ["<ALT_BEGIN>", "can't", "<ALT>", "can", "<ALT_END>", "can't"]
    entries = read("".join(f"r 1 {n} 1 {word}\n" for n, word in enumerate(lines)))
    words = timed_words(filtered(entries, Glm.read(tmp_path / "x.glm", "ctm", "hyp")))
    assert [word.text for word in words] == ["{ CAN'T / CAN NOT / CAN }", "{ CAN'T / CAN NOT }"]


def test_texts_for_other_uses_have_neither_tags_nor_asterisks(tmp_path):
    path = tmp_path / "x.trn"
    path.write_text("cat;noun sat* (a-1)\n")
    assert read_transcripts(path).plain_texts() == {"a-1": "cat sat"}
    path.write_text("{a / b} (a-1)\n")
    with pytest.raises(ToolkitError, match="has alternatives"):
        read_transcripts(path).plain_texts()


@pytest.mark.parametrize("time", ["1_0", "nan", "１"])
def test_times_are_numbers_as_other_programs_read_them(read, time):
    with pytest.raises(ToolkitError, match=r"x\.ctm:1: start .* is neither a number"):
        read(f"r A {time} 0.2 one\n")
    assert read(f"r A 1 0.2 one {time}\n")[0].confidence is None
