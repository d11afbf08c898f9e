"""The table of `run.py --list`, in at most 100 columns."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

WIDTH = 100
GAP = "  "
INDENT = " " * 7
"""Below a row, under the titles."""


@dataclass(frozen=True)
class Row:
    """What is shown of a stage; all may be empty."""

    stage: str
    title: str
    kind: str
    """The state in a word: `stale`."""
    reason: str
    """What follows it: `: lm.text has changed`."""
    time: str
    code: str
    """What of the code that made it is not the present."""
    result: str


HEAD = Row("stage", "title", "state", "", "time", "code", "result")


def lines(rows: Sequence[Row]) -> list[str]:
    """Return the lines of a table with a head.

    Where all fits, a row is a line. Otherwise reasons and results that are too long stand below
    their row, and codes below the table.
    """
    wide = [
        (r.stage, r.title, f"{r.kind}{r.reason}", r.time, r.code, r.result) for r in (HEAD, *rows)
    ]
    if not any(row.code for row in rows):
        wide = [(*cells[:4], cells[5]) for cells in wide]
    table = _aligned(wide)
    return table if max(map(len, table)) <= WIDTH else list(_folded(rows))


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[-1] = 0
    return [
        GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _folded(rows: Sequence[Row]) -> Iterator[str]:
    stage, kind, time = (
        max(len(getattr(row, name)) for row in (HEAD, *rows)) for name in ("stage", "kind", "time")
    )
    most = WIDTH - stage - kind - time - 3 * len(GAP)
    titles = [textwrap.shorten(row.title, most, placeholder="...") for row in rows]
    room = WIDTH - stage - max(len(HEAD.title), *map(len, titles)) - time - 3 * len(GAP)
    states = [f"{row.kind}{row.reason}" for row in rows]
    cells = [
        (row.stage, title, state if len(state) <= room else row.kind, row.time, "|")
        for row, title, state in zip(rows, titles, states, strict=True)
    ]
    head, *table = _aligned([(HEAD.stage, HEAD.title, HEAD.kind, HEAD.time, HEAD.result), *cells])
    yield (
        head
        if any(row.result for row in rows) and len(head) <= WIDTH
        else head[: -len(HEAD.result)].rstrip()
    )
    for row, line, state in zip(rows, table, states, strict=True):
        line = line.removesuffix("|")
        fits = len(line) + len(row.result) <= WIDTH
        yield (line + row.result if fits else line).rstrip()
        if len(state) > room:
            yield from _below(state)
        if not fits:
            yield from _below(row.result)
    codes: dict[str, list[str]] = {}
    for row in rows:
        if row.code:
            codes.setdefault(row.code, []).append(row.stage)
    for code, stages in codes.items():
        text = f"code of {', '.join(stages)}: {code}"
        yield from textwrap.wrap(text, WIDTH, subsequent_indent=GAP, break_on_hyphens=False)


def _below(text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False
    )
