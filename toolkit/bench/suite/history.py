"""The history of runs of all benchmarks: a line of JSON for each, and what became worse."""

import json
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from toolkit.bench.instruments.harness import BenchmarkError, Table
from toolkit.bench.suite.measure import Measured
from toolkit.config.fields import from_plain
from toolkit.storage.reading import reading

TOLERANCE = 0.1
"""Share by which a ratio may fall, beside its spread, or a figure rise, and not count as worse."""
LEAST = 0.05
"""The least rise of a figure that counts as worse."""
RECENT = 5
"""Number of earlier runs whose median a run is compared with."""
ADVICE = "move it away to begin a new history"


@dataclass(frozen=True)
class SuiteRun:
    """One run of the benchmarks."""

    time: str
    """When it began, ISO 8601."""
    quick: bool
    """Whether it was a smoke test."""
    measured: dict[str, Measured]
    """By benchmark."""
    failed: dict[str, str] = field(default_factory=dict)
    """Reason by benchmark."""
    device: str | None = None
    """What was asked for: `cuda`, ...; None: each measured what it does without."""

    def like(self, other: "SuiteRun", name: str) -> bool:
        """Whether a benchmark of two runs had the same size, device, kind of machine and baseline.

        The baseline differs where another engine, installed since, is what is compared with.
        """
        if name not in self.measured or name not in other.measured:
            return False
        if (self.quick, self.device) != (other.quick, other.device):
            return False
        ours, theirs = (run.measured[name].table for run in (self, other))
        # A title has the sizes, such as those of a batch.
        if (ours.title, ours.baseline) != (theirs.title, theirs.baseline):
            return False
        kinds = ("cpu", "cpus", "system", "gpu")
        return all(ours.machine.get(key) == theirs.machine.get(key) for key in kinds)


@dataclass(frozen=True)
class Quantity:
    """A ratio or figure of a run beside its earlier values."""

    benchmark: str
    name: str
    value: float
    earlier: tuple[float, ...]
    """Its values in earlier runs of the same kind, the newest last."""
    spread: float | None
    """That of a case's rate; None for a figure, which is the better the smaller it is."""

    @property
    def before(self) -> float | None:
        """The median of the most recent earlier values; None if there are none."""
        return statistics.median(self.earlier[-RECENT:]) if self.earlier else None

    @property
    def worse(self) -> bool:
        """Whether it is worse than before by more than `TOLERANCE` allows."""
        before = self.before
        if before is None:
            return False
        if self.spread is None:
            return self.value > before + max(LEAST, TOLERANCE * abs(before))
        return self.value < before * (1 - TOLERANCE - self.spread)


def quantities(runs: Sequence[SuiteRun]) -> list[Quantity]:
    """Return all ratios and figures of the last run, with those of the runs before it."""
    *before, last = runs
    found = []
    for name, measured in last.measured.items():
        earlier = [_values(r.measured[name].table) for r in before if r.like(last, name)]
        spreads = {row.name: row.spread for row in measured.table.rows}
        for key, value in _values(measured.table).items():
            known = tuple(values[key] for values in earlier if key in values)
            found.append(Quantity(name, key, value, known, spreads.get(key)))
    return found


def _values(table: Table) -> Mapping[str, float]:
    ratios = {row.name: row.ratio for row in table.rows if row.name != table.baseline}
    return ratios | table.figures


def append(path: Path, run: SuiteRun) -> None:
    """Append a run to a history."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(run)) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> list[SuiteRun]:
    """Return the runs of a history, the newest last; none where there is no file.

    Raises:
      BenchmarkError: it is damaged.
    """
    return list(_runs(path)) if path.exists() else []


def _runs(path: Path) -> Iterator[SuiteRun]:
    with reading(path, BenchmarkError, ADVICE):
        lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        with reading(path, BenchmarkError, ADVICE, f"line {number} is no run of benchmarks"):
            plain = json.loads(line)
            found = {name: Measured.from_json(each) for name, each in plain["measured"].items()}
            yield replace(from_plain(SuiteRun, {**plain, "measured": {}}), measured=found)
