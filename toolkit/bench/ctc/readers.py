"""Tuning of the number of record readers and the batch size for this machine (A11)."""

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import click

from toolkit.bench.ctc.throughput import Measurement, Setting, measure
from toolkit.bench.instruments.synthetic_records import write_synthetic_records
from toolkit.config.click_types import JSON_OUT, Number
from toolkit.environment import git_commit, machine, versions
from toolkit.storage.files import write_atomically
from toolkit.train.config import Amp, OptimizerName, TrainerConfig
from toolkit.train.ctc.readers import ReaderConfig

GAIN = 0.05
"""Smallest relative increase that counts as more throughput."""
SYNTHETIC_UTTERANCES = 512
"""Number of synthetic utterances: 1.7 h in 90 MB."""


@dataclass(frozen=True)
class TuningResult:
    """The measurements, and the chosen setting."""

    tried: tuple[Measurement, ...]
    """All measurements, in order."""
    readers: int
    batch: int
    reason: str
    """Why the batch is not larger."""


def tune(
    measured: Callable[[int, int], Measurement | None],
    batch: int,
    max_readers: int,
    max_batch: int,
    memory: int,
) -> TuningResult:
    """Add readers until throughput stops rising, then double the batch up to a limit of memory.

    The fewest readers and the smallest batch within 5 % of the best are chosen: more readers do
    not help once the buffer is full, and small batches regularise (A11).

    Args:
      measured: measures a number of readers and a batch size; None where they do not fit into
        memory.
      batch: first batch size.
      max_readers: 1, 2, 4, ... readers are tried, up to this.
      max_batch: the first batch size, twice that, ... are tried, up to this.
      memory: limit of main memory in bytes.

    Raises:
      click.ClickException: not even one reader fits.
    """
    tried: list[Measurement] = []
    for readers in _doubled(1, max_readers):
        measurement = measured(readers, batch)
        if measurement is None or (tried and measurement.memory > memory):
            break
        tried.append(measurement)
        if len(tried) > 1 and measurement.rate < (1 + GAIN) * tried[-2].rate:
            break
    if not tried:
        raise click.ClickException(f"batches of {batch} do not fit into memory; try a smaller one")
    start = _smallest_of_the_best(tried, lambda row: row.readers)
    sizes, reason = [start], "the largest allowed"
    for size in _doubled(2 * batch, max_batch):
        measurement = measured(start.readers, size)
        if measurement is None or measurement.memory > memory:
            reason = f"{size} do not fit into memory"
            break
        tried.append(measurement)
        sizes.append(measurement)
        if len(sizes) > 2 and measurement.rate < (1 + GAIN) * sizes[-3].rate:
            reason = "throughput stopped rising"
            break
    chosen = _smallest_of_the_best(sizes, lambda row: row.batch)
    if chosen.batch < sizes[-1].batch:
        reason = f"{sizes[-1].batch} fit, but give no more throughput"
    return TuningResult(tuple(tried), chosen.readers, chosen.batch, reason)


def _doubled(first: int, last: int) -> list[int]:
    return [first << n for n in range(max(0, last // first).bit_length())]


def _smallest_of_the_best(
    rows: Sequence[Measurement], size: Callable[[Measurement], int]
) -> Measurement:
    best = max(row.rate for row in rows)
    return min((row for row in rows if (1 + GAIN) * row.rate >= best), key=size)


FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


@click.command("readers")
@click.option(
    "--records", type=FOLDER, help="Folder of record files; by default synthetic ones are made."
)
@click.option(
    "--model",
    default="none",
    show_default=True,
    help="Network to train: `none` measures reading alone, `paper` is the paper's network of 25.6 "
    "million weights; or the folder of a trained CTC network.",
)
@click.option(
    "--threads",
    type=click.IntRange(1),
    help="Threads of training on a CPU; by default one per core.",
)
@click.option(
    "--amp",
    type=click.Choice(get_args(Amp)),
    default=TrainerConfig.amp,
    show_default=True,
    help="Precision of training; `auto` is the fastest that the device is made for.",
)
@click.option(
    "--optimizer",
    type=click.Choice(get_args(OptimizerName)),
    default="adadelta",
    show_default=True,
    help="Optimizer of training.",
)
@click.option(
    "--batch",
    type=click.IntRange(1),
    default=24,
    show_default=True,
    help="First batch size, in utterances.",
)
@click.option(
    "--max-batch",
    type=click.IntRange(1),
    help="Largest batch size to try; by default 8 times --batch.",
)
@click.option(
    "--max-readers",
    type=click.IntRange(1),
    help="Largest number of readers; by default two per CPU.",
)
@click.option(
    "--buffer",
    type=click.IntRange(1),
    default=40,
    show_default=True,
    help="Size of the buffer in batches.",
)
@click.option(
    "--pad-to",
    type=click.IntRange(1),
    help="Pad all utterances to this many frames, such as 1670; by default to the longest.",
)
@click.option(
    "--order",
    type=click.Choice(["shuffled", "buckets"]),
    default="shuffled",
    show_default=True,
    help="Order of utterances; `buckets` batches utterances of similar length.",
)
@click.option(
    "--memory",
    type=Number(0, min_open=True),
    help="Limit of main memory in GB; by default 80 % of the free memory.",
)
@click.option(
    "--seconds",
    type=Number(0, min_open=True),
    default=10.0,
    show_default=True,
    help="Seconds of each measurement.",
)
@click.option(
    "--json",
    "json_file",
    type=JSON_OUT,
    help="Also write the results to this file.",
)
def command(
    records: Path | None,
    model: str,
    threads: int | None,
    amp: Amp,
    optimizer: OptimizerName,
    batch: int,
    max_batch: int | None,
    max_readers: int | None,
    buffer: int,
    pad_to: int | None,
    order: Literal["shuffled", "buckets"],
    memory: float | None,
    seconds: float,
    json_file: Path | None,
) -> None:
    """Find the number of readers and the batch size for CTC training on this machine.

    Readers are processes that read training data from record files. They are added until throughput
    stops rising; then the batch is doubled up to a limit of memory. Every setting trains for some
    seconds in a process of its own, so that throughput includes waiting for data and readers that
    compete with training for the CPU. Set --threads, --amp and --optimizer as in the recipe's
    `train` section.

    \b
    Examples:
      toolkit bench readers
      toolkit bench readers --records exp/ctc/records/train --model paper --max-batch 192
    """
    import psutil

    if max_batch is not None and max_batch < batch:
        raise click.UsageError(f"--max-batch {max_batch} is below --batch {batch}")
    limit = psutil.virtual_memory().available * 0.8 if memory is None else memory * 1e9
    config = ReaderConfig(batch, buffer=buffer, pad_to=pad_to, order=order)
    training = TrainerConfig(optimizer=optimizer, initial_rate=None, amp=amp, threads=threads)
    most = max_readers or 2 * (os.cpu_count() or 1)
    with tempfile.TemporaryDirectory() as temporary:
        if records is None:
            write_synthetic_records(Path(temporary), SYNTHETIC_UTTERANCES)
        setting = Setting(records or Path(temporary), config, model, training, seconds)

        def measured(readers: int, size: int) -> Measurement | None:
            click.echo(f"readers {readers}, batch {size} ...", err=True)
            changed = replace(config, readers=readers, batch=size)
            return measure(replace(setting, readers=changed))

        tuned = tune(measured, batch, most, max_batch or 8 * batch, int(limit))
    _print(tuned, model)
    if json_file is not None:
        about = {"machine": machine(), "versions": versions(), "commit": git_commit()}
        settings = {**asdict(config), "model": model, "memory": limit, "seconds": seconds}
        settings |= {"threads": threads, "amp": amp, "optimizer": optimizer}
        plain = {**asdict(tuned), "settings": settings, **about}
        write_atomically(json_file, json.dumps(plain, indent=1) + "\n")


def _print(tuned: TuningResult, model: str) -> None:
    from rich.console import Console
    from rich.table import Table

    where = machine()
    table = Table(
        title=f"Training from record files, model: {model}",
        caption=f"{where['cpu']}, {where['cpus']} CPUs.\n{choice(tuned)}",
        caption_justify="left",
    )
    for name in ("readers", "batch", "utterances / s", "waiting", "memory GB", "GPU GB"):
        table.add_column(name, justify="right")
    for row in tuned.tried:
        table.add_row(
            str(row.readers),
            str(row.batch),
            f"{row.rate:.4g}",
            f"{100 * row.waiting:.0f} %",
            f"{row.memory / 1e9:.2f}",
            "" if row.device_memory is None else f"{row.device_memory / 1e9:.2f}",
        )
    console = Console()
    if not console.is_terminal:
        console.width = 120  # a log file has room
    console.print(table)


def choice(tuned: TuningResult) -> str:
    """Describe the chosen setting."""
    readers = "1 reader" if tuned.readers == 1 else f"{tuned.readers} readers"
    return f"Choice: {readers}, batch {tuned.batch} ({tuned.reason})."
