"""Training steps on the meta device, whose tensors have no values, so nothing may read one."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from tests.gpu.steps import CRITERIA, make

META = torch.device("meta")


class NoWaiting(TorchFunctionMode):
    """Fails at copies to the device that would wait; without pinned memory all do."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if isinstance(result, torch.Tensor) and result.device == META:
            is_new = function in (torch.tensor, torch.as_tensor)
            is_copied = function is torch.Tensor.to and args[0].device.type == "cpu"
            if is_new or (is_copied and not kwargs.get("non_blocking")):
                raise AssertionError(f"{function.__name__} waits for the device")
        return result


@pytest.fixture(scope="module")
def sentences(tmp_path_factory):
    from tests.gpu.conftest import make_sentences

    return make_sentences(tmp_path_factory.mktemp("sentences"))


@pytest.mark.parametrize("criterion", [name for name in CRITERIA if not name.startswith("ctc")])
def test_a_step_asks_for_no_value(criterion, sentences):
    task = make(criterion, META, sentences)
    model, batch = task.model.to(META).train(), task.batch.to(META)
    with NoWaiting():
        loss, stats = task.objective(model, batch)
        (loss / stats["weight"]).backward()
    assert {x.device for x in stats.values()} == {META}


@pytest.mark.skipif(torch.__version__ < "2", reason="torch 1.13 has no convolutions there")
@pytest.mark.parametrize("criterion", ["ctc", "ctc both ways"])
def test_a_ctc_network_asks_for_no_value(criterion, sentences):
    task = make(criterion, META, sentences)
    model, batch = task.model.to(META).train(), task.batch.to(META)
    with NoWaiting():
        model(batch.inputs, batch.input_lengths)[0].sum().backward()


def test_the_detector_finds_a_waiting_copy():
    with NoWaiting():
        for wait in (
            lambda: torch.tensor(1.0, device=META),
            lambda: torch.zeros(2).to(META),
        ):
            with pytest.raises(AssertionError, match="waits for the device"):
                wait()
        with pytest.raises(RuntimeError, match=r"(?i)meta"):
            torch.zeros((), device=META).item()
