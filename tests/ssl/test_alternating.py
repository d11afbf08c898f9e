import pytest

from toolkit.ssl.scheduled import AlternatingBatches, alternating_schedule
from toolkit.train.config import TrainerConfig


class Numbers:
    """Step s of epoch e of rank r is (name, e, s, r)."""

    def __init__(self, name, steps):
        self.name, self.count = name, steps

    def num_steps(self, epoch, world_size=1):
        return (self.count + epoch) // world_size

    def batches(self, epoch, start=0, rank=0, world_size=1):
        return (
            (self.name, epoch, s, rank) for s in range(start, self.num_steps(epoch, world_size))
        )


def test_passes_take_turns():
    source = AlternatingBatches(Numbers("u", 4), Numbers("l", 2))
    assert [source.num_steps(epoch) for epoch in range(4)] == [4, 2, 5, 3]
    assert [source.num_steps(epoch, 2) for epoch in range(4)] == [2, 1, 2, 1]
    assert list(source.batches(2, start=3)) == [("u", 1, 3, 0), ("u", 1, 4, 0)]
    assert list(source.batches(3, rank=1, world_size=2)) == [("l", 1, 0, 1)]


def test_the_rate_decays_only_over_unlabelled_steps():
    steps = [3, 50, 4, 50]
    config = TrainerConfig(initial_rate=1.0, final_rate=0.1)
    rate = alternating_schedule(config, labelled_factor=1.2)
    unlabelled = [rate(0, s, steps) for s in range(3)] + [rate(2, s, steps) for s in range(4)]
    assert unlabelled == pytest.approx([10 ** -(s / 6) for s in range(7)])
    for step in (0, 49):
        assert rate(1, step, steps) == pytest.approx(1.2 * unlabelled[2])
        assert rate(3, step, steps) == pytest.approx(0.12)


def test_unlabelled_steps_warm_up():
    config = TrainerConfig(initial_rate=1.0, final_rate=1.0, warmup_steps=3)
    rate = alternating_schedule(config, labelled_factor=1.5)
    assert [rate(0, s, [5, 2]) for s in range(5)] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert rate(1, 0, [5, 2]) == pytest.approx(1.5)
