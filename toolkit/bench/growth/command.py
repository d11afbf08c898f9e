"""The command `toolkit bench growth`: exponents of time and memory, stage by stage."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from toolkit.bench.growth.measure import FACTORS, Growth, measure
from toolkit.bench.growth.runs import growth_of_runs
from toolkit.bench.instruments.harness import Table
from toolkit.config.click_types import JSON_OUT, Number

UNITS = {
    "extract": 12,
    "GMM EM": 4,
    "tree statistics": 4,
    "chunks": 100,
    "lattices": 2,
    "decode": 8,
    "score": 20,
}
"""Units of the smallest size by stage, see `toolkit.bench.growth.stages`."""
MOST_OF_TIME, MOST_OF_MEMORY = 1.05, 0.1
"""Targets: the largest exponents."""
TIME, MEMORY = "largest exponent of time", "largest exponent of memory"
QUICK = {"scale": 0.25}


def benchmark(scale: float = 1.0) -> Table:
    """Measure all stages, for `toolkit bench all`: the exponents as figures.

    Args:
      scale: factor of the sizes.
    """
    return as_table([measure(name, size) for name, size in _sizes(scale).items()])


def as_table(found: list[Growth]) -> Table:
    """Return exponents as figures of a table without rates."""
    figures = {TIME: max(g.of_time for g in found), MEMORY: max(g.of_memory for g in found)}
    for growth in found:
        figures[f"{growth.stage}: exponent of time"] = growth.of_time
        figures[f"{growth.stage}: exponent of memory"] = growth.of_memory
    return Table("", "", 1, (), "How cost grows with the data", figures=figures)


def _sizes(scale: float) -> dict[str, int]:
    return {name: max(1, round(scale * units)) for name, units in UNITS.items()}


def _print(found: list[Growth], clock: str = "processor seconds") -> None:
    from rich.console import Console
    from rich.table import Table as RichTable

    table = RichTable(
        title=f"Cost at {', '.join(map(str, FACTORS))} times the data",
        caption=f"Targets: exponents of at most {MOST_OF_TIME} in time and {MOST_OF_MEMORY} in "
        "memory. Memory is that of the whole process.",
        caption_justify="left",
    )
    table.add_column("stage")
    for name in (clock, "exponent", "MiB", "exponent"):
        table.add_column(name, justify="right")
    for growth in found:
        table.add_row(
            growth.stage,
            " ".join(f"{t:.2f}" for t in growth.seconds),
            f"{growth.of_time:.2f}",
            " ".join(f"{peak / 2**20:.0f}" for peak in growth.peak_bytes),
            f"{growth.of_memory:.3f}",
        )
    console = Console()
    if not console.is_terminal:
        console.width = 120  # a log file has room
    console.print(table)


@click.command("growth")
@click.option(
    "--only",
    type=click.Choice(list(UNITS)),
    multiple=True,
    metavar="STAGE",
    help=f"Measure this stage; may be repeated. Of {', '.join(UNITS)}.",
)
@click.option(
    "--scale",
    type=Number(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Factor of all sizes.",
)
@click.option(
    "--run",
    "runs",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    multiple=True,
    metavar="DIRECTORY",
    help="Measure nothing, but compare the stages of runs of a recipe on 1, 2, 4 and 8 times the"
    " data, given in this order, by their wall time.",
)
@click.option(
    "--json", "json_file", type=JSON_OUT, help="Also write the measurements to this file."
)
def command(
    only: tuple[str, ...], scale: float, runs: tuple[Path, ...], json_file: Path | None
) -> None:
    """Measure how time and memory of stages grow with 1, 2, 4 and 8 times as much made-up data.

    Each stage is measured in a process of its own, by processor time and peak resident size; with
    --run, stages of a recipe by wall time and the peak of all processes. Exponents are fitted: 1 is
    in proportion to the data, 0 does not grow.

    \b
    Example:
      toolkit bench growth --only score --scale 0.5
      toolkit bench growth --run exp/1 --run exp/2 --run exp/4 --run exp/8
    """
    from toolkit.storage.files import write_atomically

    if runs:
        if only or scale != 1.0:
            raise click.UsageError("--run measures nothing: --only and --scale do not go with it")
        found = growth_of_runs(runs)
        _print(found, "seconds")
    else:
        sizes = {name: size for name, size in _sizes(scale).items() if not only or name in only}
        found = [measure(name, size) for name, size in sizes.items()]
        _print(found)
    if json_file is not None:
        write_atomically(json_file, json.dumps([asdict(each) for each in found], indent=1) + "\n")
