"""Scaling of the methods of data-parallel training, simulated: `toolkit bench scaling`."""

from pathlib import Path
from typing import get_args

import click

from toolkit.config.parameters import FILE
from toolkit.parallel.simulator.optimizer import OptimizerName

STUDIES = ("table1", "ibm", "stragglers", "frontier")


@click.command("scaling")
@click.argument("studies", metavar="[STUDY]...", nargs=-1, type=click.Choice(STUDIES))
@click.option("--out", type=FILE, default=Path("scaling"), show_default=True, help="Folder.")
@click.option("--run", type=FILE, help="Finished run directory whose frames are classified.")
@click.option(
    "--minibatches",
    type=click.IntRange(128),
    default=360_000,
    show_default=True,
    help="Of table1, all workers'; with blocks of 2, 11,720 stand for 10 epochs of 1,000 h.",
)
@click.option(
    "--block",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="Of BMUF in table1, for one of 100.",
)
@click.option("--threshold", default=8.0, show_default=True, help="tau of GTC in table1.")
@click.option(
    "--optimizer",
    type=click.Choice(get_args(OptimizerName)),
    default="sgd",
    show_default=True,
    help="Of frontier; the recipes train with adam.",
)
@click.option(
    "--rate", default=0.1, show_default=True, help="Of frontier: learning rate with batch 64."
)
@click.option("--epochs", default=8, show_default=True, help="Of frontier.")
@click.option("--first", default=512, show_default=True, help="Smallest batch of frontier.")
@click.option("--largest", default=24_576, show_default=True, help="Largest batch of frontier.")
@click.option(
    "--seeds", type=click.IntRange(1), default=3, show_default=True, help="Of frontier; median."
)
def command(
    studies: tuple[str, ...],
    out: Path,
    run: Path | None,
    minibatches: int,
    block: int,
    threshold: float,
    optimizer: OptimizerName,
    rate: float,
    epochs: int,
    first: int,
    largest: int,
    seeds: int,
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
    from toolkit.bench.scaling.frontier import Frontier
    from toolkit.bench.scaling.inputs import table1_inputs
    from toolkit.bench.scaling.page import Results
    from toolkit.bench.scaling.studies import (
        accuracy_variations,
        ibm,
        speedup_variations,
        stragglers,
        table1,
        table1_scenario,
    )
    from toolkit.bench.scaling.task import make_task, measured_shares
    from toolkit.processes.threads import one_thread

    chosen = studies or STUDIES
    with one_thread():
        shares = measured_shares()
        task = make_task(run) if {"table1", "frontier"} & set(chosen) else None
        scenario = table1_scenario(minibatches, block, threshold, shares)
        results = Results()
        if "table1" in chosen:
            outcomes = table1(scenario, task, click.echo)
            densities = [outcome.density for outcome in outcomes if outcome.method == "gtc"]
            results.table1(
                outcomes,
                table1_inputs(scenario, task, made_up=run is None),
                speedup_variations(scenario, densities),
                accuracy_variations(scenario, task, outcomes, click.echo),
            )
        if "ibm" in chosen:
            results.ibm(ibm(shares))
        if "stragglers" in chosen:
            results.stragglers(stragglers(shares))
        if "frontier" in chosen:
            study = Frontier(
                optimizer=optimizer,
                rate=rate,
                epochs=epochs,
                first=first,
                largest=largest,
                seeds=seeds,
            )
            results.frontier(study, list(study.trained(task, click.echo)))
    results.write(out)
    click.echo(f"wrote {out / 'scaling.html'} and the CSVs beside it")
