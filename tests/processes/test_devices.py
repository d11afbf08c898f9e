import pytest
import torch
from torch.backends import cudnn

from toolkit.errors import ToolkitError
from toolkit.processes.devices import check_device, choose_device, full_float32, to_device


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


@pytest.mark.parametrize("name", ["foo", "CPU", "cuda:", "cuda:x", "", "cpu "])
def test_what_is_no_device_is_refused_before_anything_is_loaded(name):
    with pytest.raises(ToolkitError, match=f"--device {name}: there are cpu, cuda"):
        check_device(name)


@pytest.mark.parametrize("name", ["cpu", "cpu:0", None])
def test_devices_are_chosen(name):
    assert choose_device(name) in ("cpu", "cpu:0", "cuda")
