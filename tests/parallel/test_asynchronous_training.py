"""The training loop with asynchronous methods: who takes which batches, a kill, another number."""

import os
import signal
import time
from functools import partial

import numpy as np
import pytest

from tests.parallel.tiny import ASYNCHRONOUS, Job, TinyData, train
from toolkit.parallel.strategy import SingleProcess

PATIENCE = 140


class Noting(TinyData):
    """Writes down which batch was made by which rank."""

    notes = None

    def batch(self, epoch, index):
        if self.notes is not None and epoch < 99:
            name = f"{epoch}-{index}-by-{os.environ['RANK']}-{time.monotonic_ns()}"
            (self.notes / name).touch()
        return super().batch(epoch, index)


def slow_second(rank, epoch, step):
    if os.environ["RANK"] == "1":
        time.sleep(0.1)


def die(rank, epoch, step, victim=0):
    if (os.environ["RANK"], epoch, step) == (str(victim), 1, 4):
        time.sleep(1.0)  # until it can be seen that this one is there
        os.kill(os.getpid(), signal.SIGKILL)


def trained(out, parallel, notes=None, hook=None, number=60):
    data = Noting(number, hook=hook)
    data.notes = notes
    return train(out, parallel, data)


@pytest.mark.parametrize("method", ["adpsgd", "asgd"])
def test_a_slow_worker_gives_batches_away_and_all_are_seen_once(tmp_path, method):
    notes = tmp_path / "notes"
    notes.mkdir()
    results = Job(2, trained, tmp_path / "out", ASYNCHRONOUS[method], notes, slow_second).wait(
        PATIENCE
    )
    assert all(isinstance(result, dict) for result in results), results
    made = [path.name.split("-by-") for path in notes.iterdir()]
    assert sorted(name for name, _ in made) == sorted(f"{e}-{i}" for e in (0, 1) for i in range(60))
    by_second = sum(who.startswith("1") for _, who in made)
    assert by_second < 45  # 60 would be its part
    first, second = results
    assert first["score"] == second["score"] > 0.5
    for name, value in first["weights"].items():
        assert np.array_equal(value, second["weights"][name])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What each method leads to, uninterrupted."""
    done = {}

    def run(method, ranks):
        if method not in done:
            folder = tmp_path_factory.mktemp(method)
            done[method] = Job(ranks, trained, folder, ASYNCHRONOUS[method]).wait(PATIENCE)
        return done[method]

    return run


@pytest.mark.parametrize(
    ("method", "before", "victim", "after"),
    [
        ("adpsgd", 2, 0, 2),
        ("adpsgd", 2, 1, 3),
        ("delayed", 2, 0, 2),
        ("delayed", 2, 1, 2),
        ("asgd", 2, 0, 2),
        ("asgd", 2, 1, 2),
        ("nodes", 4, 2, 4),
        ("nodes", 4, 3, 2),
    ],
)
def test_a_killed_worker_is_named_and_the_same_command_continues(
    whole, tmp_path, method, before, victim, after
):
    parallel = ASYNCHRONOUS[method]
    begun = time.monotonic()
    job = Job(before, trained, tmp_path, parallel, None, partial(die, victim=victim))
    results = job.wait(PATIENCE)
    assert time.monotonic() - begun < 60
    for rank, told in enumerate(results):
        if rank == victim:
            assert told is None
            continue
        assert f"worker {victim} (process {job.processes[victim].pid} on " in told
        assert "was killed" in told
        assert "The same command continues" in told
        assert job.exit_codes()[rank] == 1
    assert "epoch-0001-step-00000000" in " ".join(p.name for p in tmp_path.rglob("*"))
    results = Job(after, trained, tmp_path, parallel).wait(PATIENCE)
    assert all(isinstance(result, dict) for result in results), results
    assert [record["epoch"] for record in results[0]["history"]] == [1, 2]
    uninterrupted = whole(method, before)[0]
    for result in results:
        assert result["score"] == results[0]["score"]
        assert abs(result["score"] - uninterrupted["score"]) < 0.05
    if method == "delayed":  # keeps all in step, so nothing depends on time
        for name, value in uninterrupted["weights"].items():
            assert np.array_equal(value, results[0]["weights"][name])


@pytest.mark.parametrize("method", ["adpsgd", "delayed", "hadpsgd", "asgd"])
def test_what_one_process_began_several_go_on_with(method, tmp_path):
    Job(1, trained, tmp_path, ASYNCHRONOUS[method], None, die).wait()
    assert list(tmp_path.glob("checkpoints/epoch-0001-step-0000000[1-9]*"))
    results = Job(2, trained, tmp_path, ASYNCHRONOUS[method]).wait()
    first, second = results
    assert [record["epoch"] for record in first["history"]] == [1, 2]
    assert "bytes_per_step" not in first["history"][0]
    assert first["score"] == second["score"] > 0.5
    assert first["history"][1]["loss"] < first["history"][0]["loss"]


def test_going_on_in_one_process_says_what_is_dropped(caplog):
    strategy = SingleProcess()
    strategy.load_state({"steps": 3, "ranks": 2}, [{"running": []}])
    assert not caplog.messages
    strategy.load_state({"bmuf": {}}, [{"residual": 0}, {"residual": 1}])
    assert [m.rpartition("without ")[2] for m in caplog.messages] == [
        "the block momentum",
        "the gradients that were not sent yet",
    ]


def fail(rank, epoch, step):
    if (os.environ["RANK"], epoch, step) == ("0", 0, 20):
        raise ValueError("the disk is full")


@pytest.mark.parametrize("method", ["asgd", "adpsgd"])
def test_an_error_is_told_at_once_whoever_is_served(method, tmp_path):
    begun = time.monotonic()
    first, *others = Job(4, trained, tmp_path, ASYNCHRONOUS[method], None, fail, 200).wait()
    assert time.monotonic() - begun < 15  # of which the start takes most
    assert first == "ValueError: the disk is full"
    for other in others:
        assert "worker 0 failed: ValueError: the disk is full" in other
