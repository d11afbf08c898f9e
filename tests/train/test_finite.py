"""Bad steps are found when a GPU's copies arrive; fake events stand for the GPU."""

from typing import ClassVar

import pytest
import torch

from toolkit.train import precision
from toolkit.train.precision import NonFiniteDetector

NAN = torch.tensor(float("nan"))
CPU = torch.device("cpu")


class Event:
    """The end of a copy; a test sets `done`, or a wait does."""

    created: ClassVar[list] = []

    def __init__(self):
        self.done, self.waited = False, False
        Event.created.append(self)

    def record(self):
        pass

    def query(self):
        return self.done

    def synchronize(self):
        self.waited = self.waited or not self.done


@pytest.fixture
def on_gpu(monkeypatch):
    Event.created = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda size, dtype, pin_memory: empty(size, dtype=dtype))
    return NonFiniteDetector(torch.device("cuda"))


def test_on_the_cpu_the_previous_step_is_checked():
    check = NonFiniteDetector(CPU)
    assert check.first_bad_batch() is None
    check.add(torch.tensor(1.0), "good")
    assert check.first_bad_batch() is None
    check.add(NAN, "bad")
    check.add(NAN, "worse")
    assert check.first_bad_batch() == "bad"


def test_the_check_does_not_wait_for_a_gpu(on_gpu):
    on_gpu.add(NAN, "bad")
    on_gpu.add(torch.tensor(1.0), "good")
    assert on_gpu.first_bad_batch() is None
    Event.created[0].done = True
    assert on_gpu.first_bad_batch() == "bad"
    assert not any(event.waited for event in Event.created)


def test_the_check_waits_for_a_gpu_that_is_far_behind(on_gpu):
    for number in range(precision.STEPS_BEHIND):
        on_gpu.add(NAN if number == 0 else torch.tensor(1.0), number)
        assert on_gpu.first_bad_batch() is None
    on_gpu.add(torch.tensor(1.0), "next")
    assert on_gpu.first_bad_batch() == 0
    assert [event.waited for event in Event.created].count(True) == 1


def test_all_steps_are_checked_before_a_checkpoint(on_gpu):
    on_gpu.add(torch.tensor(1.0), "good")
    on_gpu.add(NAN, "bad")
    assert on_gpu.first_bad_batch(wait=True) == "bad"
    assert on_gpu.first_bad_batch(wait=True) is None
