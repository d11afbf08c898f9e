"""A tiny training for several processes, and the processes, which a server forks quickly."""

import multiprocessing
import os
import queue
import signal
import socket
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import toolkit.parallel.bmuf
import toolkit.parallel.gtc
import toolkit.parallel.ssgd  # noqa: F401
from toolkit.parallel.config import AdpsgdConfig, BmufConfig, GtcConfig, ParallelConfig
from toolkit.parallel.strategy import Strategy, make_strategy
from toolkit.processes import ranks
from toolkit.train.batches import Batch
from toolkit.train.config import TrainerConfig
from toolkit.train.cross_entropy import cross_entropy
from toolkit.train.trainer import fit

CLASSES, DIMENSION = 5, 6
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["tests.parallel.preloaded"])


def with_method(method, **changes):
    return replace(ParallelConfig(), method=method, timeout=20.0, **changes)


SYNCHRONOUS = {
    "ssgd": with_method("ssgd"),
    "scpsgd": with_method("scpsgd"),
    "gtc": with_method("gtc", gtc=GtcConfig(threshold=2.0)),
    "gtc adapted": with_method("gtc", gtc=GtcConfig(0.1, "mean", density=0.1)),
    "bmuf": with_method("bmuf", bmuf=BmufConfig(block=5)),
    "bmuf averaging": with_method("bmuf", bmuf=BmufConfig(5, nbm="seed", optimizer="average")),
}
ASYNCHRONOUS = {
    "adpsgd": with_method("adpsgd"),
    "delayed": with_method("adpsgd", adpsgd=AdpsgdConfig(pattern="delayed")),
    "hadpsgd": with_method("hadpsgd", adpsgd=AdpsgdConfig(workers_per_node=1)),
    "nodes": with_method("hadpsgd", adpsgd=AdpsgdConfig(workers_per_node=2)),
    "asgd": with_method("asgd"),
}


class Running(torch.nn.Module):
    """Keeps a running average of its input, which differs from worker to worker."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(DIMENSION))

    def forward(self, x):
        if self.training:
            self.mean += 0.1 * (x.detach().mean(dim=(0, 1)) - self.mean)
        return x


class TinyModel(torch.nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.running = Running()
        self.hidden = torch.nn.Linear(DIMENSION, 8)
        self.output = torch.nn.Linear(8, CLASSES)

    def forward(self, x, lengths=None):
        return self.output(torch.tanh(self.hidden(self.running(x)))), None


@dataclass
class TinyData:
    """Batches of points around the centre of their class; `hook` runs before each step."""

    number: int = 24
    seed: int = 1
    hook: object = None

    def num_steps(self, epoch, world_size=1):
        return self.number // world_size

    def batches(self, epoch, start=0, rank=0, world_size=1):
        for step in range(start, self.num_steps(epoch, world_size)):
            if self.hook is not None:
                self.hook(rank, epoch, step)
            yield self.batch(epoch, step * world_size + rank)

    def batch(self, epoch, index):
        g = torch.Generator().manual_seed(1000 * self.seed + 100 * epoch + index)
        centres = torch.randn(
            CLASSES, DIMENSION, generator=torch.Generator().manual_seed(self.seed)
        )
        targets = torch.randint(CLASSES, (4, 5), generator=g)
        inputs = centres[targets] + 0.5 * torch.randn(4, 5, DIMENSION, generator=g)
        lengths = torch.full((4,), 5)
        return Batch([f"{index}"] * 4, inputs, targets, torch.ones(4, 5), lengths, 20)


def train(
    out,
    parallel=None,
    data=None,
    seed=0,
    callback=None,
    model=TinyModel,
    **settings,
):
    """Train; return weights, score, history and bytes sent, for comparisons."""
    torch.set_num_threads(1)
    usual = {"epochs": 2, "optimizer": "sgd", "initial_rate": 0.2, "final_rate": 0.1}
    settings = usual | {"checkpoint_seconds": 0} | settings
    config = TrainerConfig(parallel=parallel or ParallelConfig(), **settings)
    strategy = make_strategy(config.parallel) if parallel else Strategy()
    model = model(seed)
    data = data or TinyData()
    valid = [TinyData(seed=1).batch(99, index) for index in range(4)]
    options = {"valid": valid, "strategy": strategy, "callback": callback}
    result = fit(model, cross_entropy, data, config, Path(out), **options)
    sent = getattr(getattr(strategy, "workers", None), "sent", 0)
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    timed = ("seconds", "frames_per_second", "data_wait")
    history = [{k: v for k, v in r.items() if k not in timed} for r in result.history]
    return {"weights": weights, "score": result.score, "history": history, "sent": sent}


class Job:
    """Processes that each call `function(*arguments)` as one rank of torchrun's."""

    def __init__(self, number, function, *arguments, **options):
        self.results = context.Queue()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.processes = []
        for rank in range(number):
            place = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": number,
                "LOCAL_WORLD_SIZE": number,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
            call = (self.results, place, function, arguments, options)
            self.processes.append(context.Process(target=_work, args=call))
            self.processes[-1].start()

    def wait(self, seconds=60):
        """Return what each rank returned, or the text of its exception; None for one killed."""
        results = [None] * len(self.processes)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                rank, value = self.results.get(timeout=0.05)
                results[rank] = value
            except queue.Empty:
                if not any(process.is_alive() for process in self.processes):
                    break
        for process in self.processes:
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
            process.join()
        assert time.monotonic() < end, f"not done after {seconds} s: {results}"
        return results

    def exit_codes(self):
        return [process.exitcode for process in self.processes]


def _work(results, place, function, arguments, options):
    os.environ.update({name: str(value) for name, value in place.items()})
    status = 1
    try:
        results.put((place["RANK"], function(*arguments, **options)))
        status = 0
    except SystemExit as exit_:
        status = exit_.code or 0
    except Exception as error:
        results.put((place["RANK"], f"{type(error).__name__}: {error}"))
        sys.excepthook(type(error), error, None)  # as at the end of an interpreter
    results.close()
    results.join_thread()
    ranks.disconnect()
    os._exit(status)
