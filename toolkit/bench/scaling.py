"""Scaling of the methods of data-parallel training, simulated: `toolkit bench scaling`."""

from pathlib import Path

import click

from toolkit.commands import FILE

STUDIES = ("table1", "ibm", "stragglers", "frontier")


@click.command("scaling")
@click.argument("studies", metavar="[STUDY]...", nargs=-1, type=click.Choice(STUDIES))
@click.option("--out", type=FILE, default=Path("scaling"), show_default=True, help="Folder.")
@click.option("--run", type=FILE, help="Finished run directory whose frames are classified.")
@click.option("--minibatches", default=360_000, show_default=True, help="Of table1, all workers'.")
@click.option("--block", default=2, show_default=True, help="Of BMUF in table1, for one of 100.")
@click.option("--threshold", default=7.0, show_default=True, help="tau of GTC in table1.")
@click.option("--epochs", default=8, show_default=True, help="Of frontier.")
@click.option("--largest", default=16_384, show_default=True, help="Largest batch of frontier.")
def command(
    studies: tuple[str, ...],
    out: Path,
    run: Path | None,
    minibatches: int,
    block: int,
    threshold: float,
    epochs: int,
    largest: int,
) -> None:
    """Simulate many workers: the methods' mathematics is real, time is virtual.

    Learners train a small network to classify frames, made up or those of a finished run; a step
    takes what is given, with the variation measured here; messages take what the network needs for
    the bytes of the real model. STUDY is one of table1 (C31), ibm (B4-B6), stragglers and frontier
    (B2); all by default.

    \b
    Example:
      toolkit bench scaling table1 --run recipes/librispeech/exp/demo --out scaling
    """
    from toolkit.bench.scaling_page import Results
    from toolkit.bench.scaling_studies import (
        Frontier,
        ibm,
        stragglers,
        table1,
        table1_scenario,
        variations,
    )
    from toolkit.bench.scaling_task import make_task, measured_shares
    from toolkit.stages.threads import one_thread

    chosen = studies or STUDIES
    with one_thread():
        shares = measured_shares()
        task = make_task(run) if {"table1", "frontier"} & set(chosen) else None
        scenario = table1_scenario(minibatches, block, threshold, shares)
        results = Results(_inputs(scenario, shares))
        if "table1" in chosen:
            outcomes = table1(scenario, task, click.echo)
            densities = [outcome.density for outcome in outcomes if outcome.method == "gtc"]
            results.table1(outcomes, variations(scenario, densities))
        if "ibm" in chosen:
            results.ibm(ibm(shares))
        if "stragglers" in chosen:
            results.stragglers(stragglers(shares))
        if "frontier" in chosen:
            study = Frontier(epochs=epochs, largest=largest)
            results.frontier(study, list(study.trained(task, click.echo)))
    results.write(out)
    click.echo(f"wrote {out / 'scaling.html'} and the CSVs beside it")


def _inputs(scenario, shares: tuple[float, ...]) -> list[str]:  # noqa: ANN001
    """Say in words what goes into Table I."""
    times, network = scenario.times, scenario.network
    return [
        f"A minibatch takes {times.seconds:g} s, workers' own means spread by "
        f"{100 * times.spread:g} %, single steps from {min(shares):.2f} to {max(shares):.2f} times "
        "that (measured here).",
        f"{network.per_host} workers per host, {network.inside:g} Gbit/s inside, "
        f"{network.between:g} Gbit/s per host and {network.core:g} for all hosts together.",
        f"BMUF's blocks of {scenario.bmuf.block} minibatches stand for 100, and so the "
        f"{scenario.minibatches:,} minibatches for {scenario.stands_for:g} times as many. "
        f"GTC's threshold is {scenario.gtc.threshold:g} on sums over {scenario.frames} frames.",
    ]
