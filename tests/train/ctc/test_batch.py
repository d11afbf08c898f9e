import json

import torch
from safetensors import safe_open

from toolkit.train.ctc.readers import CtcBatch

BATCH = CtcBatch(
    ids=["a", "b"],
    inputs=torch.arange(12.0).view(2, 3, 2),
    input_lengths=torch.tensor([3, 2]),
    labels=torch.tensor([[4, 5, 9], [6, 9, 9]]),
    label_lengths=torch.tensor([2, 1]),
    frames=5,
)


def test_a_saved_batch_can_be_loaded(tmp_path):
    BATCH.save(tmp_path / "batch.safetensors")
    with safe_open(tmp_path / "batch.safetensors", framework="pt") as file:
        assert json.loads(file.metadata()["ids"]) == ["a", "b"]
        for name in ("inputs", "input_lengths", "labels", "label_lengths"):
            assert torch.equal(file.get_tensor(name), getattr(BATCH, name))


def test_labels_come_without_padding():
    assert BATCH.label_sequences() == [[4, 5], [6]]


def test_only_tensors_of_the_computation_move():
    moved = BATCH.to(torch.device("meta"))
    assert moved.inputs.device.type == moved.labels.device.type == "meta"
    assert moved.input_lengths.device.type == moved.label_lengths.device.type == "cpu"
    assert BATCH.to(torch.device("cpu")) is BATCH
