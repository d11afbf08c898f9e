"""The command `toolkit bench scaling`: simulated scaling of data-parallel training methods."""

from pathlib import Path
from typing import get_args

import click

from toolkit.config.parameters import FILE, Number
from toolkit.parallel.simulator.run import OptimizerName

TUNED = "Held-out loss with the best of as many rates for every method and batch"
LATER = "Methods with momentum that came after the papers'"
SIMULATED = ("table1", "ibm", "stragglers", "frontier", "batches", "later")
STUDIES = (*SIMULATED, "validate")


@click.command("scaling")
@click.argument("studies", metavar="[STUDY]...", nargs=-1, type=click.Choice(STUDIES))
@click.option(
    "--out", type=FILE, default=Path("scaling"), show_default=True, help="Folder to write."
)
@click.option(
    "--run",
    type=FILE,
    help="Finished run directory whose frames are used; by default synthetic frames.",
)
@click.option(
    "--minibatches",
    type=click.IntRange(128),
    default=360_000,
    show_default=True,
    help="table1: minibatches of all workers; with --block 2, 11,720 stand for the paper's ten "
    "epochs of 1,000 h.",
)
@click.option(
    "--block",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="table1: minibatches per block of BMUF, in place of the paper's 100.",
)
@click.option(
    "--threshold",
    type=Number(0, min_open=True),
    default=8.0,
    show_default=True,
    help="table1: tau, the threshold of GTC.",
)
@click.option(
    "--optimizer",
    type=click.Choice(get_args(OptimizerName)),
    default="sgd",
    show_default=True,
    help="frontier: optimizer; the recipes use adam.",
)
@click.option(
    "--rate",
    type=Number(0, min_open=True),
    default=0.1,
    show_default=True,
    help="frontier: learning rate at batch 64.",
)
@click.option(
    "--epochs",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="frontier: number of epochs.",
)
@click.option("--first", default=512, show_default=True, help="frontier: smallest batch.")
@click.option("--largest", default=24_576, show_default=True, help="frontier: largest batch.")
@click.option(
    "--seeds",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="frontier: trainings per batch and method, of which the median counts.",
)
@click.option(
    "--step-seconds",
    type=Number(min=0.001),
    default=0.1,
    show_default=True,
    help="validate: seconds of a step. Processes sleep that long, as no machine has enough cores "
    "for all; on a busy machine take more.",
)
@click.option(
    "--processes",
    type=click.IntRange(2, 16),
    multiple=True,
    default=(2, 4),
    show_default=True,
    help="validate: number of processes; may be repeated.",
)
@click.option(
    "--method",
    "methods",
    multiple=True,
    help="validate: method, such as adpsgd or 'adpsgd random'; may be repeated. [default: all]",
)
@click.option(
    "--slower",
    type=Number(1),
    default=5.0,
    show_default=True,
    help="validate: how many times as slow the last process is in every second epoch.",
)
@click.option(
    "--steps",
    type=click.IntRange(4),
    default=60,
    show_default=True,
    help="validate: steps of each process in an epoch.",
)
@click.option(
    "--weights",
    type=click.IntRange(2),
    default=100_000,
    show_default=True,
    help="validate: weights of the model that is exchanged.",
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
    step_seconds: float,
    processes: tuple[int, ...],
    methods: tuple[str, ...],
    slower: float,
    steps: int,
    weights: int,
) -> None:
    """Simulate data-parallel training with many workers: real updates, simulated time.

    The workers really train a small network to classify frames. Times are simulated: a step takes
    an assumed time with the variation measured on this machine, a message the time that the network
    needs for the bytes of the real model.

    \b
    STUDY is one or more of these; by default all but the last:
      table1      accuracy and speed-up of GTC and BMUF: Table I of the million-hours paper
      ibm         training times on the cluster of the H-ADPSGD paper
      stragglers  the effect of one slow worker on each method
      frontier    the largest batch at which each method still converges
      batches     the same as the paper trained: LSTM, momentum, long warm-up,
                  as many rates tried for every method and batch
      later       64 workers with methods that came after the papers
      validate    epochs of 2 and 4 real processes on this machine, measured
                  and predicted; 15 minutes

    \b
    Examples:
      toolkit bench scaling table1 --run recipes/librispeech/exp/demo --out scaling
      toolkit bench scaling validate --processes 4 --method adpsgd --method hadpsgd
    """
    from toolkit.bench.scaling.batches import TunedBatches
    from toolkit.bench.scaling.frontier import Frontier
    from toolkit.bench.scaling.inputs import table1_inputs
    from toolkit.bench.scaling.later import Later
    from toolkit.bench.scaling.page import Results
    from toolkit.bench.scaling.processes import Load
    from toolkit.bench.scaling.studies import (
        PAPERS_MINIBATCHES,
        accuracy_variations,
        ibm,
        speedup_variations,
        stragglers,
        table1,
        table1_scenario,
    )
    from toolkit.bench.scaling.task import make_sequence_task, make_task, measured_shares
    from toolkit.bench.scaling.validate import HEADING, METHODS, note, table_rows, validate
    from toolkit.processes.threads import one_thread

    unknown = set(methods) - METHODS.keys()
    if unknown:
        raise click.BadParameter(
            f"{', '.join(sorted(unknown))}: known are {', '.join(METHODS)}", param_hint="--method"
        )
    try:
        study = Frontier(
            optimizer=optimizer,
            rate=rate,
            epochs=epochs,
            first=first,
            largest=largest,
            seeds=seeds,
        )
    except ValueError as error:
        raise click.UsageError(f"frontier: {error}") from error
    chosen = studies or SIMULATED
    with one_thread():
        shares = measured_shares()
        task = make_task(run) if {"table1", "frontier", "later"} & set(chosen) else None
        scenario = table1_scenario(minibatches, block, threshold, shares)
        results = Results()
        if "table1" in chosen:
            outcomes = table1(scenario, task, click.echo)
            short = table1_scenario(PAPERS_MINIBATCHES * block // 2, block, threshold, shares)
            densities = [outcome.density for outcome in outcomes if outcome.method == "gtc"]
            results.table1(
                outcomes,
                table1(short, task, click.echo),
                table1_inputs(scenario, task, synthetic=run is None),
                speedup_variations(scenario, densities),
                accuracy_variations(scenario, task, outcomes, click.echo),
            )
        if "ibm" in chosen:
            results.ibm(ibm(shares))
        if "stragglers" in chosen:
            results.stragglers(stragglers(shares))
        if "frontier" in chosen:
            results.frontier(study, list(study.trained(task, click.echo)))
        if "batches" in chosen:
            tuned = TunedBatches(shares=shares)
            rows = tuned.rows(list(tuned.trials(make_sequence_task(run), click.echo)))
            results.add_table("batches", "Large batches with tuned rates", TUNED, rows, tuned.note)
        if "later" in chosen:
            later = Later()
            rows = later.rows(list(later.outcomes(task, click.echo)))
            results.add_table("later", "Later methods", LATER, rows, later.note)
        if "validate" in chosen:
            load = Load(step_seconds, steps, slower, weights=weights)
            compared = validate(processes, load, click.echo, methods or tuple(METHODS))
            rows = table_rows(compared)
            results.add_table("validate", "Predicted and measured", HEADING, rows, note(load))
    results.write(out)
    click.echo(f"wrote {out / 'scaling.html'} and the CSVs beside it")
