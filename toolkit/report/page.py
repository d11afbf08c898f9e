"""Self-contained HTML pages: sections, tables and figures."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from toolkit.report.chart import Chart

if TYPE_CHECKING:
    from rich.table import Table as RichTable

STYLE = Path(__file__).with_name("page.css")
WIDE, NARROW, HALF = (1040.0, 330.0), (350.0, 290.0), (500.0, 330.0)
"""Sizes of figures in pixels: page width, phone width, half of the page width."""
FEW_COLUMNS = 6
"""Tables of fewer columns are not stretched to the page width."""
_ROOMY = 10_000
"""Characters that no table needs."""


@dataclass(frozen=True)
class Cell:
    """A table cell."""

    text: str
    detail: str = ""
    """Small print after the text, such as a percentage."""
    best: bool = False


@dataclass(frozen=True)
class Column:
    """A table column."""

    title: str
    group: str = ""
    """Adjacent columns of the same group share a heading."""
    text: bool = False
    """Align left."""
    extra: bool = False
    """Leave out on a phone."""


@dataclass(frozen=True)
class Row:
    """A table row; its first cell is its heading, or is empty to continue the row before.

    Small print of the heading is for phones alone, in place of columns that they leave out.
    """

    cells: Sequence[Cell]
    colour: int | None = None
    """Index into the page's palette, for a swatch beside the heading."""


@dataclass(frozen=True)
class Table:
    """A table of a page."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    note: str = ""
    published: bool = False
    """Whether all numbers are from a paper."""
    remarks: Sequence[str] = ()
    """Listed below the note."""
    stacked: bool = False
    """Put small print below the text of its cell instead of beside it."""

    def html(self) -> str:
        """Return the table as HTML, in a box that scrolls where the screen is too narrow."""
        mark = ' <span class="published">published</span>' if self.published else ""
        note = f'<p class="note">{escape(self.note)}</p>' if self.note else ""
        body = "".join(map(self._row, self.rows))
        remarks = "".join(f"<li>{escape(remark)}</li>" for remark in self.remarks)
        below = f'<ul class="remarks">{remarks}</ul>' if remarks else ""
        narrow = " class=few" if len(self.columns) < FEW_COLUMNS else ""
        kind = "table stacked" if self.stacked else "table"
        return (
            f'<div class="{kind}"><h3>{escape(self.title)}{mark}</h3><div class="scroll" '
            f'tabindex="0" role="region" aria-label="{escape(self.title)}"><table{narrow}><thead>'
            f"{self._groups()}<tr>{''.join(map(_heading, self.columns))}</tr></thead>"
            f"<tbody>{body}</tbody></table></div>{note}{below}</div>"
        )

    def print(self) -> None:
        """Print the table to standard output; where it is too wide, text wraps, but no number."""
        from rich.console import Console

        console = Console()
        if not console.is_terminal:
            console.width = 120  # a log file has room
        roomy = console.options.update(width=_ROOMY)
        table = self._printed()
        if console.measure(table, options=roomy).minimum > console.width:
            table = self._printed(fold_headings=True)
        # Lines that a terminal continues below can be read, numbers that are cut off cannot.
        console.width = max(console.width, console.measure(table, options=roomy).minimum)
        console.print(table)

    def _printed(self, fold_headings: bool = False) -> "RichTable":
        """Return the table for a terminal, headings of numbers in one line or in several."""
        from rich.cells import cell_len
        from rich.markup import escape as plain
        from rich.table import Table as RichTable

        texts = [[_in_line(cell) for cell in row.cells] for row in self.rows]
        table = RichTable(title=plain(self.title), caption=plain(self.note))
        for number, column in enumerate(self.columns):
            name = " ".join(filter(None, [column.group.removesuffix(" at most"), column.title]))
            if number == 0 or column.text:
                table.add_column(plain(name), overflow="fold")
                continue
            widest = max((cell_len(row[number]) for row in texts), default=0)
            if fold_headings:
                name = fill(name, max(widest, 1), break_long_words=False)
            widest = max(widest, *map(cell_len, name.split("\n")))
            table.add_column(plain(name), justify="right", no_wrap=True, min_width=widest)
        for row in texts:
            table.add_row(*map(plain, row))
        return table

    def _groups(self) -> str:
        if not any(column.group for column in self.columns):
            return ""
        cells = []
        for group, found in groupby(self.columns, key=lambda column: column.group):
            columns = list(found)
            name = " class=group" if group else ""
            extra = sum(column.extra for column in columns)
            if not extra:
                cells.append(f'<th colspan="{len(columns)}"{name}>{escape(group)}</th>')
                continue
            # A span cannot depend on the width: phones have a heading of their own.
            for span, width in ((len(columns), "extra"), (len(columns) - extra, "short")):
                cells.append(f'<th colspan="{span}" class="{width} group">{escape(group)}</th>')
        return f"<tr>{''.join(cells)}</tr>"

    def _row(self, row: Row) -> str:
        swatch = "" if row.colour is None else f'<i class="swatch c{row.colour % 8}"></i>'
        name, *cells = row.cells
        inside = "".join(
            _cell(cell, column, detailed)
            for cell, column, detailed in zip(cells, self.columns[1:], self._detailed, strict=True)
        )
        small = f"<small>{escape(name.detail)}</small>" if name.detail else ""
        title = f"{swatch}{escape(name.text)}{small}"
        first = f'<th scope="row">{title}</th>' if name.text else "<th></th>"
        return f"<tr{'' if name.text else ' class=more'}>{first}{inside}</tr>"

    @property
    def _detailed(self) -> list[bool]:
        """For each column after the first, whether any of its cells has small print."""
        return [any(row.cells[n].detail for row in self.rows) for n in range(1, len(self.columns))]


def _in_line(cell: Cell) -> str:
    return f"{cell.text} ({cell.detail})" if cell.detail else cell.text


def _heading(column: Column) -> str:
    return f'<th scope="col"{_class(column)}>{escape(column.title)}</th>'


def _class(column: Column, best: bool = False) -> str:
    classes = " ".join(["text"] * column.text + ["extra"] * column.extra + ["best"] * best)
    return f' class="{classes}"' if classes else ""


def _cell(cell: Cell, column: Column, detailed: bool) -> str:
    detail = f"<small>{escape(cell.detail)}</small>" if detailed else ""
    return f"<td{_class(column, cell.best)}>{escape(cell.text)}{detail}</td>"


@dataclass(frozen=True)
class Section:
    """A section of the page."""

    name: str
    """Its anchor, for links."""
    title: str
    lead: str = ""
    """A sentence or two below the heading."""
    parts: Sequence[str] = ()
    """Its content, in parts of HTML."""


@dataclass
class Page:
    """An HTML page."""

    title: str
    lead: str
    sections: list[Section] = field(default_factory=list)
    footer: str = ""
    style: str = ""
    """CSS of this kind of page, in addition to that of all pages."""
    script: str = ""
    """JavaScript at the end of the page, which must be readable without it."""

    def add(self, section: Section) -> None:
        """Append a section, unless it is empty."""
        if any(section.parts):
            self.sections.append(section)

    def html(self) -> str:
        """Return the page as HTML; what is no Unicode text becomes question marks."""
        links = "".join(f'<a href="#{s.name}">{escape(s.title)}</a>' for s in self.sections)
        body = "".join(map(_section, self.sections))
        script = f"<script>{self.script}</script>" if self.script else ""
        html = (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<meta name="color-scheme" content="light dark">'
            f"<title>{escape(self.title)}</title>"
            f"<style>{STYLE.read_text(encoding='utf-8')}{self.style}</style></head><body>"
            f"<header><h1>{escape(self.title)}</h1><p>{escape(self.lead)}</p>"
            f'<nav aria-label="Contents">{links}</nav></header>'
            f"<main>{body}</main><footer><p>{escape(self.footer)}</p></footer>{script}</body></html>\n"
        )
        return html.encode("utf-8", "replace").decode()


def _section(section: Section) -> str:
    lead = f'<p class="lead">{escape(section.lead)}</p>' if section.lead else ""
    inside = "".join(section.parts)
    return f'<section id="{section.name}"><h2>{escape(section.title)}</h2>{lead}{inside}</section>'


def figure(chart: Chart, title: str, caption: str = "", wide: bool = False, key: str = "") -> str:
    """Return a chart with title, legend and caption as HTML.

    Args:
      chart: the chart.
      title: heading above the chart.
      caption: text below the chart.
      wide: whether the chart takes the page width instead of half of it; phones get a drawing of
        their own.
      key: HTML to show instead of the legend of the series.
    """
    names = {series.name: series for series in reversed(chart.series) if series.name}
    names = dict(reversed(names.items()))
    key = key or (legend((s.name, s.colour, s.dashed) for s in names.values()))
    sizes = ("wide", WIDE if wide else HALF), ("narrow", NARROW)
    drawn = "".join(f'<div class="{name}">{chart.svg(*size)}</div>' for name, size in sizes)
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure><h3>{escape(title)}</h3>{key}{drawn}{below}</figure>"


def figures(charts: Sequence[Chart], names: Sequence[str], title: str, caption: str) -> str:
    """Return charts with the same axes one above the other, each with its name above it."""
    drawn = "".join(
        f'<h4><i class="swatch c{n % 8}"></i>{escape(name)}</h4>'
        f'<div class="wide">{chart.svg(WIDE[0], 150.0)}</div>'
        f'<div class="narrow">{chart.svg(NARROW[0], 150.0)}</div>'
        for n, (chart, name) in enumerate(zip(charts, names, strict=True))
    )
    below = f"<figcaption>{escape(caption)}</figcaption>"
    return f"<figure><h3>{escape(title)}</h3>{drawn}{below}</figure>"


def legend(entries: Iterable[tuple[str, int, bool]]) -> str:
    """Return the legend of (name, colour, dashed) lines, empty for a single line."""
    entries = list(entries)
    if len(entries) < 2:
        return ""
    items = "".join(
        f'<li><i class="stroke c{colour % 8}{" dashed" * dashed}"></i>{escape(name)}</li>'
        for name, colour, dashed in entries
    )
    return f'<ul class="key">{items}</ul>'


def side_by_side(parts: Iterable[str]) -> str:
    """Return figures in two columns, or in one column on a phone."""
    return f'<div class="grid">{"".join(parts)}</div>'


def csv_text(rows: Iterable[Mapping[str, object]]) -> str:
    """Return rows as CSV text with the first row's keys as the header; None is an empty field."""
    rows = list(rows)
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()
