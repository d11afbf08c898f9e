"""Synchronous methods in real processes over gloo, on a tiny model."""

import os
import shutil
import signal
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from tests.parallel.tiny import ASYNCHRONOUS, SYNCHRONOUS, Job, TinyData, train, with_method
from toolkit.parallel.config import BmufConfig, GtcConfig, ParallelError
from toolkit.parallel.strategy import Strategy, make_strategy
from toolkit.processes import watchdog
from toolkit.train.batches import Batch
from toolkit.train.trainer import Callback


def joined(a, b):
    names = ("inputs", "targets", "weights", "lengths")
    tensors = {name: torch.cat([getattr(a, name), getattr(b, name)]) for name in names}
    return Batch(a.ids + b.ids, **tensors, frames=a.frames + b.frames)


class Pairs(TinyData):
    """The batches of two workers in a step, joined."""

    def num_steps(self, epoch, world_size=1):
        return self.number // 2

    def batch(self, epoch, index):
        return joined(*(TinyData.batch(self, epoch, 2 * index + i) for i in range(2)))


class JoinedSteps(TinyData):
    """The batches of a rank in a step with `accumulate=2`, joined."""

    def num_steps(self, epoch, world_size=1):
        return self.number // world_size // 2

    def batches(self, epoch, start=0, rank=0, world_size=1):
        for step in range(start, self.num_steps(epoch, world_size)):
            first = 2 * step * world_size + rank
            yield joined(self.batch(epoch, first), self.batch(epoch, first + world_size))


class EveryStep(Callback):
    """Saves a checkpoint after every step, whatever the strategy prefers."""

    def on_step(self, trainer, batch, stats, checkpoint_due):
        trainer.save_checkpoint()


def stored_every_step(out, parallel, data):
    return train(out, parallel, data, callback=EveryStep(), momentum=0.9)


def die(rank, epoch, step, victim=None):
    victim = int(os.environ["WORLD_SIZE"]) - 1 if victim is None else victim
    if (rank, epoch, step) == (victim, 1, 7):
        time.sleep(1.0)  # until it can be seen that this one is there
        os.kill(os.getpid(), signal.SIGKILL)


def equal(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def close(a, b, tolerance=1e-4):
    return all(np.allclose(a[name], b[name], atol=tolerance) for name in a if "running" not in name)


@pytest.fixture(scope="module")
def memory(tmp_path_factory):
    return tmp_path_factory.mktemp("workers")


@pytest.fixture(scope="module")
def whole(memory):
    """The results of each method with two workers, uninterrupted."""
    done = {}

    def run(name):
        if name not in done:
            done[name] = Job(2, train, memory / name, SYNCHRONOUS[name], momentum=0.9).wait()
        return done[name]

    return run


@pytest.fixture(scope="module")
def killed(memory):
    """Jobs of two workers of which one is killed, and what each rank returned."""
    done = {}

    def run(name, victim, out):
        folder = memory / f"{name} without {victim}"
        if folder not in done:
            data = TinyData(hook=partial(die, victim=victim))
            job = Job(2, train, folder, SYNCHRONOUS[name], data, momentum=0.9)
            done[folder] = job, job.wait()
        shutil.copytree(folder, out, dirs_exist_ok=True)
        return done[folder]

    return run


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_all_workers_learn_the_same_weights(whole, name):
    first, second = whole(name)
    assert equal(first["weights"], second["weights"])
    assert first["history"] == second["history"]
    assert first["score"] >= 0.9
    assert first["history"][-1]["bytes_per_step"] > 0


@pytest.mark.parametrize("name", ["ssgd", "gtc", "gtc adapted", "bmuf"])
def test_accumulated_batches_are_exchanged_as_one_batch(name, tmp_path):
    # The average in the model moves twice where there are two batches.
    settings = {"momentum": 0.9, "epochs": 1}
    job = Job(2, train, tmp_path / "one", SYNCHRONOUS[name], JoinedSteps(), **settings)
    expected = job.wait()
    results = Job(2, train, tmp_path / "two", SYNCHRONOUS[name], accumulate=2, **settings).wait()
    for result, joint in zip(results, expected, strict=True):
        assert close(result["weights"], joint["weights"])
        assert result["history"][0]["loss"] == pytest.approx(joint["history"][0]["loss"], rel=1e-4)


def test_ssgd_equals_training_with_twice_the_batch(whole, tmp_path):
    alone = train(tmp_path, data=Pairs(), momentum=0.9)
    parallel = whole("ssgd")[0]
    assert close(parallel["weights"], alone["weights"])
    for epoch, epoch_alone in zip(parallel["history"], alone["history"], strict=True):
        for key in ("loss", "accuracy", "valid_loss", "valid_accuracy", "rate"):
            assert epoch[key] == pytest.approx(epoch_alone[key], abs=1e-4), key
    assert not np.allclose(alone["weights"]["output.weight"], 0)


def test_methods_are_equal_at_their_limits(memory, tmp_path):
    free = {"max_gradient_norm": 1e9, "momentum": 0.9}
    methods = {
        "ssgd": with_method("ssgd"),
        "scpsgd": with_method("scpsgd"),
        "gtc": with_method("gtc", gtc=GtcConfig(threshold=0.0)),
        "bmuf": with_method("bmuf", bmuf=BmufConfig(1, momentum=0.0, rate=0.5)),
    }
    ends = {n: Job(2, train, tmp_path / n, m, **free).wait()[0] for n, m in methods.items()}
    for name, end in ends.items():
        assert close(end["weights"], ends["ssgd"]["weights"]), name


def test_bytes_sent_are_counted(whole):
    size = sum(w.size for n, w in whole("ssgd")[0]["weights"].items() if "running" not in n)
    steps = 24
    once = 4 * size / 2 + 2 * 4 * 6  # first weights; running averages, for validation after epochs
    assert whole("ssgd")[0]["sent"] == once + steps * 4 * (size + 1)
    blocks = 2 * 3  # 12 steps per epoch: 5, 5 and 2
    assert whole("bmuf")[0]["sent"] == once + blocks * 4 * size
    assert whole("bmuf averaging")[0]["sent"] == once + 2 * blocks * 4 * size  # and the momentum
    gtc = whole("gtc")[0]
    assert steps * 20 < gtc["sent"] - once <= steps * (20 + 4 * -(-size // 16))  # at most a bitmap


def counted():
    workers = make_strategy(SYNCHRONOUS["ssgd"]).workers
    pair, sent = workers.new_group(range(2)), []
    workers.all_reduce(torch.zeros(30)).wait()
    sent.append(workers.sent)
    workers.all_gather(torch.zeros(10 * (1 + workers.rank)))
    sent.append(workers.sent)
    workers.broadcast(torch.zeros(30))
    sent.append(workers.sent)
    if workers.rank < 2:
        workers.broadcast(torch.zeros(30), 1, pair)
        workers.all_reduce(torch.zeros(30), pair).wait()
        sent.append(workers.sent)
    return [total - previous for previous, total in zip([0, *sent], sent, strict=False)]


def test_three_workers_send_the_bytes_of_a_ring():
    """By hand, of 120 bytes: in a ring 4 chunks of 40; in a broadcast 240 for three to send."""
    sent_by_all = [4 * 40, 2 * (16 + 4 * 30), 240 / 3]
    assert Job(3, counted).wait() == [[*sent_by_all, 60 + 120]] * 2 + [sent_by_all]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "victim"),
    [("ssgd", 0), ("ssgd", 1), ("scpsgd", 1), ("gtc", 0), ("gtc", 1), ("bmuf", 0), ("bmuf", 1)],
)
def test_after_a_kill_the_same_command_gives_the_same_weights(
    whole, killed, name, victim, tmp_path
):
    job, ends = killed(name, victim, tmp_path)
    assert ends[victim] is None
    message = ends[1 - victim]
    pid = job.processes[victim].pid
    assert message.startswith(f"WorkerLostError: worker {victim} (process {pid}")
    assert "was killed" in message
    assert "The same command continues" in message
    assert job.exit_codes()[victim] == -signal.SIGKILL
    assert job.exit_codes()[1 - victim] == 1
    assert list(tmp_path.glob("checkpoints/epoch-*"))
    resumed = Job(2, train, tmp_path, SYNCHRONOUS[name], momentum=0.9).wait()
    for result, uninterrupted in zip(resumed, whole(name), strict=True):
        assert equal(result["weights"], uninterrupted["weights"])
        assert result["history"] == uninterrupted["history"]
        assert result["sent"] == uninterrupted["sent"]


@pytest.mark.long
def test_training_resumes_within_a_block(tmp_path):
    method = SYNCHRONOUS["bmuf"]
    expected = Job(2, stored_every_step, tmp_path / "whole", method, TinyData()).wait()
    Job(2, stored_every_step, tmp_path / "run", method, TinyData(hook=die)).wait()
    resumed = Job(2, stored_every_step, tmp_path / "run", method, TinyData()).wait()
    assert equal(resumed[0]["weights"], expected[0]["weights"])
    assert resumed[0]["history"] == expected[0]["history"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "ranks_before", "ranks_after"),
    [("gtc", 2, 1), ("gtc", 2, 3), ("bmuf", 2, 3), ("scpsgd", 2, 1)]
    + [(name, 1, 2) for name in ("ssgd", "scpsgd", "gtc", "bmuf")],
)
def test_training_continues_with_another_number_of_workers(
    whole, killed, name, ranks_before, ranks_after, tmp_path
):
    if ranks_before == 2:
        killed(name, 1, tmp_path)
    else:
        Job(1, train, tmp_path, SYNCHRONOUS[name], TinyData(hook=die), momentum=0.9).wait()
    assert list(tmp_path.glob("checkpoints/epoch-0001-*"))
    ends = Job(ranks_after, train, tmp_path, SYNCHRONOUS[name], momentum=0.9).wait()
    assert len(ends) == ranks_after
    for end in ends:
        assert equal(end["weights"], ends[0]["weights"])
    if ranks_before == 2:
        assert ends[0]["history"][0] == whole(name)[0]["history"][0]
    else:
        assert "bytes_per_step" not in ends[0]["history"][0]
    assert ends[0]["history"][1]["valid_accuracy"] >= 0.9


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_a_missing_part_of_a_checkpoint_is_an_error(killed, rank, tmp_path):
    killed("gtc", 1, tmp_path)
    goes_on = partial(Job, 2, train, tmp_path, SYNCHRONOUS["gtc"], momentum=0.9)
    newest = max(tmp_path.glob("checkpoints/epoch-*-step-*[0-9].rank-0000.safetensors"))
    missing = newest.with_name(newest.name.replace("rank-0000", f"rank-000{rank}"))
    missing.unlink()
    for end in goes_on().wait():
        assert f"{missing}, the state of worker {rank} in the checkpoint, is missing" in end
    newest.with_name(newest.name.replace(".rank-0000", "")).unlink()
    assert all(isinstance(end, dict) for end in goes_on().wait())


def stopped(out, parallel, failure, victim):
    log = os.open(out / f"log-{os.environ['RANK']}", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 2)
    watchdog.HEARTBEAT_TIMEOUT = 8.0 if failure == "stops" else 30.0
    parallel = replace(parallel, timeout=25.0 if failure == "stops" else 8.0)

    def hook(rank, epoch, step):
        if (os.environ["RANK"], epoch, step) == (str(victim), 0, 3):
            (out / "begun").touch()
            if failure == "stops":
                os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(1000)

    return train(out, parallel, TinyData(hook=hook))


HANGING = [
    ("ssgd", 1, "stops", "has sent no heartbeat for 8 s"),
    ("ssgd", 1, "hangs", "hangs, or is slower than"),
    ("adpsgd", 0, "hangs", "has taken no step for 8 s"),
    ("adpsgd", 1, "hangs", "has taken no step for 8 s"),
    ("delayed", 1, "hangs", "hangs, or is slower than"),
    ("hadpsgd", 1, "hangs", "has taken no step for 8 s"),
    ("nodes", 3, "hangs", "hangs, or is slower than"),
    ("asgd", 0, "hangs", "has taken no step for 8 s"),
    ("asgd", 1, "hangs", "has taken no step for 8 s"),
]


@pytest.fixture(scope="module")
def hanging(memory):
    """Jobs in which a worker hangs; three at a time, since all they do is wait."""
    begun = {}

    def run(number):
        first = number - number % 3
        for n in range(first, first + 3):
            if n not in begun:
                name, victim, failure, _ = HANGING[n]
                out = memory / f"hanging {n}"
                out.mkdir()
                call = (stopped, out, (SYNCHRONOUS | ASYNCHRONOUS)[name], failure, victim)
                begun[n] = Job(4 if name == "nodes" else 2, *call), out, time.monotonic()
        return begun[number]

    yield run
    for job, _, _ in begun.values():
        for process in job.processes:
            process.kill()


@pytest.mark.long
@pytest.mark.parametrize(
    "number", range(len(HANGING)), ids=lambda n: " ".join(map(str, HANGING[n]))
)
def test_a_worker_that_hangs_is_named(hanging, number):
    _, victim, failure, message = HANGING[number]
    job, out, begun = hanging(number)
    while not (out / "begun").exists():
        assert time.monotonic() - begun < 100  # processes start slowly on busy cores
        time.sleep(0.05)
    begun = (out / "begun").stat().st_mtime
    bad = job.processes[victim]
    while any(process.is_alive() for process in job.processes if process is not bad):
        assert time.time() - begun < 35  # 8 to wait, 8 to end
        time.sleep(0.05)
    if failure == "stops":
        bad.join(5)
        assert bad.exitcode == -signal.SIGKILL  # by the other, or torchrun would wait for it
    elif bad.is_alive():
        os.kill(bad.pid, signal.SIGKILL)
    job.wait()
    log = out / ("log-0" if victim else "log-1")
    messages = log.read_text()  # the worker may have been ended within an exchange
    assert f"worker {victim} (process {bad.pid} on " in messages
    assert message in messages
    assert "The same command continues" in messages
    assert all(job.exit_codes()[rank] == 1 for rank in range(len(job.processes)) if rank != victim)


def broken(out, parallel):
    data = TinyData()
    make = data.batch

    def batch(epoch, index):
        result = make(epoch, index)
        if index == 7:  # of worker 1
            result.inputs[0, 0, 0] = float("nan")
        return result

    data.batch = batch
    return train(out, parallel, data)


@pytest.mark.parametrize("name", ["ssgd", "gtc"])
def test_a_nan_gradient_stops_all_workers(name, tmp_path):
    ends = Job(2, broken, tmp_path, SYNCHRONOUS[name]).wait()
    for end in ends:
        assert "not finite in epoch 1" in end
        assert "there and in the other workers' batches (bad_batch*.safetensors" in end
    assert "batch of 7." in ends[1]
    assert "bad_batch-1.safetensors" in ends[1]
    assert (tmp_path / "checkpoints/bad_batch-1.safetensors").exists()


def test_only_several_processes_need_a_method(monkeypatch):
    assert type(make_strategy(SYNCHRONOUS["gtc"])) is Strategy
    for name in ("RANK", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ParallelError, match="started 4 processes"):
        make_strategy(with_method("single"))
