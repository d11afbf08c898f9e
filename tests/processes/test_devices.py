import torch
from torch.backends import cudnn

from toolkit.processes.devices import full_float32, to_device


def test_float32_has_all_its_bits_inside_alone():
    before = cudnn.allow_tf32
    with full_float32(torch.device("cuda")):
        assert not cudnn.allow_tf32
        assert cudnn.enabled
    assert cudnn.allow_tf32 == before
    with full_float32(torch.device("cpu")):
        assert cudnn.allow_tf32 == before


def test_a_tensor_that_is_there_already_is_not_copied():
    x = torch.zeros(3)
    assert to_device(x, torch.device("cpu")) is x
    assert to_device(x, torch.device("meta")).is_meta
