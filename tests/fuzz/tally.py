"""Counts of hostile files by reader over all calls: a small JSON file and a table."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from toolkit.storage.files import write_atomically


@dataclass
class Row:
    """The counts of one reader."""

    inputs: int = 0
    refused: int = 0
    """Those that it explained; the others it could read all the same."""
    seconds: float = 0.0
    """Processor time."""
    seeds: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@dataclass
class Tally:
    """The counts of all readers."""

    rows: dict[str, Row] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "Tally":
        """Return the counts that `write` wrote, or none before the first call."""
        rows = json.loads(path.read_text()) if path.exists() else {}
        return cls({name: Row(**row) for name, row in rows.items()})

    def write(self, path: Path) -> None:
        """Write the counts atomically."""
        rows = {name: asdict(row) for name, row in sorted(self.rows.items())}
        write_atomically(path, json.dumps(rows, indent=1) + "\n")

    def row(self, name: str) -> Row:
        """Return the counts of a reader, initially zero."""
        return self.rows.setdefault(name, Row())

    def table(self) -> str:
        """Return the table for the documentation: a row per reader and a row of sums."""
        lines = ["| reader | inputs | refused | inputs per second | seeds | failures |"]
        lines += ["|---|---:|---:|---:|---|---:|"]
        rows = [*sorted(self.rows.items()), ("all", self._all())]
        for name, row in rows:
            rate = f"{row.inputs / row.seconds:.0f}" if row.seconds else ""
            seeds = ", ".join(map(str, row.seeds))
            lines.append(
                f"| {name} | {row.inputs:,} | {row.refused:,} | {rate} | {seeds} | "
                f"{len(row.failures)} |"
            )
        return "\n".join(lines)

    def _all(self) -> Row:
        rows = list(self.rows.values())
        return Row(
            sum(row.inputs for row in rows),
            sum(row.refused for row in rows),
            sum(row.seconds for row in rows),
            sorted({seed for row in rows for seed in row.seeds}),
            [failure for row in rows for failure in row.failures],
        )
