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
    (spaced,) = score({"u": "a b"}, {"u": "a  c"}, "char-with-spaces").utterances
    assert inline(spaced, "char-with-spaces") == "a␣(b->c)"


def test_each_utterance_has_a_line_and_missing_ones_say_so():
    lines = list(report_lines(RESULT))
    assert "u1 2/3: the (cat->hat) sat (->down)" in lines
    assert "u3 (no hypothesis) 1/1: (yes->)" in lines
    assert lines[:3] == RESULT.summary(interval=True).splitlines()
    assert any(line.startswith("Note: 1 hypothesis has no reference") for line in lines)


def test_tables_count_every_error():
    assert section("SUBSTITUTIONS") == [["2", "cat", "->", "hat"]]
    assert section("DELETIONS") == [["1", "a"], ["1", "yes"]]
    assert section("INSERTIONS") == [["1", "down"]]


def test_every_speaker_has_a_row_the_worst_first():
    refs = {"u1": "the cat sat", "u2": "cat said a word", "u3": "yes"}
    hyps = {"u1": "the hat sat down", "u2": "cat said word"}
    result = score(refs, hyps, "word", {"u1": "bob", "u2": "ann", "u3": "bob"})
    lines = list(report_lines(result))
    start = lines.index("EACH SPEAKER")
    assert [line.split() for line in lines[start + 2 : lines.index("", start)]] == [
        ["75.0", "3", "4", "1", "1", "1", "2/2", "bob"],
        ["25.0", "1", "4", "0", "1", "0", "1/1", "ann"],
    ]
    assert "Note: the interval is that of 10000 bootstrap resamples of 3 utterances" in lines
    assert not any("EACH SPEAKER" in line for line in report_lines(RESULT))


def test_tables_come_before_the_alignments():
    titles = [line.split()[0] for line in report_lines(RESULT) if line[:4].isalpha()]
    titles = [title for title in titles if title.isupper()]
    assert titles == ["SUBSTITUTIONS", "DELETIONS", "INSERTIONS", "EACH", "ALIGNMENTS"]


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
