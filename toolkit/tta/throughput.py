"""Measurement of CTC training from record files: throughput, waiting for data and memory."""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

from toolkit.environment import peak_bytes
from toolkit.processes.context import server_pid
from toolkit.processes.threads import torch_threads
from toolkit.train.config import TrainerConfig, make_optimizer
from toolkit.train.ctc.batch import CtcBatch
from toolkit.train.ctc.readers import ReaderConfig, RecordSource

BATCHES_AHEAD = 4  # as in the training loop


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
    """Train with a setting in a process of its own; None where it does not fit into memory."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        try:
            return process.submit(measure_here, setting).result()
        except (BrokenProcessPool, MemoryError):
            return None


def measure_here(setting: Setting) -> Measurement:
    """Train with a setting in this process.

    Raises:
      MemoryError: it does not fit into the memory of the GPU.
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
        setting.readers.batch,
        trained / seconds,
        waited / seconds,
        memory,
        on_device,
    )


def _train(
    setting: Setting, source: RecordSource, step: Callable[[CtcBatch], None], device: object
) -> tuple[int, float, float]:
    """Return utterances, seconds of waiting and seconds in all, after the warm-up."""
    from toolkit.train.prefetch import prefetched

    batches: Iterator[CtcBatch] = (b for e in range(1_000_000) for b in source.batches(e))
    if device.type == "cuda":
        batches = (batch.pin() for batch in batches)
    ahead = prefetched(batches, BATCHES_AHEAD)
    try:
        started, warm = perf_counter(), 0
        while warm < 2 or (
            warm < setting.readers.buffer and perf_counter() - started < setting.seconds / 2
        ):
            step(next(ahead).to(device))
            warm += 1
        trained, waited, started = 0, 0.0, perf_counter()
        while perf_counter() - started < setting.seconds:
            before = perf_counter()
            batch = next(ahead)
            waited += perf_counter() - before
            step(batch.to(device))
            trained += len(batch.ids)
        return trained, waited, perf_counter() - started
    finally:
        ahead.close()


def _trainer(setting: Setting, source: RecordSource, device: object) -> Callable[[CtcBatch], None]:
    """Return a function that runs one training step and waits for its end."""
    if setting.model == "none":
        return lambda batch: None

    from toolkit.models.ctc import CtcConfig, CtcModel
    from toolkit.models.store import load_model
    from toolkit.train.ctc.objective import CtcObjective
    from toolkit.train.precision import Precision

    if setting.model == "paper":
        config = CtcConfig(source.records.dimension, len(source.records.symbols))
        network = CtcModel(config)
    else:
        network = load_model(Path(setting.model))
    network.to(device).train()
    objective = CtcObjective(len(source.records.symbols) - 1)
    optimizer = make_optimizer(network, setting.training)
    precision = Precision(setting.training, device, world_size=1)

    def step(batch: CtcBatch) -> None:
        optimizer.zero_grad(set_to_none=True)
        with precision.autocast():
            loss, stats = objective(network, batch)
        precision.scaled(loss / stats["weight"]).backward()
        optimizer.step()
        loss.item()

    return step


def _peak_with_children() -> int:
    import psutil

    children = psutil.Process().children(recursive=True)
    readers = (child.pid for child in children if child.pid != server_pid())
    return peak_bytes() + sum(map(peak_bytes, readers))
