"""`toolkit bench`: a subcommand for each benchmark in `toolkit/bench`."""

import importlib
import inspect
import json
from pathlib import Path
from types import ModuleType

import click

from toolkit.bench import BENCHMARKS
from toolkit.config.click_types import JSON_OUT


class _Benchmarks(click.Group):
    """One subcommand per benchmark.

    A module that defines `command` is run with its own options; one that defines only
    `benchmark()`, which returns a table, gets the options common to all tables, and `--device` if
    its benchmark takes one. `--json -` prints JSON, and the table on standard error.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(BENCHMARKS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in BENCHMARKS:
            return None
        module = importlib.import_module(f"toolkit.bench.{BENCHMARKS[cmd_name]}")
        return getattr(module, "command", None) or _table_command(cmd_name, module)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Benchmarks"):
            formatter.write_text(", ".join(self.list_commands(ctx)))


def _table_command(name: str, module: ModuleType) -> click.Command:
    example = f"\b\nExample:\n  toolkit bench {name} --json {name}.json"

    @click.command(name, help=f"{module.__doc__}\n\n{example}")
    @click.option("--json", "json_file", type=JSON_OUT, help="Also write the table to this file.")
    def run(json_file: Path | None, device: str | None = None) -> None:
        from toolkit.processes.devices import choose_device
        from toolkit.storage.files import write_atomically

        table = (
            module.benchmark() if device is None else module.benchmark(device=choose_device(device))
        )
        table.print()
        if json_file is not None:
            write_atomically(json_file, json.dumps(table.to_json(), indent=1) + "\n")

    if "device" not in inspect.signature(module.benchmark).parameters:
        return run
    about = "Measure what runs on this device: cuda, cuda:1, ...; without, as described above."
    return click.option("--device", metavar="NAME", help=about)(run)


@click.group(cls=_Benchmarks, subcommand_metavar="NAME [OPTIONS]")
def bench() -> None:
    """Run a benchmark.

    Programs that are compared run in turns, so that load from other processes slows all of them
    alike; results are printed as ratios. `toolkit bench NAME --help` describes a benchmark.

    \b
    Example:
      toolkit bench features --json features.json
    """
