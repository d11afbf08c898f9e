"""HTML pages from templates: sections, tables and figures, in one file that needs no network.

All HTML is in `templates/`, rendered by jinja2 with autoescaping: a text becomes markup only where
it is a `Markup`, which templates and `toolkit.report.charts` alone make.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from toolkit.report.charts import Chart

if TYPE_CHECKING:
    from jinja2 import Environment
    from rich.table import Table as RichTable

FOLDER = Path(__file__).parent
WIDE, NARROW, HALF = (1040.0, 330.0), (350.0, 290.0), (500.0, 330.0)
"""Sizes of figures in pixels: for the page width, for narrow screens, for half the page width."""
NARROW_TABLE = 6
"""Tables with fewer columns are not stretched to the page width."""
_UNLIMITED_WIDTH = 10_000
"""Terminal width in characters that no table needs."""


@lru_cache
def _environment() -> "Environment":
    """Return jinja2's environment for the templates of this folder."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # 1234567 as 1,234,567.
    environment.filters["thousands"] = "{:,}".format
    return environment


@lru_cache
def macros(template: str) -> Any:
    """Return the macros of a template as functions that return `Markup`."""
    return _environment().get_template(template).module


class Budget:
    """The number of bytes that may still be added to the page."""

    def __init__(self, remaining: int) -> None:
        self.remaining, self.refused = remaining, 0

    def take(self, part: Markup) -> Markup:
        """Return the part if there is room for it, otherwise an empty one."""
        size = len(part.encode("utf-8", "replace"))
        if size > self.remaining:
            self.refused += 1
            return Markup("")
        self.remaining -= size
        return part


@dataclass(frozen=True)
class Cell:
    """A table cell."""

    text: str
    detail: str = ""
    """Small print after the text, such as a percentage."""
    best: bool = False
    """Show the text in bold."""


@dataclass(frozen=True)
class Column:
    """A table column."""

    title: str
    group: str = ""
    """Adjacent columns of the same group share a heading."""
    text: bool = False
    """Align left."""
    extra: bool = False
    """Leave out on narrow screens."""


@dataclass(frozen=True)
class TableRow:
    """A table row; its first cell is its heading, or is empty to continue the row before.

    Small print of the heading is shown only on narrow screens, in place of the columns that are
    left out there.
    """

    cells: Sequence[Cell]
    colour: int | None = None
    """Index into the page's palette, for a swatch beside the heading."""


@dataclass(frozen=True)
class HeadingGroup:
    """A heading above several columns of a table."""

    title: str
    span: int
    """Number of columns."""
    classes: str
    """CSS classes: `extra` hides it on narrow screens, `short` elsewhere."""


@dataclass(frozen=True)
class Table:
    """A table of a page."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[TableRow]
    note: str = ""
    published: bool = False
    """Whether all numbers are from a paper."""
    remarks: Sequence[str] = ()
    """Remarks, listed below the note."""
    stacked: bool = False
    """Put small print below the text of its cell instead of beside it."""

    def html(self) -> Markup:
        """Return the table as HTML, in a box that scrolls if the screen is too narrow."""
        return macros("parts.html").table(self)

    @property
    def is_narrow(self) -> bool:
        """Whether the table is not stretched to the page width."""
        return len(self.columns) < NARROW_TABLE

    @property
    def has_details(self) -> list[bool]:
        """Whether any cell of a column has small print; then all cells keep room for it."""
        return [any(row.cells[n].detail for row in self.rows) for n in range(len(self.columns))]

    @property
    def heading_groups(self) -> list["HeadingGroup"]:
        """The headings above groups of columns; empty where no column is in a group."""
        if not any(column.group for column in self.columns):
            return []
        groups = []
        for title, columns in groupby(self.columns, key=lambda column: column.group):
            is_extra = [column.extra for column in columns]
            span, short = len(is_extra), is_extra.count(False)
            if span == short:
                groups.append(HeadingGroup(title, span, "group" if title else ""))
            else:
                # A span cannot depend on the width: narrow screens have their own heading.
                groups.append(HeadingGroup(title, span, "extra group"))
                groups.append(HeadingGroup(title, short, "short group"))
        return groups

    def print(self) -> None:
        """Print the table to standard output; if it is too wide, texts wrap and numbers do not."""
        from rich.console import Console

        # rich folds text, and cuts numbers, at the console's width.
        console = Console()
        if not console.is_terminal:
            console.width = 120  # a log file has room
        wide = console.options.update(width=_UNLIMITED_WIDTH)
        table = self._rich_table()
        if console.measure(table, options=wide).minimum > console.width:
            table = self._rich_table(fold_headings=True)
        # Lines that a terminal wraps can be read; numbers that are cut off cannot.
        console.width = max(console.width, console.measure(table, options=wide).minimum)
        console.print(table)

    def _rich_table(self, fold_headings: bool = False) -> "RichTable":
        """Return the table for a terminal, headings of numbers in one line or in several."""
        from rich.cells import cell_len
        from rich.markup import escape as escape_markup
        from rich.table import Table as RichTable

        texts = [[_cell_text(cell) for cell in row.cells] for row in self.rows]
        table = RichTable(title=escape_markup(self.title), caption=escape_markup(self.note))
        for number, column in enumerate(self.columns):
            name = " ".join(filter(None, [column.group.removesuffix(" at most"), column.title]))
            if number == 0 or column.text:
                table.add_column(escape_markup(name), overflow="fold")
                continue
            widest = max((cell_len(row[number]) for row in texts), default=0)
            if fold_headings:
                name = fill(name, max(widest, 1), break_long_words=False)
            widest = max(widest, *map(cell_len, name.split("\n")))
            table.add_column(escape_markup(name), justify="right", no_wrap=True, min_width=widest)
        for row in texts:
            table.add_row(*map(escape_markup, row))
        return table


def _cell_text(cell: Cell) -> str:
    """Return the text of a cell in a terminal, with its detail in parentheses."""
    return f"{cell.text} ({cell.detail})" if cell.detail else cell.text


@dataclass(frozen=True)
class Section:
    """A section of the page."""

    name: str
    """Anchor of the section, for links."""
    title: str
    lead: str = ""
    """A sentence or two below the heading."""
    parts: Sequence[Markup] = ()
    """Content of the section."""


@dataclass
class Page:
    """An HTML page."""

    title: str
    lead: str
    sections: list[Section] = field(default_factory=list)
    footer: str = ""
    styles: Sequence[str] = ()
    """Names of CSS files of this folder, in addition to that of all pages."""
    scripts: Sequence[str] = ()
    """Names of JavaScript files of this folder; the page must be readable without them."""

    def add(self, section: Section) -> None:
        """Append a section, unless it is empty."""
        if any(section.parts):
            self.sections.append(section)

    def html(self) -> str:
        """Return the page as HTML; characters that are not valid Unicode become question marks."""
        page = _environment().get_template("page.html")
        html = page.render(
            page=self, style=_assets(("page.css", *self.styles)), script=_assets(self.scripts)
        )
        # A transcript may hold lone surrogates, which UTF-8 cannot encode.
        return html.encode("utf-8", "replace").decode()


def _assets(names: Sequence[str]) -> Markup:
    """Return the concatenated content of files of this folder, to be inlined."""
    return Markup("".join((FOLDER / name).read_text(encoding="utf-8") for name in names))


def figure(
    chart: Chart, title: str, caption: str = "", wide: bool = False, key: Markup | str = ""
) -> Markup:
    """Return a chart with title, legend and caption as HTML.

    Args:
      chart: the line chart to draw.
      title: heading above the chart.
      caption: text below the chart.
      wide: whether the chart takes the page width instead of half of it; narrow screens get a
        drawing of their own.
      key: what to show instead of the legend of the series.
    """
    names = {series.name: series for series in reversed(chart.series) if series.name}
    # Series of the same name share a line of the legend, in the order of their first occurrence.
    names = dict(reversed(names.items()))
    key = key or legend((s.name, s.colour, s.dashed) for s in names.values())
    sizes = ("wide", WIDE if wide else HALF), ("narrow", NARROW)
    drawings = [(name, chart.svg(*size)) for name, size in sizes]
    return macros("parts.html").figure(title, drawings, key, caption)


def figures(charts: Sequence[Chart], names: Sequence[str], title: str, caption: str) -> Markup:
    """Return charts with the same axes one above the other, each with its name above it."""
    widths = {"wide": WIDE[0], "narrow": NARROW[0]}
    drawings = [
        (name, [(kind, chart.svg(width, 150.0)) for kind, width in widths.items()])
        for chart, name in zip(charts, names, strict=True)
    ]
    return macros("parts.html").stacked_figure(title, drawings, caption)


def legend(entries: Iterable[tuple[str, int, bool]]) -> Markup:
    """Return the legend of (name, colour, dashed) lines, empty for a single line."""
    entries = list(entries)
    if len(entries) < 2:
        return Markup("")
    return macros("parts.html").key(
        (f"stroke c{colour % 8}{' dashed' * dashed}", name) for name, colour, dashed in entries
    )


def side_by_side(parts: Iterable[Markup]) -> Markup:
    """Return figures in two columns, or in one column on narrow screens."""
    return macros("parts.html").side_by_side(parts)


def folded(summary: str, content: Markup) -> Markup:
    """Return content that is collapsed until its summary is clicked."""
    return macros("parts.html").folded(summary, content)


def joined(parts: Iterable[Markup]) -> Markup:
    """Concatenate parts of a page."""
    return Markup("").join(parts)


def csv_text(rows: Iterable[Mapping[str, object]]) -> str:
    """Return rows as CSV text with the first row's keys as the header; None is an empty field."""
    rows = list(rows)
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()
