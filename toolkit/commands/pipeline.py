"""The command `toolkit pipeline`."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.config.click_types import (
    AS_JSON,
    FILE,
    JSON_OUT,
    TEXT_IN,
    TEXT_OUT,
    Number,
    print_json,
)
from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from toolkit.pipeline.executor import Progress
    from toolkit.pipeline.objects import ObjectStore

ENDPOINT = click.option("--endpoint", help="URL of an S3 server other than Amazon's.")


@click.group()
def pipeline() -> None:
    """Plan, run and inspect the data pipeline.

    \b
    Example:
      toolkit pipeline plan --hours 1000000 --nodes 50 --rates rates.json

    The rates come from a finished run (`toolkit pipeline rates`) or from `toolkit pipeline
    measure`.
    """


@pipeline.command()
@click.option(
    "--hours",
    type=Number(0, min_open=True),
    default=1e6,
    show_default=True,
    help="Hours of audio.",
)
@click.option(
    "--nodes", type=click.IntRange(1), default=50, show_default=True, help="Nodes of the cluster."
)
@click.option(
    "--cores", type=click.IntRange(1), default=16, show_default=True, help="CPU cores per node."
)
@click.option("--gpus", type=click.IntRange(0), default=8, show_default=True, help="GPUs per node.")
@click.option(
    "--price",
    type=Number(0),
    default=0.0,
    help="Price of a node per hour. With 0, costs are omitted.",
)
@click.option(
    "--latency",
    type=Number(0),
    default=0.2,
    show_default=True,
    help="Latency of object storage, in seconds per call.",
)
@click.option(
    "--bandwidth",
    type=Number(0, min_open=True),
    default=50.0,
    show_default=True,
    help="Bandwidth of object storage, in MB/s per call.",
)
@click.option(
    "--network",
    type=Number(0, min_open=True),
    default=10.0,
    show_default=True,
    help="Network bandwidth of a node, in Gbit/s.",
)
@click.option(
    "--rates",
    "rates_file",
    type=TEXT_IN,
    help="File with the speed of each step, written by `toolkit pipeline rates` or `toolkit "
    "pipeline measure`.",
)
@click.option(
    "--gpu-speed",
    type=Number(0, min_open=True),
    help="Speed of target generation on a GPU, in hours of audio per hour.",
)
@click.option(
    "--fuse/--no-fuse",
    default=True,
    show_default=True,
    help="Run extraction, shuffling and statistics as one step.",
)
@click.option(
    "--aggregated/--single",
    default=True,
    show_default=True,
    help="Whether an object in the data lake holds the audio of many utterances or of one.",
)
@click.option(
    "--hours-per-file",
    type=Number(0, min_open=True),
    default=5.0,
    show_default=True,
    help="Hours of audio per partition.",
)
@click.option("--page", type=TEXT_OUT, help="Also write the plan to this file, as an HTML page.")
@click.option(
    "--json",
    "json_file",
    type=JSON_OUT,
    help="Also write the plan to this file. With -, prints the plan to standard output and the "
    "tables to standard error.",
)
def plan(
    hours: float,
    nodes: int,
    cores: int,
    gpus: int,
    price: float,
    latency: float,
    bandwidth: float,
    network: float,
    rates_file: Path | None,
    gpu_speed: float | None,
    fuse: bool,
    aggregated: bool,
    hours_per_file: float,
    page: Path | None,
    json_file: Path | None,
) -> None:
    """Predict the time, cost, storage calls and bytes of a run.

    Prints the figures of the million-hours paper beside the prediction. Without --rates, the
    command first measures the speed of each step on noise, which takes about a minute. The
    prediction is more accurate with the speeds of a pilot run on a few hours of your audio:
    `toolkit pipeline rates` writes them to a file for --rates. The prediction assumes that targets
    are generated on CPU cores. With --gpu-speed, it assumes GPUs.

    \b
    Example:
      toolkit pipeline plan --hours 7000 --nodes 8 --gpu-speed 400 --rates rates.json
    """
    from toolkit.pipeline.plan import Cluster
    from toolkit.pipeline.plan import plan as make_plan
    from toolkit.pipeline.rates import FUSIBLE, Rates
    from toolkit.pipeline.report import PlanReport, plan_page, print_plan, write_plan
    from toolkit.storage.files import write_atomically

    # 1. The speed of each step: measured here on noise, or read from a file.
    if rates_file is None:
        from toolkit.pipeline.measure import measure_steps

        rates = measure_steps(repeats=1).rates
    else:
        rates = Rates.load(rates_file)
    if gpu_speed is not None:
        rates = rates.with_speed("targets", gpu_speed, device=True)
    # 2. The cluster, in bytes and seconds: --network is in Gbit/s, --bandwidth in MB/s.
    cluster = Cluster(
        nodes=nodes,
        cores=cores,
        devices=gpus if gpu_speed is not None else 0,  # without a speed the GPUs stay idle
        price=price,
        network=network * 1e9 / 8,
        latency=latency,
        bandwidth=bandwidth * 1e6,
    )
    chosen = make_plan(hours, cluster, rates, hours_per_file, fuse=fuse, aggregated=aggregated)
    # 3. "What does fusing save?" The same plan the other way, if each step has a rate of its own.
    alternative = None
    if all(name in rates.steps for name in FUSIBLE):
        alternative = make_plan(
            hours, cluster, rates, hours_per_file, fuse=not fuse, aggregated=aggregated
        )
    report = PlanReport(chosen, alternative, rates)
    print_plan(report)
    if page is not None:
        write_atomically(page, plan_page(report))
    if json_file is not None:
        write_plan(chosen, rates, json_file)


@pipeline.command()
@click.option(
    "--minutes", type=Number(0.2), default=6.0, show_default=True, help="Minutes of audio."
)
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Number of timed repetitions.",
)
@click.option(
    "--out", type=JSON_OUT, help="Write the speeds to this file, for `toolkit pipeline plan`."
)
def measure(minutes: float, repeats: int, out: Path | None) -> None:
    """Measure the speed of every step on this machine.

    Runs each step on noise, on one core. Prints how many seconds of audio each step processes per
    second of CPU time, and the ratio of this speed to that of the front end alone. With --out, the
    command writes the speeds and the bytes per hour of audio to a file for `toolkit pipeline plan`.

    \b
    Example:
      toolkit pipeline measure --minutes 2 --out rates.json
    """
    from toolkit.pipeline.measure import measure_steps

    steps = measure_steps(minutes, repeats)
    steps.print()
    if out is not None:
        steps.rates.save(out)


@pipeline.command("rates")
@click.argument("outputs", nargs=-1, required=True)
@click.option("--out", type=TEXT_OUT, required=True, help="File of rates to write.")
@ENDPOINT
def measured_rates(outputs: tuple[str, ...], out: Path, endpoint: str | None) -> None:
    """Write the speed of each step of a finished run.

    `toolkit pipeline plan` reads these speeds. OUTPUTS are the prefixes (URLs or folders) to which
    the steps of one run wrote. The unit of a speed is hours of audio per core-hour of CPU time, or
    per GPU-hour. The 95 % interval of a speed is computed from the differences between partitions.
    A pilot run of ten or more partitions is enough to predict the duration of a large run.

    \b
    Example:
      toolkit pipeline rates work/features work/targets --out rates.json
    """
    from toolkit.pipeline.rates import rates_of_runs

    rates = rates_of_runs(_store(endpoint), outputs)
    rates.save(out)
    for name, rate in rates.steps.items():
        # The interval can be open above; with too few partitions there is none.
        upper = "any" if rate.high is None else f"{rate.high:,.1f}"
        ends = "" if rate.low is None else f" ({rate.low:,.1f} to {upper})"
        where = "GPU" if rate.device else "core"
        speed = f"{rate.speed:,.1f}{ends} h of audio per {where}-hour"
        click.echo(f"{name}: {speed}, measured on {rate.measured_on}")


@pipeline.command()
@AS_JSON
@click.option("--page", type=TEXT_OUT, help="Also write the summary to this file, as an HTML page.")
@click.argument("plan_file", metavar="PLAN", type=FILE)
def run(as_json: bool, page: Path | None, plan_file: Path) -> None:
    """Run the pipeline from a lake to training shards.

    PLAN is a YAML file with the keys `lake`, `out`, `steps` (features, targets), `jobs`, `executor`
    (kind: local or spark), `teacher` and `normaliser` (for targets), and sections with the settings
    of the steps. The same command continues an interrupted run. Progress goes to standard error.
    At the end the command prints a summary of the steps, even if it skipped partitions after
    repeated failures.

    \b
    Example:
      toolkit pipeline run plan.yaml --page summary.html
    """
    from toolkit.pipeline.executor import read_summary
    from toolkit.pipeline.objects import ObjectStore
    from toolkit.pipeline.prepare import read_plan, run_plan
    from toolkit.pipeline.report import run_totals, summary_page, summary_text, totals_text
    from toolkit.storage.files import write_atomically

    plan = read_plan(plan_file)
    # `run_plan` adds the prefix of each step as it begins, so the summary names those that began.
    outs: list[str] = []
    try:
        run_plan(plan, outs, _progress_line)
    finally:
        store = ObjectStore(plan.executor.settings.store)
        # Print the summaries after a failure too: they say which partitions failed, and why.
        failed = sys.exc_info()[0] is not None
        summary_by_output = {}
        for out in outs:
            try:
                summary_by_output[out] = read_summary(store, out)
            except ToolkitError:
                # An unreadable summary must not hide the first error.
                if not failed:
                    raise
        summaries = [content for content in summary_by_output.values() if content is not None]
        totals = run_totals(summaries)
        if as_json:
            _print_summaries(summary_by_output, totals)
        else:
            for content in summaries:
                click.echo(summary_text(content))
            click.echo(totals_text(totals))
        if page is not None:
            write_atomically(page, summary_page(summaries))


def _print_summaries(summary_by_output: Mapping[str, Any], totals: Mapping[str, float]) -> None:
    """Print the summaries of steps, by what they wrote to, and their totals as JSON."""
    steps = [{"out": out, **content} for out, content in summary_by_output.items() if content]
    print_json({"steps": steps, "total": totals})


def _progress_line(progress: "Progress") -> None:
    """Print the progress where no bar is shown, at most a hundred times per step."""
    often = -(-progress.total // 100)  # rounded up: every n-th partition gets a line
    if not sys.stderr.isatty() and (progress.done % often == 0 or progress.done == progress.total):
        click.echo(progress.line(), err=True)


@pipeline.command()
@AS_JSON
@click.argument("outputs", nargs=-1, required=True)
@click.option("--page", type=TEXT_OUT, help="Also write the state to this file, as an HTML page.")
@ENDPOINT
@click.pass_context
def summary(
    ctx: click.Context,
    as_json: bool,
    outputs: tuple[str, ...],
    page: Path | None,
    endpoint: str | None,
) -> None:
    """Show the state of the steps of a run.

    Counts the partitions that are done, missing or failed. OUTPUTS are the prefixes (URLs or
    folders) to which the steps wrote. The exit status is 1 if a step has missing partitions, or
    partitions that it skipped after repeated failures.

    \b
    Example:
      toolkit pipeline summary lake/selected lake/features --page summary.html
    """
    from toolkit.pipeline.executor import read_summary
    from toolkit.pipeline.report import run_totals, summary_page, summary_text
    from toolkit.storage.files import write_atomically

    store = _store(endpoint)
    summary_by_output = {out: read_summary(store, out) for out in outputs}
    for out, content in summary_by_output.items():
        if content is None:
            reason = "no step has ended there. Give the folder or URL of a step's output"
            click.echo(f"Error: {out} contains no summary: {reason}", err=True)
    summaries = [content for content in summary_by_output.values() if content is not None]
    if as_json:
        _print_summaries(summary_by_output, run_totals(summaries))
    else:
        for content in summaries:
            click.echo(summary_text(content))
    if page is not None:
        write_atomically(page, summary_page(summaries))
    # "Can I go on?" Only if every prefix has a summary and no partition is missing or failed.
    complete = len(summaries) == len(summary_by_output) and all(
        s["done"] == s["partitions"] for s in summaries
    )
    ctx.exit(0 if complete else 1)


def _store(endpoint: str | None) -> "ObjectStore":
    """Return the store with the outputs of a run."""
    from toolkit.pipeline.config import StoreConfig
    from toolkit.pipeline.objects import ObjectStore

    return ObjectStore(StoreConfig({} if endpoint is None else {"endpoint_url": endpoint}))
