"""ADPSGD, H-ADPSGD and A-SGD in processes over gloo: tiny models, slow workers, no deadlock."""

import multiprocessing
import os
import socket
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from toolkit.parallel.config import AdpsgdConfig, AsgdConfig, ParallelConfig, ParallelError

TIMEOUT = 100.0
CONTEXT = multiprocessing.get_context("fork")  # torch is imported already, and this its compiler:
torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
FIXED, RANDOM, DELAYED = (
    ParallelConfig("adpsgd", adpsgd=AdpsgdConfig(pattern=p)) for p in ("fixed", "random", "delayed")
)


def run_workers(ranks, function):
    """Run function(rank) in processes with torchrun's environment; return the results by rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = CONTEXT.SimpleQueue()

    def child(rank):
        from toolkit.processes import ranks as processes

        os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks))
        try:
            result = function(rank)
        except Exception as error:
            result = error
        results.put((rank, result))
        processes.disconnect()

    children = [CONTEXT.Process(target=child, args=(rank,), daemon=True) for rank in range(ranks)]
    for process in children:
        process.start()
    end = time.monotonic() + TIMEOUT
    results_by_rank = {}
    while len(results_by_rank) < ranks:
        assert time.monotonic() < end, f"deadlock: only {sorted(results_by_rank)} came to an end"
        if results.empty():
            time.sleep(0.01)
        else:
            rank, result = results.get()
            assert not isinstance(result, Exception), f"rank {rank}: {result!r}"
            results_by_rank[rank] = result
    for process in children:
        process.join(TIMEOUT)
    return [results_by_rank[rank] for rank in range(ranks)]


def strategy_of(config):
    from toolkit.parallel.strategy import make_strategy

    torch.set_num_threads(1)
    return make_strategy(config)


def problem(rank):
    """A linear model with other initial weights on every rank, and the same data."""
    torch.manual_seed(rank)
    model = nn.Linear(6, 3)
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(400, 6, generator=generator)
    outputs = inputs @ torch.randn(6, 3, generator=generator)
    return model, inputs, outputs


class Gate:
    """Blocks slow workers until all other workers have finished their steps."""

    def __init__(self, ranks, slow):
        self._slow, self._others = slow, ranks - len(slow)
        self._finished = CONTEXT.Value("i", 0)

    def before(self, rank):
        end = time.monotonic() + TIMEOUT / 2
        while rank in self._slow and self._finished.value < self._others:
            assert time.monotonic() < end, "a fast worker waits for a slow one"
            time.sleep(0.01)

    def after(self, rank):
        if rank not in self._slow:
            with self._finished.get_lock():
                self._finished.value += 1


def train(strategy, steps, rate=0.05, pause=0.0, rank=0, epochs=1, gate=None):
    """Train as the loop does; return the consensus of each epoch, final weights and loss."""
    model, inputs, outputs = problem(rank)
    ranks = strategy.world_size
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    strategy.start(model, optimizer)
    ends = []
    gate = gate or Gate(ranks, [])
    gate.before(rank)
    for epoch in range(epochs):
        for step in range(steps):
            rows = slice(8 * ((epoch * steps + step) * ranks + rank) % 392, None)
            x, y = inputs[rows][:8], outputs[rows][:8]
            optimizer.zero_grad(set_to_none=True)
            loss = (model(x) - y).square().sum()
            strategy.backward(loss, torch.tensor(24.0))
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            strategy.after_step()
            time.sleep(pause)
        gate.after(rank)
        strategy.end_epoch()
        with strategy.consensus():
            ends.append(model.weight.detach().clone())
    report = strategy.report()
    strategy.stop()
    loss = (model(inputs) - outputs).square().mean().item()
    return {
        "ends": [end.tolist() for end in ends],
        "weight": model.weight.detach().tolist(),
        "loss": loss,
        **report,
    }


@pytest.mark.long
@pytest.mark.parametrize("config", [FIXED, RANDOM, DELAYED], ids=["fixed", "random", "delayed"])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_no_deadlock_with_a_worker_ten_times_as_slow(config, ranks):
    def train_rank(rank):
        return train(strategy_of(config), 20, pause=0.02 if rank == 1 else 0.002, rank=rank)

    results = run_workers(ranks, train_rank)
    for result in results:
        assert result["ends"] == results[0]["ends"]  # one consensus
        assert result["weight"] == results[0]["weight"]  # from which all go on
        assert result["loss"] < 0.6 * untrained_loss()


@pytest.mark.long
@pytest.mark.parametrize(
    ("config", "ranks", "slow"),
    [
        (FIXED, 4, [1]),
        (FIXED, 4, [2]),
        (RANDOM, 5, [0, 3]),
        (ParallelConfig("hadpsgd", adpsgd=AdpsgdConfig(workers_per_node=2)), 4, [2, 3]),
        (ParallelConfig("asgd"), 4, [1]),
        (ParallelConfig("asgd"), 3, [0]),
    ],
    ids=["adpsgd-answers", "adpsgd-asks", "adpsgd-random", "hadpsgd-node", "asgd", "asgd-first"],
)
def test_fast_workers_do_not_wait_for_slow_ones(config, ranks, slow):
    gate = Gate(ranks, slow)

    def train_rank(rank):
        return train(strategy_of(config), 15, rank=rank, gate=gate)

    results = run_workers(ranks, train_rank)
    assert all(result["weight"] == results[0]["weight"] for result in results)


def untrained_loss():
    model, inputs, outputs = problem(0)
    return (model(inputs) - outputs).square().mean().item()


def test_workers_with_unequal_numbers_of_steps_reach_one_consensus():
    def train_rank(rank):
        return train(strategy_of(FIXED), 40 if rank else 4, rank=rank)

    results = run_workers(4, train_rank)
    assert all(result["weight"] == results[0]["weight"] for result in results)
    assert all(result["averagings"] > 0 for result in results)


def test_averaging_without_steps_keeps_the_mean_and_reaches_a_consensus():
    def train_rank(rank):
        strategy = strategy_of(FIXED)
        model, _, _ = problem(rank)
        strategy.start(model, torch.optim.SGD(model.parameters(), lr=0.0))
        strategy.flat.set_weights(torch.full((21,), float(2**rank)))  # as a step of an optimizer
        for _ in range(60):
            strategy.after_step()
            time.sleep(0.005)
        weights = strategy.rank_state_dict()["weights"]
        strategy.stop()
        return weights.tolist()

    models = torch.tensor(run_workers(4, train_rank))
    assert torch.allclose(models.mean(dim=0), torch.full((21,), 3.75), atol=1e-5)
    assert (models - 3.75).abs().max() < 0.2  # at first 4.25


def test_bytes_are_counted_and_weights_are_restored_from_a_checkpoint():
    def train_rank(rank):
        strategy = strategy_of(FIXED)
        result = train(strategy, 10, rank=rank)
        model, _, _ = problem(rank)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.5)
        strategy.start(model, optimizer)
        expected = {"bytes_per_step": 150.4, "averagings": 0.6, "host_copies": 1.0}
        assert strategy.report() != expected
        state = {**strategy.state_dict(), "steps": 10, "sent": 1000.0}
        rank_state = {
            **strategy.rank_state_dict(),
            "weights": torch.full((21,), float(rank)),
            "counts": {"steps": 10, "sent": 1000.0, "exchanged": 84 * 6},
            "averagings": [6, 6 * (rank == 0)],  # all of them, and those that it has requested
            "host_copies": 10,
        }
        strategy.load_state_dict(state, [rank_state])
        assert strategy.report() == expected
        own_weights = strategy.flat.weights()
        again = strategy.rank_state_dict()
        assert torch.equal(again.pop("weights"), rank_state["weights"])
        assert again == {name: value for name, value in rank_state.items() if name != "weights"}
        weights = rank_state["weights"] + 2
        strategy.load_state_dict(state, [rank_state, {**rank_state, "weights": weights}])
        mean = strategy.flat.weights()
        strategy.stop()
        return {**result, "own": own_weights.tolist(), "mean": mean.tolist()}

    results = run_workers(2, train_rank)
    for rank, result in enumerate(results):
        assert result["own"] == [float(rank)] * 21
        assert result["mean"] == [float(rank) + 1] * 21
        # Each averaging: a header of 16 bytes from the rank that asks, 21 weights each way.
        num_bytes = 84 * result["averagings"] + (16 * result["averagings"] if rank == 0 else 0)
        assert num_bytes <= result["bytes_per_step"] <= num_bytes + 84


def test_one_node_equals_synchronous_training_bit_for_bit():
    def training_of(method):
        config = ParallelConfig(method)
        return lambda rank: train(strategy_of(config), 12, rank=rank, epochs=2)["ends"]

    assert run_workers(2, training_of("hadpsgd")) == run_workers(2, training_of("ssgd"))


def test_nodes_keep_their_workers_alike():
    config = ParallelConfig("hadpsgd", adpsgd=AdpsgdConfig(workers_per_node=2))

    def train_rank(rank):
        return train(strategy_of(config), 20, pause=0.02 if rank == 5 else 0.002, rank=rank)

    results = run_workers(6, train_rank)
    assert all(result["weight"] == results[0]["weight"] for result in results)
    assert results[0]["loss"] < 0.6 * untrained_loss()
    assert [result["bytes_between_per_step"] > 0 for result in results] == [True, False] * 3
    for leader, follower in zip(results[::2], results[1::2], strict=True):
        assert 0 < leader["host_copies"] == leader["averagings"]
        assert follower["host_copies"] == 0


def test_only_the_first_worker_of_a_node_reads_the_whole_model_in_a_step(monkeypatch):
    """Count the calls themselves: no other worker gathers the weights as one vector."""
    from toolkit.parallel.workers import FlatParameters

    config = ParallelConfig("hadpsgd", adpsgd=AdpsgdConfig(workers_per_node=2))
    read = []
    original = FlatParameters.weights

    def noting(self):
        read.append(1)
        return original(self)

    def train_rank(rank):
        monkeypatch.setattr(FlatParameters, "weights", noting)
        strategy = strategy_of(config)
        model, inputs, outputs = problem(rank)
        strategy.start(model, torch.optim.SGD(model.parameters(), lr=0.1))
        read.clear()
        for _ in range(5):
            loss = (model(inputs[:4]) - outputs[:4]).square().sum()
            strategy.backward(loss, torch.tensor(4.0))
            strategy.optimizer.step()
            strategy.after_step()
        num_reads = len(read)
        strategy.end_epoch()
        strategy.stop()
        return num_reads, strategy.host_copies > 0

    assert run_workers(4, train_rank) == [(5, True), (0, False)] * 2


def test_within_a_node_gradients_are_those_of_the_joint_batch():
    config = ParallelConfig("hadpsgd", adpsgd=AdpsgdConfig(workers_per_node=2))

    def train_rank(rank):
        strategy = strategy_of(config)
        model, inputs, outputs = problem(rank)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        strategy.start(model, optimizer)
        rows = slice(8 * rank, 8 * rank + 4 * (rank + 1))  # unequal batches
        loss = (model(inputs[rows]) - outputs[rows]).square().sum()
        strategy.backward(loss, torch.tensor(4.0 * (rank + 1)))
        gradient = model.weight.grad.tolist()
        strategy.end_epoch()
        strategy.stop()
        return gradient

    gradients = run_workers(4, train_rank)
    model, inputs, outputs = problem(0)
    for node in (0, 1):
        rows = [8 * rank + i for rank in (2 * node, 2 * node + 1) for i in range(4 * (rank + 1))]
        model.zero_grad()
        ((model(inputs[rows]) - outputs[rows]).square().sum() / len(rows)).backward()
        for rank in (2 * node, 2 * node + 1):
            assert torch.allclose(torch.tensor(gradients[rank]), model.weight.grad, atol=1e-5)


def test_part_of_a_node_is_an_error():
    def train_rank(rank):
        strategy = strategy_of(ParallelConfig("hadpsgd", adpsgd=AdpsgdConfig(workers_per_node=2)))
        model, _, _ = problem(rank)
        with pytest.raises(ParallelError, match="cannot be divided into nodes of 2"):
            strategy.start(model, torch.optim.SGD(model.parameters(), lr=0.1))

    run_workers(3, train_rank)


@pytest.mark.parametrize("parts", [0, 1])
def test_asynchronous_sgd_learns(parts):
    config = ParallelConfig("asgd", asgd=AsgdConfig(gradients_per_update=parts))

    def train_rank(rank):
        rate = 0.1 if parts == 0 else 0.03
        return train(strategy_of(config), 20, rate=rate, pause=0.002, rank=rank)

    results = run_workers(4, train_rank)
    assert all(result["weight"] == results[0]["weight"] for result in results)
    assert results[0]["loss"] < 0.6 * untrained_loss()


def test_asynchronous_sgd_in_turns_is_synchronous():
    def training_of(method):
        def run(rank):
            strategy = strategy_of(ParallelConfig(method))
            model, inputs, outputs = problem(rank)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
            strategy.start(model, optimizer)
            for step in range(4):
                rows = slice(16 * step + 8 * rank, 16 * step + 8 * rank + 8)
                optimizer.zero_grad(set_to_none=True)
                loss = (model(inputs[rows]) - outputs[rows]).square().sum()
                strategy.backward(loss, torch.tensor(8.0))
                nn.utils.clip_grad_norm_(model.parameters(), 5.0)
                optimizer.step()
                strategy.after_step()
                strategy.end_epoch()  # here all have the same weights
            weights = model.weight.tolist()
            strategy.stop()
            return weights

        return run

    asynchronous, synchronous = (
        run_workers(2, training_of("asgd")),
        run_workers(2, training_of("ssgd")),
    )
    assert asynchronous[0] == asynchronous[1]
    assert torch.allclose(torch.tensor(asynchronous[0]), torch.tensor(synchronous[0]), atol=1e-6)


def test_configuration_is_checked():
    with pytest.raises(ValueError, match="pattern"):
        AdpsgdConfig(pattern="star")
    with pytest.raises(ValueError, match="gradients_per_update"):
        AsgdConfig(gradients_per_update=-1)
    assert replace(FIXED, timeout=3.0).adpsgd.pattern == "fixed"
