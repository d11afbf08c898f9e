import pytest
import torch
from torch.backends import cudnn

from toolkit.errors import ToolkitError
from toolkit.processes.devices import check_device, choose_device, full_float32, to_device


def test_full_float32_disables_tf32_only_within_its_block():
    previous_setting = cudnn.allow_tf32
    with full_float32(torch.device("cuda")):
        assert not cudnn.allow_tf32
        assert cudnn.enabled
    assert cudnn.allow_tf32 == previous_setting
    with full_float32(torch.device("cpu")):
        assert cudnn.allow_tf32 == previous_setting


def test_to_device_does_not_copy_a_tensor_that_is_on_the_device():
    x = torch.zeros(3)
    assert to_device(x, torch.device("cpu")) is x
    assert to_device(x, torch.device("meta")).is_meta


@pytest.mark.parametrize("name", ["foo", "CPU", "cuda:", "cuda:x", "", "cpu "])
def test_check_device_refuses_an_unknown_device(name):
    with pytest.raises(ToolkitError, match=f"--device {name}: no such device; use cpu, cuda"):
        check_device(name)


@pytest.mark.parametrize("name", ["cpu", "cpu:0", None])
def test_devices_are_chosen(name):
    assert choose_device(name) in ("cpu", "cpu:0", "cuda")
