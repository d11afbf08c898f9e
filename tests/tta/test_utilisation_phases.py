import numpy as np
import pytest

from toolkit.train.runlog import Utilisation
from toolkit.tta.utilisation import Window, mean_utilisation, phases, waiting, window

STEP = [  # of 10 samples: (cpu, gpu 0, gpu 1)
    *[(0.9, 0.0, 0.0)] * 2,  # transfer
    *[(0.2, 1.0, 0.9)] * 5,  # compute
    *[(0.4, 0.1, 0.0)] * 2,  # update
    (0.1, 0.0, 0.0),
]


def samples_of(table, interval=0.5, start=0.0):
    return [
        Utilisation(seconds=start + interval * n, cpu=(cpu, cpu), gpus=tuple(gpus))
        for n, (cpu, *gpus) in enumerate(table, 1)
    ]


def test_the_phases_of_planted_steps_are_found():
    spans = phases(window(samples_of(STEP * 3)))
    assert [span.phase for span in spans] == [*("transfer", "compute", "update") * 3]
    compute = [(span.begin, span.end) for span in spans if span.phase == "compute"]
    assert compute == [(0.5, 3.0), (5.5, 8.0), (10.5, 13.0)]  # the first sample ends at 0
    assert spans[2].begin == 3.0
    assert spans[2].end == 4.5


@pytest.mark.parametrize("table", [[(0.9,)] * 30, [(0.5, 0.97), (0.4, 0.99)] * 15])
def test_without_devices_or_without_swing_there_are_no_phases(table):
    assert phases(window(samples_of(table))) == []


def test_the_window_is_a_burst_from_the_middle():
    coarse = [(0.5, 0.5)] * 10
    fine = [(0.5, 0.5)] * 300
    samples = []
    for n in range(3):
        samples += samples_of(fine, 0.1, 100.0 * n)
        samples += samples_of(coarse, 5.0, 100.0 * n + 30)
    burst = window(samples, 25.0)
    assert len(burst.seconds) in (250, 251)
    assert burst.seconds[0] == 0
    assert burst.seconds[-1] <= 25.0
    assert 100 <= burst.began < 130
    assert burst.gpus.shape == (len(burst.seconds), 1)


def test_the_window_avoids_pauses():
    samples = samples_of([(0.5, 0.5)] * 1000, 0.1)
    burst = window(samples, 25.0, avoid=[(20.0, 60.0), (90.0, 95.0)])
    assert 59 <= burst.began <= 66


def test_the_share_of_the_training_is_shown_when_measured():
    samples = [Utilisation(seconds=n, cpu=(1.0, 0.6), process=0.5) for n in range(5)]
    shown_window = window(samples)
    assert shown_window.cpu.tolist() == [0.5] * 5
    assert shown_window.machine.tolist() == [0.8] * 5
    assert mean_utilisation(samples)[0] == pytest.approx(0.5)


def test_too_few_samples_give_no_window():
    assert window(samples_of([(0.5,)] * 2)) is None


def test_the_device_that_is_done_first_waits():
    gpus = np.array([[1.0, 0.5], [1.0, 0.6], [0.1, 0.9], [0.0, 1.0]])
    samples = Window(np.arange(4.0), np.zeros(4), np.zeros(4), gpus, 0.0)
    assert waiting(samples) == [0.5, 0.0]


def test_means_are_over_time_not_over_samples():
    samples = [
        Utilisation(seconds=1.0, cpu=(1.0, 0.0), gpus=(1.0,)),
        Utilisation(seconds=10.0, cpu=(0.0, 0.0), gpus=(0.5,)),
    ]
    cpu, gpus = mean_utilisation(samples)
    assert cpu == pytest.approx(0.05)
    assert gpus == pytest.approx([0.55])
    assert mean_utilisation([]) == (0.0, [])
