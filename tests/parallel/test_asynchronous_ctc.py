"""CTC training with asynchronous methods: the contents and times of checkpoints."""

import os
import signal
import time
from dataclasses import replace

import pytest
import torch

from tests.parallel.tiny import Job, with_method
from tests.train.conftest import CtcToy, Spelling
from toolkit.parallel.strategy import make_strategy
from toolkit.train.config import StatesConfig

pytestmark = pytest.mark.long

STEPS = 6  # of a worker, per epoch
TIMEOUT = 3.0
SLOW = 0.8  # seconds that worker 1 takes for a batch of the first epoch


class Slow(Spelling):
    """Worker 1 is so slow that the other would wait too long at a checkpoint; later it dies."""

    deadly = True

    def batches(self, epoch, start=0, rank=0, world_size=1):
        for step, batch in enumerate(super().batches(epoch, start, rank, world_size), start):
            if rank == 1 and epoch == 0 and self.deadly:
                time.sleep(SLOW)
            if (rank, epoch, step) == (1, 1, 5) and self.deadly:
                time.sleep(1.0)  # until it can be seen that this one is there
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch


def spelled(out, method, deadly):
    """Train; return the numbers of steps at which checkpoints were made, and the CER."""
    torch.set_num_threads(1)
    toy = CtcToy()
    toy.data = Slow(8 * STEPS)
    toy.data.deadly = deadly
    parallel = replace(with_method(method), timeout=TIMEOUT)
    machine = StatesConfig(sentences_every=4, checkpoint_every=4)
    config = replace(CtcToy.config, epochs=2, states=machine, parallel=parallel)
    strategy = make_strategy(parallel)
    rank_state_dict, checkpoints = strategy.rank_state_dict, []

    def checked_state():
        """Return the state of a checkpoint; check that its weights are those of the model."""
        state, weights = rank_state_dict(), strategy.flat.weights()
        if method == "adpsgd":
            assert torch.equal(state["weights"], weights), strategy.steps
        elif os.environ["RANK"] == "0":
            assert torch.equal(strategy.server.weights(), weights), strategy.steps
        checkpoints.append(strategy.steps)
        (out / f"made-{os.environ['RANK']}").write_text(repr(checkpoints))
        return state

    strategy.rank_state_dict = checked_state
    headline = toy.train(out, config, strategy=strategy)
    return {"made": checkpoints, "cer": headline["cer"]}


@pytest.mark.parametrize("method", ["asgd", "adpsgd"])
def test_checkpoints_are_stored_and_resumed_only_at_ends_of_epochs(method, tmp_path):
    job = Job(2, spelled, tmp_path, method, True)
    first, second = job.wait()
    assert second is None
    assert f"worker 1 (process {job.processes[1].pid} on " in first
    assert "was killed" in first
    assert (tmp_path / "made-0").read_text() == repr([STEPS, STEPS])
    stored = sorted(path.name for path in tmp_path.glob("checkpoints/epoch-*[0-9].safetensors"))
    assert [name for name in stored if "rank" not in name] == [
        f"epoch-0000-step-{STEPS:08d}.safetensors",
        "epoch-0001-step-00000000.safetensors",
    ]
    results = Job(2, spelled, tmp_path, method, False).wait()
    for result in results:
        assert result["made"] == [2 * STEPS, 2 * STEPS]
        assert result["cer"] == results[0]["cer"]
