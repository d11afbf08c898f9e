"""The command `toolkit scaling`: simulated scaling of data-parallel training methods."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.config.click_types import FILE, Number

if TYPE_CHECKING:
    from toolkit.scaling.simulator.run import OptimizerName

STUDIES = ("table1", "ibm", "stragglers", "frontier", "batches", "later", "validate")
"""The studies; all but the last, which is slow, are the default."""


@click.command()
@click.argument("studies", metavar="[STUDY]...", nargs=-1, type=click.Choice(STUDIES))
@click.option(
    "--out", type=FILE, default=Path("scaling"), show_default=True, help="Folder to write."
)
@click.option(
    "--run",
    type=FILE,
    help="Finished run directory whose frames the workers train on; default: synthetic frames.",
)
@click.option(
    "--minibatches",
    type=click.IntRange(128),
    default=360_000,
    show_default=True,
    help="Total number of minibatches over all workers (`table1` only). With --block 2, 11,720 "
    "minibatches represent the training in the million-hours paper: ten epochs of 1,000 h.",
)
@click.option(
    "--block",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="Minibatches per BMUF block (`table1` only). The million-hours paper uses 100.",
)
@click.option(
    "--threshold",
    type=Number(0, min_open=True),
    default=8.0,
    show_default=True,
    help="The GTC threshold, tau (`table1` only).",
)
@click.option(
    "--optimizer",
    type=click.Choice(("sgd", "momentum", "adam")),
    default="sgd",
    show_default=True,
    help="Optimizer (`frontier` only). The recipes use adam.",
)
@click.option(
    "--rate",
    type=Number(0, min_open=True),
    default=0.1,
    show_default=True,
    help="Learning rate at batch size 64 (`frontier` only).",
)
@click.option(
    "--epochs",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Number of epochs (`frontier` only).",
)
@click.option(
    "--first", default=512, show_default=True, help="Smallest batch size (`frontier` only)."
)
@click.option(
    "--largest", default=24_576, show_default=True, help="Largest batch size (`frontier` only)."
)
@click.option(
    "--seeds",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Number of training runs per batch size and method (`frontier` only). The result is their "
    "median.",
)
@click.option(
    "--step-seconds",
    type=Number(min=0.001),
    default=0.1,
    show_default=True,
    help="Duration of a training step in seconds (`validate` only). The processes sleep instead of "
    "computing, because there may be more processes than cores. Increase the duration on a busy "
    "machine.",
)
@click.option(
    "--processes",
    type=click.IntRange(2, 16),
    multiple=True,
    default=(2, 4),
    show_default=True,
    help="Number of processes (`validate` only); may be repeated.",
)
@click.option(
    "--method",
    "methods",
    multiple=True,
    help="Method, such as adpsgd or 'adpsgd random' (`validate` only); may be repeated. "
    "[default: all]",
)
@click.option(
    "--slower",
    type=Number(1),
    default=5.0,
    show_default=True,
    help="Slowdown factor of the last process in every second epoch (`validate` only).",
)
@click.option(
    "--steps",
    type=click.IntRange(4),
    default=60,
    show_default=True,
    help="Number of steps of each process per epoch (`validate` only).",
)
@click.option(
    "--weights",
    type=click.IntRange(2),
    default=100_000,
    show_default=True,
    help="Number of weights that the processes exchange (`validate` only).",
)
def scaling(
    studies: tuple[str, ...],
    out: Path,
    run: Path | None,
    minibatches: int,
    block: int,
    threshold: float,
    optimizer: "OptimizerName",
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
    """Simulate data-parallel training with many workers.

    The workers really train a small network to classify frames; only the durations are simulated. A
    step takes an assumed time, with the variation that was measured on this machine. A message
    takes as long as the network needs to transfer the bytes of the full-size model.

    \b
    STUDY is one or more of these; by default all but the last:
      table1      accuracy and speed-up of GTC and BMUF: Table I of the million-hours paper
      ibm         training times on the cluster of the H-ADPSGD paper
      stragglers  the effect of one slow worker on each method
      frontier    the largest batch at which each method still converges
      batches     as frontier, but with an LSTM, momentum and a long warm-up as
                  in the paper; tries the same number of learning rates for
                  each method and batch
      later       64 workers with methods that are newer than the papers
      validate    measured and predicted durations of epochs with 2 and 4 real
                  processes on this machine; takes 15 minutes

    \b
    Examples:
      toolkit scaling table1 --run recipes/librispeech/exp/demo --out scaling
      toolkit scaling validate --processes 4 --method adpsgd --method hadpsgd
    """
    from toolkit.scaling.page import Table1, Validation, write_studies
    from toolkit.scaling.real_processes import METHODS, Load
    from toolkit.scaling.studies import Frontier

    # Check the options of all studies first: the studies before a faulty one may take hours.
    unknown = set(methods) - METHODS.keys()
    if unknown:
        raise click.BadParameter(
            f"unknown method {', '.join(sorted(unknown))}: choose from {', '.join(METHODS)}",
            param_hint="--method",
        )
    try:
        frontier = Frontier(
            optimizer=optimizer,
            rate=rate,
            epochs=epochs,
            first=first,
            largest=largest,
            seeds=seeds,
        )
    except ValueError as error:
        raise click.UsageError(f"frontier: {error}") from error
    load = Load(step_seconds, steps, slower, weights=weights)
    write_studies(
        # The last study, `validate`, takes a quarter of an hour: it runs only if it is named.
        studies or STUDIES[:-1],
        out,
        run,
        Table1(minibatches, block, threshold),
        frontier,
        Validation(load, processes, methods or tuple(METHODS)),
        click.echo,
    )
    click.echo(f"wrote {out / 'scaling.html'} and the CSV files beside it")
