"""Epochs of real processes whose steps take a known time, with and without a slow worker."""

import multiprocessing
import os
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

import torch
from torch import Tensor, nn

from toolkit.errors import ToolkitError
from toolkit.parallel.batch import Batch
from toolkit.parallel.config import ParallelConfig, make_strategy
from toolkit.parallel.process_group import Workers
from toolkit.parallel.strategy import SingleProcess
from toolkit.processes.workers import start_worker
from toolkit.train.config import TrainerConfig
from toolkit.train.loop import Trainer

ALONE = "alone"
"""In place of a method: every process trains on its own, all at the same time."""
EXCHANGES = 20  # of which the median is measured
LONGEST_RUN = 1800.0  # seconds


@dataclass(frozen=True)
class Load:
    """What every process computes: nothing, for as long as it is told to."""

    seconds: float = 0.1
    """Seconds of a step."""
    steps: int = 60
    """Steps of a worker in an epoch."""
    factor: float = 5.0
    """How many times as long the steps of the last worker take in every second epoch."""
    rounds: int = 1
    """Epochs without and with the slow worker, in turns, of which the medians count."""
    weights: int = 100_000
    """Weights of the model."""


@dataclass(frozen=True)
class Measured:
    """The epochs of one method."""

    even: float
    """Seconds of an epoch in which all workers are equally fast."""
    slow: float
    """Seconds of an epoch with a slow worker."""


@dataclass(frozen=True)
class Machine:
    """What so many processes measure on this machine."""

    epochs: dict[str, Measured]
    """By method; under `ALONE` the mean over the processes, and the slow one's."""
    reduction: float
    """Seconds of an all-reduce of the weights over all processes."""


def measure(methods: dict[str, ParallelConfig], workers: int, load: Load) -> Machine:
    """Train with each method in turn in so many processes of this machine, over gloo.

    Args:
      methods: name -> its configuration.
      workers: number of processes.
      load: their work.

    Raises:
      ToolkitError: a process failed.
    """
    context = multiprocessing.get_context("spawn")
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        results = context.Queue()
        processes = []
        for rank in range(workers):
            place = {"RANK": rank, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1"}
            place |= {"WORLD_SIZE": workers, "LOCAL_WORLD_SIZE": workers, "MASTER_PORT": port}
            call = results, place, methods, load, Path(folder)
            processes.append(context.Process(target=_work, args=call, daemon=True))
            processes[-1].start()
        found: dict[int, Any] = {}
        end = perf_counter() + LONGEST_RUN
        while len(found) < workers:
            if not results.empty():
                rank, found[rank] = results.get()
            elif perf_counter() > end or any(process.exitcode for process in processes):
                for process in processes:
                    process.kill()
                raise ToolkitError("a process of the measurement failed: see its message above")
            else:
                sleep(0.05)
        for process in processes:
            process.join()
    epochs = {name: Measured(*found[0][0][name]) for name in methods}
    alone = [found[rank][0][ALONE] for rank in range(workers)]
    mean = sum(even for even, _ in alone) / workers
    return Machine({**epochs, ALONE: Measured(mean, alone[-1][1])}, found[0][1])


def _work(
    results: Any,
    place: dict[str, Any],
    methods: dict[str, ParallelConfig],
    load: Load,
    folder: Path,
) -> None:
    """Run in each process: train, and report the seconds of the epochs."""
    start_worker({**os.environ, **{name: str(value) for name, value in place.items()}})
    rank = place["RANK"]
    found = {}
    for name, config in {ALONE: None, **methods}.items():
        strategy = SingleProcess() if config is None else make_strategy(config)
        out = folder / (name if config else f"{name}-{rank}")
        seconds = _train(strategy, config, load, out, rank)
        # The first epoch warms everything up.
        found[name] = median(seconds[1::2]), median(seconds[2::2])
    reduction = _reduction(Workers("cpu", 60.0), load.weights)
    results.put((rank, (found, reduction)))


def _train(
    strategy: Any, config: ParallelConfig | None, load: Load, out: Path, rank: int
) -> list[float]:
    """Train, and return the seconds of every epoch."""
    settings = TrainerConfig(
        epochs=1 + 2 * load.rounds,
        optimizer="sgd",
        checkpoint_seconds=LONGEST_RUN,
        parallel=config or ParallelConfig(),
    )
    _, world_size = strategy.rank_and_world_size()
    torch.manual_seed(0)
    model = nn.Linear(load.weights // 2, 2, bias=False)
    data = _Batches(load, world_size)
    slow = rank == int(os.environ["WORLD_SIZE"]) - 1
    objective = _Waiting(load, slow)
    trainer = Trainer(model, objective, data, settings, out, strategy=strategy)
    trainer.run()
    return [record["seconds"] for record in trainer.history]


def _reduction(workers: Workers, weights: int) -> float:
    """Measure the seconds of an all-reduce (all)."""
    times = []
    for _ in range(EXCHANGES):
        workers.barrier()
        began = perf_counter()
        workers.all_reduce(torch.zeros(weights)).wait()
        times.append(perf_counter() - began)
    return median(times)


class _Batches:
    """A data source of batches that say whether there is a slow worker in their epoch."""

    def __init__(self, load: Load, world_size: int) -> None:
        self._load, self._world_size = load, world_size
        self._inputs = torch.ones(1, 1, load.weights // 2)

    def steps(self, epoch: int, world_size: int = 1) -> int:
        return self._load.steps * self._world_size // world_size

    def batches(
        self, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[Batch]:
        kind = "slow" if epoch and epoch % 2 == 0 else "even"
        ones = torch.ones(1, 1)
        for _ in range(start, self.steps(epoch, world_size)):
            yield Batch([kind], self._inputs, ones.long(), ones, torch.ones(1).long(), 1)


class _Waiting:
    """An objective that sleeps for the time of the step, so that cores need not be free."""

    def __init__(self, load: Load, slow: bool) -> None:
        self._load, self._slow = load, slow

    def __call__(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        slow = self._slow and batch.ids == ["slow"]
        sleep(self._load.seconds * (self._load.factor if slow else 1.0))
        loss = model(batch.inputs).square().mean() * 1e-6
        return loss, {"weight": torch.ones(())}
