from toolkit.score.report import inline, report_lines, write_report
from toolkit.score.wer import score

RESULT = score(
    {"u1": "the cat sat", "u2": "cat said a word", "u3": "yes"},
    {"u1": "the hat sat down", "u2": "hat said word", "u9": "no"},
)


def section(title):
    lines = list(report_lines(RESULT))
    start = next(n for n, line in enumerate(lines) if line.startswith(title))
    return [line.split() for line in lines[start + 1 : [*lines, ""].index("", start)]]


def test_alignments_are_inline():
    assert inline(RESULT.utterances[0]) == "the (cat->hat) sat (->down)"
    assert inline(score({"u": "a b c d"}, {"u": "x d"}).utterances[0]) == "(a b c->x) d"
    assert inline(score({"u": "a b"}, {"u": "a  c"}, "char").utterances[0], "char") == "a␣(b->c)"


def test_each_utterance_has_a_line_and_missing_ones_say_so():
    lines = list(report_lines(RESULT))
    assert "u1 2/3: the (cat->hat) sat (->down)" in lines
    assert "u3 (no hypothesis) 1/1: (yes->)" in lines
    assert lines[:3] == RESULT.summary().splitlines()
    assert any(line.startswith("Note: 1 hypotheses have no reference") for line in lines)


def test_tables_count_every_error():
    assert section("SUBSTITUTIONS") == [["2", "cat", "->", "hat"]]
    assert section("DELETIONS") == [["1", "a"], ["1", "yes"]]
    assert section("INSERTIONS") == [["1", "down"]]


def test_table_of_words_puts_the_worst_first():
    rows = section("EACH WORD")[1:]
    assert rows[:2] == [
        ["2", "0", "2", "0", "0", "0", "cat"],
        ["2", "0", "0", "0", "2", "0", "hat"],
    ]
    assert rows[-1] == ["0", "1", "0", "0", "0", "0", "word"]
    assert sum(int(row[2]) for row in rows) == RESULT.substitutions
    assert sum(int(row[3]) for row in rows) == RESULT.deletions
    assert sum(int(row[5]) for row in rows) == RESULT.insertions


def test_file_holds_the_lines(tmp_path):
    write_report(RESULT, tmp_path / "errors.txt")
    content = (tmp_path / "errors.txt").read_text(encoding="utf-8")
    assert content.splitlines() == list(report_lines(RESULT))
