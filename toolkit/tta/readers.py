"""Tuning of the number of record readers and the batch size for this machine (A11)."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

import numpy as np

from toolkit.environment import git_commit, machine, peak_bytes, versions
from toolkit.errors import ToolkitError
from toolkit.lang.units import Characters
from toolkit.processes.devices import torch_threads
from toolkit.processes.memory import is_fork_server
from toolkit.storage.files import write_atomically
from toolkit.train.config import ReaderConfig, TrainerConfig
from toolkit.train.ctc.readers import CtcBatch, RecordSource
from toolkit.train.ctc.records import RECORDS, Record, record_path, write_file

DIMENSION = 93
PER_FILE = 64
FRAMES = (200, 1670)
LABELS_PER_SECOND = 15


def write_synthetic_records(folder: Path, utterances: int, seed: int = 0) -> None:
    """Write utterances of 2 to 16.7 s, mostly long ones as in LibriSpeech: 12 s on average.

    Values have the mean and variance of log-mel energies, so that they compress about as well.
    """
    generator = np.random.default_rng(seed)
    shortest, longest = FRAMES
    # Beta(2.2, 1) has the mean 2.2 / 3.2 = 0.69: 200 + 0.69 * 1470 frames are 12 s.
    lengths = (shortest + (longest - shortest) * generator.beta(2.2, 1.0, utterances)).astype(int)
    files = range(0, utterances, PER_FILE)
    for number, first in enumerate(files):
        records = (
            (f"synthetic-{first + i:06d}", _record(int(frames), generator))
            for i, frames in enumerate(lengths[first : first + PER_FILE])
        )
        write_file(record_path(folder, number), "synthetic", records)
    manifest = {
        "symbols": Characters().symbols,
        "dimension": DIMENSION,
        "files": len(files),
        "utterances": utterances,
    }
    write_atomically(folder / RECORDS, json.dumps(manifest) + "\n")


def _record(frames: int, generator: np.random.Generator) -> Record:
    """Make a synthetic utterance."""
    features = generator.normal(12, 3, (frames, DIMENSION)).astype(np.float16)
    # 100 frames make a second; no label is the blank.
    labels = generator.integers(0, Characters().blank, frames * LABELS_PER_SECOND // 100)
    return Record(features, labels.astype(np.int32), 0, np.zeros(DIMENSION))


BATCHES_AHEAD = 4
"""Batches that a thread prepares ahead, as in the training loop."""


@dataclass(frozen=True)
class Setting:
    """A setting to measure."""

    records: Path
    """A folder of record files."""
    readers: ReaderConfig
    """Number of readers, buffer and batch size."""
    model: str = "none"
    """`none`: batches are read but not trained on; `paper`: the network of A12 and A13; or the
    folder of a trained network."""
    training: TrainerConfig = TrainerConfig(optimizer="adadelta", initial_rate=None)
    """`threads`, `amp`, `optimizer` and learning rate, as in the recipe's `train` section."""
    seconds: float = 10.0
    """Seconds of training, after a warm-up of up to half of that."""


@dataclass(frozen=True)
class Measurement:
    """The results of a setting."""

    readers: int
    batch: int
    rate: float
    """Utterances per second (A27)."""
    waiting: float
    """Share of the time in which training waited for data, 0 to 1."""
    memory: int
    """Sum of the peak memory of the training process and its readers in bytes; shared memory counts
    for each of them."""
    device_memory: int | None
    """Peak GPU memory of tensors in bytes; None without a GPU."""


def measure(setting: Setting) -> Measurement | None:
    """Train with a setting in a new process; None if it does not fit into memory."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        try:
            return process.submit(measure_here, setting).result()
        except (BrokenProcessPool, MemoryError):
            return None


def measure_here(setting: Setting) -> Measurement:
    """Train with a setting in this process.

    Raises:
      MemoryError: the setting does not fit into the memory of the GPU.
    """
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with (
        torch_threads(setting.training.threads),
        RecordSource(setting.records, setting.readers, seed=0) as source,
    ):
        step = _trainer(setting, source, device)
        try:
            trained, waited, seconds = _train(setting, source, step, device)
        except RuntimeError as error:
            if "out of memory" in str(error):  # GPU memory
                raise MemoryError from error
            raise
        memory = _peak_with_children()
    on_device = torch.cuda.max_memory_allocated() if device.type == "cuda" else None
    return Measurement(
        setting.readers.readers,
        setting.readers.utterances_per_batch,
        trained / seconds,
        waited / seconds,
        memory,
        on_device,
    )


def _train(
    setting: Setting, source: RecordSource, step: Callable[[CtcBatch], None], device: object
) -> tuple[int, float, float]:
    """Train; return the utterances, seconds of waiting and all seconds after the warm-up."""
    from toolkit.train.batches import prefetched

    batches: Iterator[CtcBatch] = (b for e in range(1_000_000) for b in source.batches(e))
    if device.type == "cuda":
        batches = (batch.pin() for batch in batches)
    ahead = prefetched(batches, BATCHES_AHEAD)
    try:
        # Warm up for at least two steps (allocations, compiled kernels), then until as many
        # batches are consumed as the buffer holds, but at most half of the measured time.
        started, warm = perf_counter(), 0
        while warm < 2 or (
            warm < setting.readers.buffer and perf_counter() - started < setting.seconds / 2
        ):
            step(next(ahead).to(device))
            warm += 1
        # Measure. `waited` is the time in `next`: a batch that is ready costs none.
        trained, waited, started = 0, 0.0, perf_counter()
        while perf_counter() - started < setting.seconds:
            begin = perf_counter()
            batch = next(ahead)
            waited += perf_counter() - begin
            step(batch.to(device))
            trained += len(batch.ids)
        return trained, waited, perf_counter() - started
    finally:
        ahead.close()


def _trainer(setting: Setting, source: RecordSource, device: object) -> Callable[[CtcBatch], None]:
    """Return a function that runs one training step and waits for its end."""
    if setting.model == "none":
        return lambda batch: None

    from toolkit.models.config import CtcConfig
    from toolkit.models.ctc import CtcModel
    from toolkit.models.store import load_model
    from toolkit.train.ctc.objective import CtcLoss
    from toolkit.train.trainer import Trainer

    if setting.model == "paper":
        config = CtcConfig(source.records.dimension, len(source.records.symbols))
        network = CtcModel(config)
    else:
        network = load_model(Path(setting.model))
    loss = CtcLoss(len(source.records.symbols) - 1)  # the blank is the last symbol
    out = setting.records / "unused"  # nothing is written
    trainer = Trainer(network.train(), loss, source, setting.training, out, device=device)

    def step(batch: CtcBatch) -> None:
        trainer.train_step(batch)["loss"].item()  # waits for the GPU

    return step


def _peak_with_children() -> int:
    """Return the peak memory of this process and its readers in bytes."""
    import psutil

    process = psutil.Process()
    # Readers are forked from a server, which is not a reader itself.
    servers = {child.pid for child in process.children() if is_fork_server(child)}
    readers = {child.pid for child in process.children(recursive=True)} - servers
    return peak_bytes() + sum(map(peak_bytes, readers))


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
      measured: measures a number of readers and a batch size, and returns None if they do not fit
        into memory.
      batch: first batch size.
      max_readers: 1, 2, 4, ... readers are tried, up to this.
      max_batch: the first batch size, twice that, ... are tried, up to this.
      memory: limit of main memory in bytes.

    Raises:
      ToolkitError: not even one reader fits into memory.
    """
    tried: list[Measurement] = []
    # First the readers, at the first batch size. One reader is measured even beyond the limit.
    for readers in _doubled(1, max_readers):
        measurement = measured(readers, batch)
        if measurement is None or (tried and measurement.memory > memory):
            break
        tried.append(measurement)
        if len(tried) > 1 and measurement.rate < (1 + GAIN) * tried[-2].rate:
            break
    if not tried:
        raise ToolkitError(
            f"batches of {batch} utterances do not fit into memory; try a smaller --batch"
        )
    start = _smallest_of_the_best(tried, lambda row: row.readers)
    # Then the batch, with the chosen readers.
    sizes, reason = [start], "the largest allowed"
    for size in _doubled(2 * batch, max_batch):
        measurement = measured(start.readers, size)
        if measurement is None or measurement.memory > memory:
            reason = f"{size} do not fit into memory"
            break
        tried.append(measurement)
        sizes.append(measurement)
        # Stop after two doublings without a gain, since one may be noise.
        if len(sizes) > 2 and measurement.rate < (1 + GAIN) * sizes[-3].rate:
            reason = "throughput stopped rising"
            break
    chosen = _smallest_of_the_best(sizes, lambda row: row.batch)
    if chosen.batch < sizes[-1].batch:
        reason = f"{sizes[-1].batch} fit, but do not raise the throughput"
    return TuningResult(tuple(tried), chosen.readers, chosen.batch, reason)


def _doubled(first: int, last: int) -> list[int]:
    """Return first, 2 first, 4 first, ... up to `last`."""
    return [first << n for n in range(max(0, last // first).bit_length())]


def _smallest_of_the_best(
    rows: Sequence[Measurement], size: Callable[[Measurement], int]
) -> Measurement:
    """Return the measurement with the smallest `size` among those nearly as fast as the best."""
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
    """Tune readers and batch size by short training runs, and print a table.

    Args:
      records: folder of record files; None: synthetic records are made.
      model: see `Setting`.
      config: its batch is the first that is tried.
      training: precision, optimizer and threads.
      max_readers: largest number of readers; None: two per CPU.
      max_batch: largest batch; None: 8 times the first.
      memory: limit of main memory in bytes; None: 80 % of what is free.
      seconds: length of each measurement.
      json_file: a file to write the results to as well.
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
            changed = replace(config, readers=readers, utterances_per_batch=batch)
            return measure(replace(setting, readers=changed))

        result = tune(
            measured,
            config.utterances_per_batch,
            max_readers or 2 * (os.cpu_count() or 1),
            max_batch or 8 * config.utterances_per_batch,
            int(limit),
        )
    _print(result, model)
    if json_file is not None:
        about = {"machine": machine(), "versions": versions(), "commit": git_commit()}
        settings = {**asdict(config), "model": model, "memory": limit, "seconds": seconds}
        settings |= {"threads": training.threads, "amp": training.amp}
        settings |= {"optimizer": training.optimizer}
        report = {**asdict(result), "settings": settings, **about}
        write_atomically(json_file, json.dumps(report, indent=1) + "\n")
    return result


def _print(tuned: TuningResult, model: str) -> None:
    """Print the measurements as a table."""
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
