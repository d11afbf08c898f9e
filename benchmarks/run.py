"""Interleaved measurement of rates, targets, and the command `python -m benchmarks`.

`python -m benchmarks NAME` runs the module of that name in this folder, with _ for -. The module
defines `benchmark()`, which returns a `Table`, or a click `command` with options of its own. It may
define `SMOKE`, the arguments of a run that shows in seconds whether it works, and `TARGETS`.
"""

import importlib
import inspect
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from toolkit.config.click_types import FILE, JSON_OUT
from toolkit.environment import git_commit, machine, versions
from toolkit.errors import ToolkitError
from toolkit.tta.machine import Accelerators

if TYPE_CHECKING:
    import rich.table


BENCHMARKS = (
    "align",
    "beams",
    "compression",
    "ctc-decode",
    "decode",
    "features",
    "g2p",
    "int8",
    "lattice",
    "robustness",
    "score",
    "serve",
    "shards",
    "train",
    "train-ctc",
    "transcribe",
)
"""The modules of this folder that `python -m benchmarks` runs, with - for _."""
ALL = ("train", "train-ctc", "features", "decode", "lattice", "align", "compression", "score")
"""What `python -m benchmarks all` runs, in this order; none of them needs other files."""


REF = click.option(
    "--ref",
    type=FILE,
    required=True,
    help="Reference transcripts, in a format that `toolkit score --ref` reads.",
)
"""The option of benchmarks that count word errors."""


class BenchmarkError(ToolkitError):
    """A benchmark cannot run here."""


def _machine() -> dict[str, Any]:
    """Describe the machine, with the name of its first GPU."""
    return {**machine(), "gpu": next((device.name for device in Accelerators().describe()), None)}


@dataclass(frozen=True)
class Case:
    """One case of a comparison."""

    name: str
    """Name of the case's row."""
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
    """Further numbers by name that are not rates, such as sizes; smaller is better."""
    machine: dict[str, Any] = field(default_factory=_machine)
    """Description of the machine as in `toolkit.environment.machine`, with the name of the first
    `gpu`, or None."""
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
    """Measure cases in turn: every round runs each case once, every second round in reverse order.

    One untimed round comes first, to fill caches and compile. Since the cases take turns, a slow
    moment of the machine affects all of them alike, and ratios are more reliable than absolute
    rates.

    Args:
      cases: with unique names.
      unit: unit of what `Case.run` returns, such as `s of audio`.
      baseline: name of the case by whose rate the others are divided.
      repeats: timed rounds.
      title: the table's title.
      notes: sentences printed below the table.
      clock: monotonic clock in seconds.

    Raises:
      ValueError: no case is the baseline, a name is used twice, or `repeats` is less than 1.
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
            begin = clock()
            amount = case.run()
            rates[case.name].append(amount / (clock() - begin))
    return Table(
        unit=unit,
        baseline=baseline,
        repeats=repeats,
        rows=tuple(_row(name, rates[name], rates[baseline]) for name in names),
        title=title,
        notes=tuple(notes),
    )


def _row(name: str, rates: list[float], baseline: list[float]) -> Row:
    """Return the row of a case from its rates in all rounds."""
    median = statistics.median(rates)
    return Row(
        name=name,
        rate=median,
        ratio=statistics.median(a / b for a, b in zip(rates, baseline, strict=True)),
        spread=(max(rates) - min(rates)) / median,
    )


@dataclass(frozen=True)
class Target:
    """A bound on a number of a benchmark's table."""

    title: str
    """What is bounded; at most 62 characters, so that number and bound fit into a line of a log."""
    bound: float
    value: Callable[[Table], float]
    """Returns the number from the table; raises a `KeyError` if it was not measured."""
    at_most: bool = False
    """Whether the bound is an upper one; otherwise it is a lower one."""

    def met(self, value: float) -> bool:
        """Return whether a value is on the right side of the bound."""
        return value <= self.bound if self.at_most else value >= self.bound

    def missed(self, table: Table) -> bool:
        """Return whether a table has the number and misses the bound."""
        try:
            return not self.met(self.value(table))
        except KeyError:
            return False

    def line(self, table: Table) -> str:
        """Return title, number and bound in one line."""
        try:
            value = self.value(table)
        except KeyError:
            return f"{self.title}: not measured here"
        bound = f"{'at most' if self.at_most else 'at least'} {self.bound:g}"
        return f"{self.title}: {value:.3g} ({bound}, {'met' if self.met(value) else 'missed'})"


def rate_ratio(case: str, base: str) -> Callable[[Table], float]:
    """Return a function of a table that returns the rate of one case relative to another's."""
    return lambda table: table.row(case).rate / table.row(base).rate


def table_figure(name: str) -> Callable[[Table], float]:
    """Return a function of a table that returns one of its figures."""
    return lambda table: table.figures[name]


def load_benchmark(name: str) -> ModuleType:
    """Import the module of a benchmark, one of `BENCHMARKS`."""
    return importlib.import_module(f"benchmarks.{name.replace('-', '_')}")


class _Benchmarks(click.Group):
    """Imports a benchmark when it is called, and turns user errors into messages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ["all", *BENCHMARKS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "all":
            return run_all
        if cmd_name not in BENCHMARKS:
            return None
        module = load_benchmark(cmd_name)
        return getattr(module, "command", None) or _table_command(cmd_name, module)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Benchmarks"):
            formatter.write_text(", ".join(self.list_commands(ctx)))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ToolkitError as error:
            raise click.ClickException(str(error)) from error


def _table_command(name: str, module: ModuleType) -> click.Command:
    """Return a command for a module without one; --smoke and --device only if they apply."""
    targets: Sequence[Target] = getattr(module, "TARGETS", ())
    example = f"\b\nExample:\n  python -m benchmarks {name} --json {name}.json"

    @click.command(name, help=f"{module.__doc__}\n\n{example}")
    @click.option("--json", "json_file", type=JSON_OUT, help="Also write the results to this file.")
    def run(json_file: Path | None, smoke: bool = False, device: str | None = None) -> None:
        from toolkit.processes.devices import choose_device
        from toolkit.storage.files import write_atomically

        arguments = dict(module.SMOKE) if smoke else {}
        if device is not None:
            arguments["device"] = choose_device(device)
        table = module.benchmark(**arguments)
        table.print()
        for target in targets:
            print(target.line(table))
        if json_file is not None:
            write_atomically(json_file, json.dumps(table.to_json(), indent=1) + "\n")
        if not smoke and any(target.missed(table) for target in targets):
            sys.exit(1)

    if hasattr(module, "SMOKE"):
        about = "Run the benchmark briefly, only to check that it works."
        run = click.option("--smoke", is_flag=True, help=about)(run)
    if "device" in inspect.signature(module.benchmark).parameters:
        about = "Measure on this device, such as cuda or cuda:1. Default: as described above."
        run = click.option("--device", metavar="NAME", help=about)(run)
    return run


@click.command("all")
@click.option(
    "--smoke", is_flag=True, help="Run each benchmark briefly, only to check that it works."
)
def run_all(smoke: bool) -> None:
    """Run the benchmarks that need nothing but the toolkit, each in a separate process.

    In separate processes, no benchmark warms the caches or fills the memory for the next one. The
    exit status is 1 if a benchmark fails or misses a target.

    \b
    Example:
      python -m benchmarks all --smoke
    """
    failed = []
    for name in ALL:
        command = [sys.executable, "-m", "benchmarks", name, *["--smoke"] * smoke]
        if subprocess.run(command).returncode:
            failed.append(name)
    if failed:
        raise BenchmarkError(f"these benchmarks failed or missed a target: {', '.join(failed)}")


@click.group(
    cls=_Benchmarks,
    subcommand_metavar="NAME [OPTIONS]",
    context_settings={"help_option_names": ["-h", "--help"]},
)
def main() -> None:
    """Compare the toolkit with the limits of the machine and with other engines.

    The compared programs take turns, so that load from other processes slows all of them alike.
    Results are printed as ratios. `python -m benchmarks NAME --help` describes a benchmark.

    \b
    Example:
      python -m benchmarks features --json features.json
    """
