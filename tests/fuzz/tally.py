"""How many hostile files each reader was given, over all calls: a small JSON file, and a table."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from toolkit.storage.files import write_atomically


@dataclass
class Row:
    """What one reader was given."""

    inputs: int = 0
    refused: int = 0
    """Those that it explained; the others it could read all the same."""
    seconds: float = 0.0
    """Processor time."""
    seeds: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@dataclass
class Tally:
    """All readers."""

    rows: dict[str, Row] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "Tally":
        """Return what `write` wrote, or nothing yet."""
        rows = json.loads(path.read_text()) if path.exists() else {}
        return cls({name: Row(**row) for name, row in rows.items()})

    def write(self, path: Path) -> None:
        """Write it whole or not at all."""
        rows = {name: asdict(row) for name, row in sorted(self.rows.items())}
        write_atomically(path, json.dumps(rows, indent=1) + "\n")

    def row(self, name: str) -> Row:
        """Return the row of a reader, an empty one at first."""
        return self.rows.setdefault(name, Row())

    def table(self) -> str:
        """Return the table of the documentation: a row for each reader, and one of all."""
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
