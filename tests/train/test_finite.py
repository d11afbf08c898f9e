"""Bad steps are found when a GPU's copies arrive; the GPU is made of fake events."""

from typing import ClassVar

import pytest
import torch

from toolkit.train import precision
from toolkit.train.precision import NonFiniteDetector

NAN = torch.tensor(float("nan"))
CPU = torch.device("cpu")


class Event:
    """The end of a copy; done when told, or waited for."""

    made: ClassVar[list] = []

    def __init__(self):
        self.done, self.waited = False, False
        Event.made.append(self)

    def record(self):
        pass

    def query(self):
        return self.done

    def synchronize(self):
        self.waited = self.waited or not self.done


@pytest.fixture
def on_gpu(monkeypatch):
    Event.made = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda size, dtype, pin_memory: empty(size, dtype=dtype))
    return NonFiniteDetector(torch.device("cuda"))


def test_on_the_cpu_the_step_before_is_known():
    check = NonFiniteDetector(CPU)
    assert check.first_bad_batch() is None
    check.add(torch.tensor(1.0), "good")
    assert check.first_bad_batch() is None
    check.add(NAN, "bad")
    check.add(NAN, "worse")
    assert check.first_bad_batch() == "bad"


def test_a_gpu_is_not_waited_for(on_gpu):
    on_gpu.add(NAN, "bad")
    on_gpu.add(torch.tensor(1.0), "good")
    assert on_gpu.first_bad_batch() is None
    Event.made[0].done = True
    assert on_gpu.first_bad_batch() == "bad"
    assert not any(event.waited for event in Event.made)


def test_a_gpu_that_is_far_behind_is_waited_for(on_gpu):
    for number in range(precision.STEPS_BEHIND):
        on_gpu.add(NAN if number == 0 else torch.tensor(1.0), number)
        assert on_gpu.first_bad_batch() is None
    on_gpu.add(torch.tensor(1.0), "next")
    assert on_gpu.first_bad_batch() == 0
    assert [event.waited for event in Event.made].count(True) == 1


def test_before_a_checkpoint_all_are_known(on_gpu):
    on_gpu.add(torch.tensor(1.0), "good")
    on_gpu.add(NAN, "bad")
    assert on_gpu.first_bad_batch(wait=True) == "bad"
    assert on_gpu.first_bad_batch(wait=True) is None
