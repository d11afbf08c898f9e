"""Tuning of the number of record readers and the batch size for this machine (A11)."""

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from toolkit.environment import git_commit, machine, versions
from toolkit.errors import ToolkitError
from toolkit.storage.files import write_atomically
from toolkit.train.config import TrainerConfig
from toolkit.train.ctc.readers import ReaderConfig
from toolkit.tta.synthetic_records import write_synthetic_records
from toolkit.tta.throughput import Measurement, Setting, measure

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
      ToolkitError: not even one reader fits.
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
        raise ToolkitError(f"batches of {batch} do not fit into memory; try a smaller one")
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


def tune_readers(
    records: Path | None,
    model: str,
    config: ReaderConfig,
    training: TrainerConfig,
    max_readers: int | None = None,
    max_batch: int | None = None,
    memory: float | None = None,
    seconds: float = 10.0,
    json_file: Path | None = None,
    progress: Callable[[str], None] = print,
) -> TuningResult:
    """Tune readers and batch size by short trainings, and print a table.

    Args:
      records: folder of record files; None: synthetic ones are made.
      model: see `Setting`.
      config: its batch is the first that is tried.
      training: precision, optimizer and threads.
      max_readers: largest number of readers; None: two per CPU.
      max_batch: largest batch; None: 8 times the first.
      memory: limit of main memory in bytes; None: 80 % of what is free.
      seconds: length of each measurement.
      json_file: also gets the results.
      progress: called with each setting before it is measured.

    Raises:
      ToolkitError: not even one reader fits into the memory.
    """
    import psutil

    limit = psutil.virtual_memory().available * 0.8 if memory is None else memory
    with tempfile.TemporaryDirectory() as temporary:
        if records is None:
            write_synthetic_records(Path(temporary), SYNTHETIC_UTTERANCES)
        setting = Setting(records or Path(temporary), config, model, training, seconds)

        def measured(readers: int, batch: int) -> Measurement | None:
            progress(f"readers {readers}, batch {batch} ...")
            changed = replace(config, readers=readers, batch=batch)
            return measure(replace(setting, readers=changed))

        result = tune(
            measured,
            config.batch,
            max_readers or 2 * (os.cpu_count() or 1),
            max_batch or 8 * config.batch,
            int(limit),
        )
    _print(result, model)
    if json_file is not None:
        about = {"machine": machine(), "versions": versions(), "commit": git_commit()}
        settings = {**asdict(config), "model": model, "memory": limit, "seconds": seconds}
        settings |= {"threads": training.threads, "amp": training.amp}
        settings |= {"optimizer": training.optimizer}
        plain = {**asdict(result), "settings": settings, **about}
        write_atomically(json_file, json.dumps(plain, indent=1) + "\n")
    return result


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
