"""Pages and tables."""

import re
from html.parser import HTMLParser

import pytest

from toolkit.report.pages import Cell, Column, Page, Section, Table, TableRow, csv_text, legend

VOID = {"meta", "br", "img", "link", "input"}


class Balance(HTMLParser):
    """Fails on an end tag without its start, and collects what a page would fetch."""

    def __init__(self, text):
        super().__init__()
        self.open, self.fetched, self.headings = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attributes:
            if name in ("src", "href", "xlink:href") and not value.startswith(("#", "data:")):
                self.fetched.append(value)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(data)


def table(**options):
    rows = [
        TableRow([Cell("a & b"), Cell("x"), Cell("12.3", "100 %", best=True)], 0),
        TableRow([Cell(""), Cell("y"), Cell("NA")]),
    ]
    columns = [Column("platform"), Column("rule", text=True), Column("10 %", "CER at most")]
    return Table("Times", columns, rows, "A note.", **options)


def test_a_page_is_whole_and_needs_nothing_else():
    page = Page("Title <1>", "Lead.", footer="End.")
    page.add(Section("times", "Times", "Why.", [table().html()]))
    page.add(Section("empty", "Nothing", parts=["", ""]))
    text = page.html()
    parsed = Balance(text)
    assert parsed.headings == ["Title <1>", "Times"]
    assert parsed.fetched == []
    assert "url(" not in text
    assert "@import" not in text
    assert 'href="#times"' in text


def test_tables_mark_the_best_the_published_and_continued_rows():
    text = table(published=True, remarks=["a slip"]).html()
    assert "a &amp; b" in text
    assert '<td class="best">12.3<small>100 %</small></td>' in text
    assert "<td>NA<small></small></td>" in text  # numbers stay below one another
    assert '<tr class="more"><th></th>' in text
    assert ">published<" in text
    assert "<li>a slip</li>" in text
    assert '<th colspan="1" class="group">CER at most</th>' in text


def test_a_table_is_printed_to_the_terminal(capsys):
    table().print()
    output = capsys.readouterr().out
    for text in ("Times", "a & b", "12.3 (100 %)", "CER 10 %", "A note."):
        assert text in output


def without_colours(output):
    """Remove escape sequences of colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", output)


@pytest.mark.parametrize("columns", [80, 60, 30])
def test_narrow_terminals_wrap_text_and_cut_no_number(monkeypatch, capsys, columns):
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal
    monkeypatch.setenv("COLUMNS", str(columns))
    numbers = [Column(f"long heading {n}", "relative to") for n in range(5)]
    cells = [Cell(f"{n}2345.678", f"{n} %") for n in range(5)]
    head = [Column("what"), *numbers, Column("why", text=True)]
    row = TableRow([Cell("words that go on and on"), *cells, Cell("since it is so " * 4)])
    Table("Times", head, [row]).print()
    output = without_colours(capsys.readouterr().out)
    assert all(f"{cell.text} ({cell.detail})" in output for cell in cells)
    assert "…" not in output
    assert output.count("since") == 4
    if columns == 80:
        Table("Times", [*head[:4], head[-1]], [TableRow([*row.cells[:4], row.cells[-1]])]).print()
        assert all(
            len(line) <= 80 for line in without_colours(capsys.readouterr().out).splitlines()
        )


def test_a_single_line_needs_no_key():
    assert legend([("a", 0, False)]) == ""
    assert legend([("a", 0, False), ("b", 1, True)]).count("<li>") == 2


def test_csv_text_quotes_and_leaves_unknown_fields_empty():
    assert csv_text([{"a": 'x, "y"', "b": None}, {"a": 1, "b": 2.5}]) == (
        'a,b\n"x, ""y""",\n1,2.5\n'
    )
    assert csv_text([]) == ""
