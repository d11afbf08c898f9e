"""Figures that the papers published, for comparison beside our own and always marked as theirs."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("published.json")
MARK = "published"
"""What stands beside every row of these."""
Value = str | float | None


@dataclass(frozen=True)
class Published:
    """A table of a paper."""

    item: str
    """Its number in our list of the papers' items, such as A32."""
    title: str
    source: str
    """The paper."""
    place: str
    """Where in it."""
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    """As printed; None where the paper says NA or nothing."""
    percent: tuple[tuple[float | None, ...], ...] = ()
    """Percentages as printed, of each row without its first column."""
    errata: tuple[str, ...] = ()
    """What is known to be wrong in it, or written here otherwise than there."""

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
      KeyError: nothing is published of it.
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
