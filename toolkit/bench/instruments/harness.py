"""Measurement of rates: all cases take turns, medians and ratios are reported."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from toolkit.bench.instruments.accelerators import Accelerators
from toolkit.config.fields import from_plain
from toolkit.environment import git_commit, machine, versions
from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    import rich.table


class BenchmarkError(ToolkitError):
    """A benchmark cannot run here."""


def _machine() -> dict[str, Any]:
    return {**machine(), "gpu": next((one.name for one in Accelerators().describe()), None)}


@dataclass(frozen=True)
class Case:
    """One case of a comparison."""

    name: str
    """Name of its row."""
    run: Callable[[], float]
    """Does the work once and returns its amount in the unit of comparison, such as seconds of
    audio. On a GPU it must synchronise with the device before it returns."""


@dataclass(frozen=True)
class Row:
    """The measurements of one case."""

    name: str
    rate: float
    """Median over the repeats, in the table's unit per second."""
    ratio: float
    """Median over the repeats of this case's rate divided by the baseline's in the same round. As
    the load of the machine varies between rounds, it may differ a little from the quotient of the
    medians."""
    spread: float
    """(fastest - slowest) / median of the rates: below 0.1 on an otherwise idle machine."""


@dataclass(frozen=True)
class Table:
    """The result of a comparison, with a description of the machine."""

    unit: str
    """Unit of the amounts whose rates are measured, such as `s of audio`."""
    baseline: str
    """Name of the row whose ratio is 1."""
    repeats: int
    rows: tuple[Row, ...]
    title: str = ""
    notes: tuple[str, ...] = ()
    """Sentences printed below the table."""
    figures: dict[str, float] = field(default_factory=dict)
    """Further numbers by name that are no rates, such as sizes: the smaller, the better."""
    machine: dict[str, Any] = field(default_factory=_machine)
    """As `toolkit.environment.machine`, and the name of the first `gpu`, or None."""
    versions: dict[str, str] = field(default_factory=versions)
    commit: str | None = field(default_factory=git_commit)

    def with_notes(self, *notes: str) -> "Table":
        """Return the table with more notes."""
        return replace(self, notes=(*self.notes, *notes))

    def with_figures(self, figures: Mapping[str, float]) -> "Table":
        """Return the table with more figures."""
        return replace(self, figures={**self.figures, **figures})

    def row(self, name: str) -> Row:
        """Return the row of a case.

        Raises:
          KeyError: no case has that name.
        """
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def to_json(self) -> dict[str, Any]:
        """Return the table as plain data for `json.dumps`."""
        return asdict(self)

    @classmethod
    def from_json(cls, plain: Any) -> "Table":
        """Return the table that `to_json` made plain.

        Raises:
          ValueError, TypeError, LookupError: it is none.
        """
        rows = tuple(from_plain(Row, row) for row in plain["rows"])
        return replace(from_plain(cls, {**plain, "rows": []}), rows=rows)

    def render(self) -> "rich.table.Table":
        """Return the table for a rich console, machine and notes below it."""
        from rich.markup import escape
        from rich.table import Table as RichTable

        gpu = f", {self.machine['gpu']}" if self.machine.get("gpu") else ""
        about = (
            f"{self.machine['cpu']}, {self.machine['cpus']} CPUs{gpu}, torch threads: "
            f"{self.machine['torch_threads']}; median of {self.repeats} interleaved rounds"
        )
        table = RichTable(
            title=escape(self.title) or None,
            caption=escape("\n".join((about, *self.notes))),
            caption_justify="left",
        )
        table.add_column("case")
        for name in (f"{self.unit} / s", f"ratio to {self.baseline}", "spread"):
            table.add_column(name, justify="right")
        for row in self.rows:
            spread = f"{100 * row.spread:.0f} %"
            table.add_row(escape(row.name), f"{row.rate:,.4g}", f"{row.ratio:.3f}", spread)
        return table

    def print(self) -> None:
        """Print the table to standard output."""
        from rich.console import Console

        console = Console()
        if not console.is_terminal:
            console.width = 120  # a log file has room
        console.print(self.render())


def compare(
    cases: Sequence[Case],
    unit: str,
    baseline: str,
    repeats: int = 5,
    title: str = "",
    notes: Sequence[str] = (),
    clock: Callable[[], float] = perf_counter,
) -> Table:
    """Measure cases in turns: every round runs each case once, every second round in reverse.

    One untimed round comes first, to fill caches and compile. As all cases take turns, a slow
    moment of the machine affects all alike, and ratios are more reliable than absolute rates.

    Args:
      cases: with unique names.
      unit: unit of what `Case.run` returns, such as `s of audio`.
      baseline: name of the case by whose rate the others are divided.
      repeats: timed rounds.
      title: the table's title.
      notes: sentences printed below the table.
      clock: monotonic clock in seconds.

    Raises:
      ValueError: no such baseline, a name used twice, or fewer than one repeat.
    """
    names = [case.name for case in cases]
    if len(set(names)) < len(names):
        raise ValueError(f"two cases have the same name: {names}")
    if baseline not in names:
        raise ValueError(f"the baseline {baseline!r} is not one of the cases {names}")
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, not {repeats}")
    for case in cases:
        case.run()
    rates: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(repeats):
        for case in cases if turn % 2 == 0 else reversed(cases):
            before = clock()
            amount = case.run()
            rates[case.name].append(amount / (clock() - before))
    return Table(
        unit=unit,
        baseline=baseline,
        repeats=repeats,
        rows=tuple(_row(name, rates[name], rates[baseline]) for name in names),
        title=title,
        notes=tuple(notes),
    )


def _row(name: str, rates: list[float], baseline: list[float]) -> Row:
    median = statistics.median(rates)
    return Row(
        name=name,
        rate=median,
        ratio=statistics.median(a / b for a, b in zip(rates, baseline, strict=True)),
        spread=(max(rates) - min(rates)) / median,
    )
