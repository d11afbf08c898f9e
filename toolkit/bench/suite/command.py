"""The command `toolkit bench all`: every ratio in one run."""

from datetime import datetime
from pathlib import Path

import click

from toolkit.config.click_types import FILE

INCLUDED = (
    "train",
    "train-ctc",
    "features",
    "decode",
    "lattice",
    "align",
    "compression",
    "score",
    "growth",
)
"""The benchmarks that need nothing but the toolkit, in this order."""
ON_DEVICE = INCLUDED[:5]
"""Those that measure what runs on a device."""
HISTORY, PAGE = "history.jsonl", "bench.html"


@click.command("all")
@click.option(
    "--only",
    type=click.Choice(INCLUDED),
    multiple=True,
    metavar="NAME",
    help=f"Run this benchmark; may be repeated. Of {', '.join(INCLUDED)}; without, all of them.",
)
@click.option("--quick", is_flag=True, help="Measure little: a smoke test of half a minute or two.")
@click.option(
    "--profile",
    "profiled",
    is_flag=True,
    help="Run what misses a target once more under py-spy, which draws OUT/NAME.svg.",
)
@click.option(
    "--device",
    metavar="NAME",
    help=f"Measure what runs on this device: cuda, cuda:1, ...; {', '.join(ON_DEVICE)} alone.",
)
@click.option("--out", type=FILE, default=Path("bench"), show_default=True, help="Folder to write.")
def command(
    only: tuple[str, ...], quick: bool, profiled: bool, device: str | None, out: Path
) -> None:
    """Run all benchmarks, compare them with targets and earlier runs, and write a page.

    Each runs in a process of its own. OUT/history.jsonl gets a line per run, and OUT/bench.html
    shows the last run beside those before it of the same size on such a machine. Other engines take
    part where they are installed. The machine should be idle.

    \b
    Example:
      toolkit bench all --quick
    """
    from toolkit.bench.instruments.harness import BenchmarkError
    from toolkit.bench.suite.history import SuiteRun, append, quantities, read
    from toolkit.bench.suite.measure import measure
    from toolkit.bench.suite.page import build_page, regressions_table, targets_table
    from toolkit.bench.suite.targets import missed
    from toolkit.processes.devices import choose_device
    from toolkit.processes.profiler import py_spy
    from toolkit.storage.files import write_atomically

    if device is not None:
        device = choose_device(device)
        if others := [name for name in only if name not in ON_DEVICE]:
            raise click.UsageError(f"{others[0]} measures nothing on a device: leave out --device")
    if profiled:
        py_spy(out)  # a missing one is told before minutes of work
    earlier = read(out / HISTORY)
    out.mkdir(parents=True, exist_ok=True)  # what cannot be written is found before minutes of work
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    run = SuiteRun(now, quick, {}, device=device)
    included = INCLUDED if device is None else ON_DEVICE
    for name in [name for name in included if not only or name in only]:
        try:
            found = run.measured[name] = measure(name, quick, None, device)
        except BenchmarkError as error:
            run.failed[name] = str(error)
            click.echo(str(error), err=True)
            continue
        click.echo(f"{name}: {found.seconds:.0f} s, {found.peak_bytes / 2**20:,.0f} MiB")
        if profiled and missed(name, found.table):
            measure(name, quick, (out / f"{name}.svg").absolute(), device)
            click.echo(f"{name}: where the time goes: {out / f'{name}.svg'}")
    append(out / HISTORY, run)
    runs = [*earlier, run]
    write_atomically(out / PAGE, build_page(runs).html())
    targets_table(run).print()
    if any(quantity.worse for quantity in quantities(runs)):
        regressions_table(quantities(runs)).print()
    click.echo(f"Wrote {out / PAGE}.")
    if run.failed:
        raise BenchmarkError(f"failed: {', '.join(run.failed)}; {out / PAGE} says why")
