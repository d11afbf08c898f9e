"""The training loop with asynchronous methods: shared batches, kills, other numbers of workers."""

import os
import signal
import time
from functools import partial
from itertools import chain

import numpy as np
import pytest

from tests.parallel.tiny import ASYNCHRONOUS, SYNCHRONOUS, Job, TinyData, TinyModel, train
from toolkit.parallel.strategy import Strategy
from toolkit.train.trainer import Callback

PATIENCE = 140


class Noting(Callback):
    """Notes which batches this rank has trained on, and may kill it after one of them.

    Args:
      out: folder of the training.
      die_after: epoch and number of batches.
    """

    def __init__(self, out, die_after=(0, 0)):
        self.notes = out / f"trained-{os.environ['RANK']}"
        self.die_after = die_after

    def on_step(self, trainer, batch, stats, checkpoint_due):
        with self.notes.open("a") as file:
            file.write(f"{trainer.epoch} {batch.ids[0]} {time.monotonic()}\n")
        epoch, number = self.die_after
        if number and self.notes.read_text().count(f"\n{epoch} ") == number:
            time.sleep(1.0)  # until it can be seen that this one is there
            os.kill(os.getpid(), signal.SIGKILL)
        super().on_step(trainer, batch, stats, checkpoint_due)


def read_training_times(out, epoch):
    """Return {rank: {batch: time}} of an epoch in order of training, and delete the notes."""
    times_by_rank = {}
    for path in sorted(out.glob("trained-*")):
        lines = [line.split() for line in path.read_text().splitlines()]
        times = {int(index): float(at) for e, index, at in lines if int(e) == epoch}
        assert len(times) == sum(int(line[0]) == epoch for line in lines)
        times_by_rank[int(path.name[8:])] = times
        path.unlink()
    return times_by_rank


def slow_ranks(rank, epoch, step, ranks):
    if os.environ["RANK"] in ranks:
        time.sleep(0.1)


slow_second = partial(slow_ranks, ranks=("1",))


def die(rank, epoch, step, victim=0):
    if (os.environ["RANK"], epoch, step) == (str(victim), 1, 4):
        time.sleep(1.0)  # until it can be seen that this one is there
        os.kill(os.getpid(), signal.SIGKILL)


def trained(out, parallel, hook=None, number=60, victim=None, **settings):
    settings = {"checkpoint_seconds": 300} | settings

    die_after = (1, 12) if os.environ["RANK"] == str(victim) else (0, 0)
    data = TinyData(number, hook=hook)
    return train(out, parallel, data, callback=Noting(out, die_after), **settings)


class Factorised(TinyModel):
    """A model with a matrix that is kept semi-orthogonal, as TDNN-F's are."""

    @property
    def semi_orthogonal(self):
        return [self.hidden.weight]


def distance(matrix):
    """How far a matrix is from being semi-orthogonal, 0 if it is."""
    product = matrix.T @ matrix
    scale = (product**2).sum() / np.trace(product)
    return np.linalg.norm(product / scale - np.eye(len(product)))


@pytest.mark.long
@pytest.mark.parametrize("method", ["ssgd", "bmuf", "adpsgd", "asgd"])
def test_trained_matrices_are_semi_orthogonal(tmp_path, method):
    parallel = (SYNCHRONOUS | ASYNCHRONOUS)[method]
    settings = {"model": Factorised, "initial_rate": 1e-3, "final_rate": 1e-3, "epochs": 2}
    results = Job(2, train, tmp_path, parallel, TinyData(80), **settings).wait(PATIENCE)
    assert distance(TinyModel(0).hidden.weight.detach().numpy()) > 1
    for result in results:
        assert distance(result["weights"]["hidden.weight"]) < 0.05


@pytest.mark.parametrize("method", ["adpsgd", "asgd"])
def test_other_workers_train_on_batches_of_a_slow_worker(tmp_path, method):
    results = Job(2, trained, tmp_path, ASYNCHRONOUS[method], slow_second, epochs=1).wait(PATIENCE)
    assert all(isinstance(result, dict) for result in results), results
    times_by_rank = read_training_times(tmp_path, 0)
    assert sorted([*times_by_rank[0], *times_by_rank[1]]) == list(range(60))
    assert len(times_by_rank[1]) < 25  # 30 are its part
    first, second = results
    assert first["score"] == second["score"] > 0.5
    for name, value in first["weights"].items():
        assert np.array_equal(value, second["weights"][name])


def test_workers_of_a_node_take_over_the_same_steps(tmp_path):
    slow = partial(slow_ranks, ranks=("2", "3"))
    job = Job(4, trained, tmp_path, ASYNCHRONOUS["nodes"], slow, 80, epochs=1)
    results = job.wait(PATIENCE)
    assert all(isinstance(result, dict) for result in results), results
    times_by_rank = read_training_times(tmp_path, 0)
    assert sorted(chain(*times_by_rank.values())) == list(range(80))
    assert len(times_by_rank[0]) == len(times_by_rank[1]) > 24
    assert len(times_by_rank[2]) == len(times_by_rank[3]) < 16  # 20 are its part
    for leader, follower in ((0, 1), (2, 3)):
        assert [index + 1 for index in times_by_rank[leader]] == list(times_by_rank[follower])
    first, second = ([r["history"][0]["host_copies"] for r in results[i::2]] for i in (0, 1))
    assert min(first) > 0  # of nodes; one for each averaging, so more than one where a node is slow
    assert second == [0, 0]


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "ranks", "victim"),
    [("adpsgd", 2, 0), ("asgd", 2, 1), ("nodes", 4, 3), ("delayed", 2, 1)],
)
def test_a_kill_within_an_epoch_loses_only_steps_after_the_last_checkpoint(
    tmp_path, method, ranks, victim
):
    """With `checkpoint_seconds` of 0 only the last steps of rank 0, which writes it, are lost.

    Those are one or two (delayed: ten). The victim waits before it dies, and the others continue.
    """
    number = 30 * ranks
    call = (tmp_path, ASYNCHRONOUS[method], None, number)
    Job(ranks, trained, *call, victim=victim, checkpoint_seconds=0).wait(PATIENCE)
    times_before_kill = read_training_times(tmp_path, 1)
    results = Job(ranks, trained, *call).wait(PATIENCE)
    assert all(isinstance(result, dict) for result in results), results
    times_after_kill = read_training_times(tmp_path, 1)
    done, again = list(chain(*times_before_kill.values())), list(chain(*times_after_kill.values()))
    assert len(times_before_kill[victim]) == 12
    assert len(set(again)) == len(again)
    assert set(done) | set(again) == set(range(number))
    checkpoint_time = sorted(times_before_kill[0].values())[-11 if method == "delayed" else -3]
    for rank in range(ranks):
        times = times_before_kill[rank]
        assert all(times[i] >= checkpoint_time for i in again if i in times)
    assert results[0]["score"] == results[1]["score"] > 0.5


@pytest.mark.long
def test_a_single_node_continues_with_its_weights_after_a_kill_within_an_epoch(tmp_path):
    """Its workers take every step together, so the kill does not change the result."""
    nodes = ASYNCHRONOUS["nodes"]
    whole = Job(2, trained, tmp_path / "whole", nodes).wait(PATIENCE)
    killed = tmp_path / "killed"
    Job(2, trained, killed, nodes, victim=1, checkpoint_seconds=0).wait(PATIENCE)
    assert len(read_training_times(killed, 1)[1]) == 12
    again = Job(2, trained, killed, nodes).wait(PATIENCE)
    for result, expected in zip(again, whole, strict=True):
        for name, value in expected["weights"].items():
            np.testing.assert_allclose(result["weights"][name], value, atol=1e-6)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The results of each method, uninterrupted."""
    done = {}

    def run(method, ranks):
        if method not in done:
            folder = tmp_path_factory.mktemp(method)
            done[method] = Job(ranks, trained, folder, ASYNCHRONOUS[method]).wait(PATIENCE)
        return done[method]

    return run


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "ranks_before", "victim", "ranks_after"),
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
    whole, tmp_path, method, ranks_before, victim, ranks_after
):
    parallel = ASYNCHRONOUS[method]
    begun = time.monotonic()
    job = Job(ranks_before, trained, tmp_path, parallel, partial(die, victim=victim))
    results = job.wait(PATIENCE)
    assert time.monotonic() - begun < 60
    for rank, message in enumerate(results):
        if rank == victim:
            assert message is None
            continue
        assert f"worker {victim} (process {job.processes[victim].pid} on " in message
        assert "was killed" in message
        assert "The same command continues" in message
        assert job.exit_codes()[rank] == 1
    assert "epoch-0001-step-00000000" in " ".join(p.name for p in tmp_path.rglob("*"))
    results = Job(ranks_after, trained, tmp_path, parallel).wait(PATIENCE)
    assert all(isinstance(result, dict) for result in results), results
    assert [record["epoch"] for record in results[0]["history"]] == [1, 2]
    uninterrupted = whole(method, ranks_before)[0]
    for result in results:
        assert result["score"] == results[0]["score"]
        assert abs(result["score"] - uninterrupted["score"]) < 0.05
    if method == "delayed":  # keeps all in step, so nothing depends on time
        for name, value in uninterrupted["weights"].items():
            assert np.array_equal(value, results[0]["weights"][name])
        assert results[0]["history"] == uninterrupted["history"]  # with the bytes sent


@pytest.mark.long
@pytest.mark.parametrize("method", ["adpsgd", "delayed", "hadpsgd", "asgd"])
def test_several_processes_continue_the_training_of_one(method, tmp_path):
    Job(1, trained, tmp_path, ASYNCHRONOUS[method], die, checkpoint_seconds=0).wait()
    assert list(tmp_path.glob("checkpoints/epoch-0001-step-0000000[1-9]*"))
    results = Job(2, trained, tmp_path, ASYNCHRONOUS[method]).wait()
    first, second = results
    assert [record["epoch"] for record in first["history"]] == [1, 2]
    assert "bytes_per_step" not in first["history"][0]
    assert first["score"] == second["score"] > 0.5
    assert first["history"][1]["loss"] < first["history"][0]["loss"]


def test_continuing_in_one_process_warns_of_dropped_state(caplog):
    strategy = Strategy()
    strategy.load_state_dict({"steps": 3, "ranks": 2}, [{"running": []}])
    assert not caplog.messages
    strategy.load_state_dict({"bmuf": {}}, [{"residual": 0}, {"residual": 1}])
    assert [m.rpartition("drops ")[2] for m in caplog.messages] == [
        "the block momentum",
        "the gradients that were not sent yet",
    ]


def fail(rank, epoch, step):
    if (os.environ["RANK"], epoch, step) == ("0", 0, 20):
        raise ValueError("the disk is full")


@pytest.mark.parametrize("method", ["asgd", "adpsgd"])
def test_an_error_of_one_worker_ends_all_at_once(method, tmp_path):
    begun = time.monotonic()
    first, *other_messages = Job(4, trained, tmp_path, ASYNCHRONOUS[method], fail, 200).wait()
    assert time.monotonic() - begun < 25  # of which the start takes most
    assert first == "ValueError: the disk is full"
    for message in other_messages:
        assert "worker 0 failed: ValueError: the disk is full" in message
