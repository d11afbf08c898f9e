"""Epochs of real processes on this machine, measured and predicted by the simulator."""

import multiprocessing
import os
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

import torch
from torch import Tensor, nn

from toolkit.errors import ToolkitError
from toolkit.parallel.config import AdpsgdConfig, BmufConfig, ParallelConfig
from toolkit.parallel.strategy import Strategy, make_strategy
from toolkit.parallel.workers import Workers
from toolkit.processes.workers import start_worker
from toolkit.scaling.simulator.methods import simulate
from toolkit.scaling.simulator.run import GIGABIT, Network, Scenario, StepTimes
from toolkit.scaling.studies import NAMES
from toolkit.train.batches import Batch
from toolkit.train.config import TrainerConfig
from toolkit.train.trainer import fit

INDEPENDENT = "independent"
"""Name of the baseline, in place of a method: all processes train at once, without exchanges."""
EXCHANGES = 20  # all-reduces, of which the median duration is reported
LONGEST_RUN = 1800.0  # seconds


@dataclass(frozen=True)
class Load:
    """Work of every process: steps that sleep instead of computing."""

    seconds: float = 0.1
    """Duration of a step in seconds."""
    steps: int = 60
    """Steps of a worker in an epoch."""
    factor: float = 5.0
    """Factor by which the last worker is slower in every second epoch."""
    rounds: int = 1
    """Number of epochs of each kind, without and with the slow worker; medians are reported."""
    weights: int = 100_000
    """Number of weights of the model."""


@dataclass(frozen=True)
class Measured:
    """Durations of the epochs of one method."""

    uniform: float
    """Duration of an epoch in which all workers are equally fast, in seconds."""
    slow: float
    """Duration of an epoch with a slow worker, in seconds."""


@dataclass(frozen=True)
class Machine:
    """Measurements with a number of processes on this machine."""

    epochs: dict[str, Measured]
    """Epochs by method; for `INDEPENDENT`, `uniform` is the mean over the processes and `slow` the
    slow process's time."""
    reduction: float
    """Duration of an all-reduce of the weights over all processes, in seconds."""


def measure(methods: dict[str, ParallelConfig], workers: int, load: Load) -> Machine:
    """Train with each method in turn in `workers` processes of this machine, over gloo.

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
            environment = {"RANK": rank, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1"}
            environment |= {"WORLD_SIZE": workers, "LOCAL_WORLD_SIZE": workers, "MASTER_PORT": port}
            call = results, environment, methods, load, Path(folder)
            processes.append(context.Process(target=_work, args=call, daemon=True))
            processes[-1].start()
        results_by_rank: dict[int, Any] = {}
        end = perf_counter() + LONGEST_RUN
        while len(results_by_rank) < workers:
            if not results.empty():
                rank, results_by_rank[rank] = results.get()
            elif perf_counter() > end or any(process.exitcode for process in processes):
                for process in processes:
                    process.kill()
                raise ToolkitError(
                    "a process of the measurement failed or took too long: see its message above"
                )
            else:
                sleep(0.05)
        for process in processes:
            process.join()
    epochs = {name: Measured(*results_by_rank[0][0][name]) for name in methods}
    independent = [results_by_rank[rank][0][INDEPENDENT] for rank in range(workers)]
    mean = sum(uniform for uniform, _ in independent) / workers
    epochs[INDEPENDENT] = Measured(mean, independent[-1][1])
    return Machine(epochs, results_by_rank[0][1])


def _work(
    results: Any,
    environment: dict[str, Any],
    methods: dict[str, ParallelConfig],
    load: Load,
    folder: Path,
) -> None:
    """Train in one of the processes, and report the durations of the epochs."""
    start_worker({**os.environ, **{name: str(value) for name, value in environment.items()}})
    rank = environment["RANK"]
    epochs_by_method = {}
    for name, config in {INDEPENDENT: None, **methods}.items():
        strategy = Strategy() if config is None else make_strategy(config)
        out = folder / (name if config else f"{name}-{rank}")
        seconds = _train(strategy, config, load, out, rank)
        # The first epoch warms everything up; then epochs without and with the slow worker
        # take turns.
        epochs_by_method[name] = median(seconds[1::2]), median(seconds[2::2])
    reduction = _reduction(Workers("cpu", 60.0), load.weights)
    results.put((rank, (epochs_by_method, reduction)))


def _train(
    strategy: Any, config: ParallelConfig | None, load: Load, out: Path, rank: int
) -> list[float]:
    """Train, and return the duration of every epoch in seconds."""
    settings = TrainerConfig(
        epochs=1 + 2 * load.rounds,
        optimizer="sgd",
        checkpoint_seconds=LONGEST_RUN,
        parallel=config or ParallelConfig(),
    )
    world_size = strategy.world_size
    torch.manual_seed(0)
    model = nn.Linear(load.weights // 2, 2, bias=False)
    data = _Batches(load, world_size)
    slow = rank == int(os.environ["WORLD_SIZE"]) - 1
    objective = _Waiting(load, slow)
    result = fit(model, objective, data, settings, out, strategy=strategy)
    return [record["seconds"] for record in result.history]


def _reduction(workers: Workers, weights: int) -> float:
    """Return the median duration of an all-reduce in seconds; all processes must call this."""
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

    def num_steps(self, epoch: int, world_size: int = 1) -> int:
        return self._load.steps * self._world_size // world_size

    def batches(
        self, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[Batch]:
        kind = "slow" if epoch and epoch % 2 == 0 else "uniform"
        inputs = torch.ones(1, 1)
        for _ in range(start, self.num_steps(epoch, world_size)):
            yield Batch([kind], self._inputs, inputs.long(), inputs, torch.ones(1).long(), 1)


class _Waiting:
    """An objective that sleeps for the time of the step, so that cores need not be free."""

    def __init__(self, load: Load, slow: bool) -> None:
        self._load, self._slow = load, slow

    def __call__(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        slow = self._slow and batch.ids == ["slow"]
        sleep(self._load.seconds * (self._load.factor if slow else 1.0))
        loss = model(batch.inputs).square().mean() * 1e-6
        return loss, {"weight": torch.ones(())}


NODE = 2
"""Workers per node of H-ADPSGD."""
BLOCK = 10
"""Minibatches per block of BMUF."""
METHODS = {
    "ssgd": ParallelConfig("ssgd"),
    "scpsgd": ParallelConfig("scpsgd"),
    "gtc": ParallelConfig("gtc"),
    "bmuf": ParallelConfig("bmuf", bmuf=BmufConfig(block=BLOCK)),
    "asgd": ParallelConfig("asgd"),
    "adpsgd": ParallelConfig("adpsgd"),
    "adpsgd random": ParallelConfig("adpsgd", adpsgd=AdpsgdConfig("random")),
    "adpsgd shuffled": ParallelConfig("adpsgd", adpsgd=AdpsgdConfig("shuffled")),
    "adpsgd delayed": ParallelConfig("adpsgd", adpsgd=AdpsgdConfig("delayed")),
    "hadpsgd": ParallelConfig("hadpsgd", adpsgd=AdpsgdConfig(workers_per_node=NODE)),
}
"""The methods compared, as the simulator names them."""


HEADING = "Seconds of an epoch of real processes on this machine, measured and predicted"


@dataclass(frozen=True)
class Compared:
    """Seconds of an epoch with one method and one number of workers."""

    method: str
    workers: int
    measured: tuple[float, float]
    """Measured seconds of an epoch without and with the slow worker."""
    predicted: tuple[float, float]

    def error(self, slow: bool) -> float:
        """Return the prediction divided by the measurement, minus 1."""
        return self.predicted[slow] / self.measured[slow] - 1

    def kept(self, seconds: tuple[float, float]) -> float:
        """Return the share of the speed that is kept with the slow worker."""
        return seconds[0] / seconds[1]


def validate(
    workers: Sequence[int], load: Load, report: Callable[[str], None], methods: Sequence[str]
) -> list[Compared]:
    """Measure epochs of methods in real processes, and predict them.

    Args:
      workers: numbers of processes.
      load: work of each process.
      report: called with a line for each number.
      methods: some of `METHODS`.
    """
    compared = []
    for number in workers:
        machine = measure({method: METHODS[method] for method in methods}, number, load)
        report(f"{number} processes: all-reduce of the weights {1e3 * machine.reduction:.1f} ms")
        for method in methods:
            epochs = machine.epochs[method]
            predicted = predict(method, number, load, machine)
            compared.append(Compared(method, number, (epochs.uniform, epochs.slow), predicted))
    return compared


def table_rows(compared: Sequence[Compared]) -> list[dict[str, object]]:
    """Return a row for each method and number of workers."""
    return [
        {
            "method": NAMES[comparison.method],
            "processes": comparison.workers,
            "measured": round(comparison.measured[0], 2),
            "predicted": round(comparison.predicted[0], 2),
            "error, %": round(100 * comparison.error(slow=False), 1),
            "one slow, measured": round(comparison.measured[1], 2),
            "one slow, predicted": round(comparison.predicted[1], 2),
            "one slow, error, %": round(100 * comparison.error(slow=True), 1),
            "speed kept, %": round(100 * comparison.kept(comparison.measured)),
            "predicted, %": round(100 * comparison.kept(comparison.predicted)),
        }
        for comparison in compared
    ]


def note(load: Load) -> str:
    """Describe the measurement."""
    return (
        f"{load.steps} steps of each worker, {load.weights:,} weights, gloo. Instead of computing, "
        f"processes sleep for {load.seconds:g} s in every step, the slow one {load.factor:g} times "
        f"as long. Epochs with and without a slow process alternate, {load.rounds} of each, and "
        "medians are shown. Predictions are based on the time of the same epochs without exchanges "
        "and on the time of an all-reduce."
    )


def predict(method: str, workers: int, load: Load, machine: Machine) -> tuple[float, float]:
    """Simulate an epoch without and with the slow worker.

    Only two measurements of the machine are used: the time of epochs without exchanges,
    and the time of an all-reduce of the weights over all processes.
    """
    independent = machine.epochs[INDEPENDENT]
    size = 4.0 * load.weights
    rate = 2 * (workers - 1) * size / workers / machine.reduction / GIGABIT
    scenario = Scenario(
        minibatches=load.steps * workers,
        model_bytes=size,
        times=StepTimes(independent.uniform / load.steps),
        network=Network(NODE, rate, inside=rate, latency=0.0, latency_inside=0.0),
        bmuf=BmufConfig(block=BLOCK),
    )
    if method != "hadpsgd":  # all workers are on one host
        scenario = replace(scenario, network=replace(scenario.network, per_host=workers))
    even = simulate(method, workers, scenario, None).seconds
    factor = independent.slow / independent.uniform
    times = replace(scenario.times, slow={workers - 1: factor})
    return even, simulate(method, workers, replace(scenario, times=times), None).seconds
