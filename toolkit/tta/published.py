"""Figures published in the papers, shown for comparison and always marked as published."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("published.json")
MARK = "published"
"""Mark of every published row."""
Value = str | float | None


@dataclass(frozen=True)
class Published:
    """A table of a paper."""

    item: str
    """Item code in the project's list of the papers' items, such as A32."""
    title: str
    source: str
    """Title of the paper."""
    place: str
    """Table, figure or section of the paper."""
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    """Values as printed; None where the paper has NA or nothing."""
    percent: tuple[tuple[float | None, ...], ...] = ()
    """Percentages as printed beside the values, by row, without the first column."""
    errata: tuple[str, ...] = ()
    """Known errors of the table, and where the values here differ from the print."""

    def row(self, name: Value) -> dict[str, Value]:
        """Return a row by its first value, as values by column.

        Raises:
          KeyError: there is no such row.
        """
        for row in self.rows:
            if row[0] == name:
                return dict(zip(self.columns, row, strict=True))
        raise KeyError(name)


def published(item: str) -> Published:
    """Return the table of an item, such as `published("A32")`.

    Raises:
      KeyError: there is no table of that item.
    """
    return tables()[item]


@cache
def tables() -> dict[str, Published]:
    """Return all tables by item."""
    plain = json.loads(FILE.read_text(encoding="utf-8"))
    return {item: _table(item, entry, plain["sources"]) for item, entry in plain["tables"].items()}


def _table(item: str, entry: dict[str, Any], sources: dict[str, str]) -> Published:
    return Published(
        item=item,
        title=entry["title"],
        source=sources[entry["source"]],
        place=entry["place"],
        columns=tuple(entry["columns"]),
        rows=tuple(map(tuple, entry["rows"])),
        percent=tuple(map(tuple, entry.get("percent", ()))),
        errata=tuple(entry.get("errata", ())),
    )
