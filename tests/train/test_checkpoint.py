import pytest
import torch

from toolkit.train.checkpoints import Checkpoints, read_state, write_state
from toolkit.train.errors import TrainingError


def test_a_nested_state_keeps_types_keys_and_bits(tmp_path):
    state = {
        "tensors": {0: {"step": torch.tensor(3.0), "m": torch.randn(3, 2).t()}, 1: {}},
        "numbers": [1, 0.1, float("nan"), True, None, "text"],
        "tuple": (0.9, 0.999),
        "half": torch.randn(4).half(),
        "empty": torch.zeros(0, dtype=torch.int64),
    }
    write_state(tmp_path / "state", state)
    loaded = read_state(tmp_path / "state")
    assert list(loaded["tensors"]) == [0, 1]
    assert torch.equal(loaded["tensors"][0]["m"], state["tensors"][0]["m"])
    assert loaded["tensors"][0]["step"].shape == ()
    assert loaded["numbers"][:2] == [1, 0.1]
    assert loaded["numbers"][2] != loaded["numbers"][2]
    assert loaded["numbers"][3:] == [True, None, "text"]
    assert loaded["tuple"] == [0.9, 0.999]
    assert loaded["half"].dtype == torch.float16
    assert torch.equal(loaded["empty"], state["empty"])


def test_tensors_that_share_memory_come_back_under_each_name(tmp_path):
    shared = torch.randn(3)
    write_state(tmp_path / "state", {"one": shared, "other": shared, "rows": shared.view(3, 1)})
    loaded = read_state(tmp_path / "state")
    assert torch.equal(loaded["one"], shared)
    assert torch.equal(loaded["other"], shared)
    assert torch.equal(loaded["rows"], shared[:, None])


def test_a_restored_optimizer_continues_identically(tmp_path):
    def make():
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 2)
        return layer, torch.optim.Adam(layer.parameters(), lr=0.1)

    def step(layer, optimizer):
        optimizer.zero_grad()
        layer(torch.ones(1, 3)).square().sum().backward()
        optimizer.step()

    layer, optimizer = make()
    step(layer, optimizer)
    write_state(tmp_path / "s", {"m": layer.state_dict(), "o": optimizer.state_dict()})
    step(layer, optimizer)
    restored_layer, restored = make()
    state = read_state(tmp_path / "s")
    restored_layer.load_state_dict(state["m"])
    restored.load_state_dict(state["o"])
    step(restored_layer, restored)
    assert torch.equal(restored_layer.weight, layer.weight)


def test_the_newest_is_read_and_old_ones_are_removed(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.load_latest() is None
    for epoch, step in ((0, 9), (0, 10), (1, 0), (1, 2)):
        checkpoints.save(epoch, step, {"at": [epoch, step]})
        assert checkpoints.load_latest() == {"at": [epoch, step]}
    assert len(list(tmp_path.iterdir())) == 2


def test_the_newest_checkpoint_may_have_a_lower_step(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step in (78, 80):
        checkpoints.save(1, step, {"at": step})
    for step in (45, 50, 55):  # of twice as many workers, who went on from 40
        checkpoints.save(1, step, {"at": step})
        assert checkpoints.load_latest() == {"at": step}
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "epoch-0001-step-00000050.safetensors",
        "epoch-0001-step-00000055.safetensors",
    ]


def test_a_damaged_checkpoint_is_named(tmp_path):
    Checkpoints(tmp_path).save(0, 1, {"x": torch.ones(100)})
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(TrainingError, match=path.name):
        Checkpoints(tmp_path).load_latest()


def test_parts_of_ranks_are_removed_with_their_checkpoint(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step in range(4):
        for rank in range(2):
            checkpoints.save_rank(0, step, rank, {"own": 10 * step + rank})
        checkpoints.save(0, step, {"step": step})
    checkpoints.save_rank(0, 9, 0, {"own": 90})  # killed before the checkpoint was complete
    assert checkpoints.load_latest() == {"step": 3}
    assert [checkpoints.load_rank(0, 3, rank) for rank in range(2)] == [
        {"own": 30},
        {"own": 31},
    ]
    for place in ((0, 3, 2), (0, 1, 0)):
        with pytest.raises(
            TrainingError, match=rf"the state of worker {place[2]} in the checkpoint, is missing"
        ):
            checkpoints.load_rank(*place)
    checkpoints.save(0, 4, {"step": 4})
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {
        "epoch-0000-step-00000003.safetensors",
        "epoch-0000-step-00000003.rank-0000.safetensors",
        "epoch-0000-step-00000003.rank-0001.safetensors",
        "epoch-0000-step-00000004.safetensors",
    }
