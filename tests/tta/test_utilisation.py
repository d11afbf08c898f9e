import subprocess
import sys
import time

import pytest

from toolkit.tta import machine, utilisation
from toolkit.tta.utilisation import Meter, UtilisationConfig, sampling

FAST = UtilisationConfig(fine=0.02, coarse=0.02, burst=1.0, period=1.0)


def use_processor(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        sum(range(1000))


def test_a_busy_process_has_full_utilisation(monkeypatch):
    monkeypatch.setattr(utilisation, "usable_cpus", lambda: 1)
    outer, spent_outer = time.monotonic(), time.process_time()
    meter = Meter()
    inner, spent_inner = time.monotonic(), time.process_time()
    use_processor(0.3)
    inner, spent_inner = time.monotonic() - inner, time.process_time() - spent_inner
    sample = meter.sample()
    outer, spent_outer = time.monotonic() - outer, time.process_time() - spent_outer
    tick = 0.03 / inner  # the system counts in hundredths of a second
    assert spent_inner / outer - tick <= sample.process <= spent_outer / inner + tick
    assert all(0 <= core <= 1 for core in sample.cpu)
    time.sleep(0.2)
    assert meter.sample().process < 0.5


def wait_for(condition):
    """Wait for a condition for at most a minute."""
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


def test_child_processes_count(monkeypatch):
    monkeypatch.setattr(utilisation, "CHILDREN_INTERVAL", 0.0)
    monkeypatch.setattr(utilisation, "usable_cpus", lambda: 1)
    code = "import time\nwhile time.process_time() < 0.3: pass\ntime.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code])
    try:
        meter = Meter()
        meter.sample()  # finds the child
        process_seconds, began = 0.0, time.monotonic()
        while process_seconds < 0.1 and time.monotonic() - began < 60:
            start = time.monotonic()
            time.sleep(0.1)
            process_seconds += meter.sample().process * (time.monotonic() - start)
        assert process_seconds >= 0.1
    finally:
        child.kill()
        child.wait()
    assert meter.sample().process <= 1.0


RANK_0 = """
import time
from toolkit.tta.utilisation import UtilisationConfig, sampling
from toolkit.environment import usable_cpus

used = [0.0]  # processor seconds of all ranks

def add(sample, times=[time.monotonic()]):
    times.append(time.monotonic())
    used[0] += sample.process * usable_cpus() * (times[-1] - times[-2])

end = time.monotonic() + 60
with sampling(add, UtilisationConfig(fine=0.1, coarse=0.1)):
    while used[0] < time.process_time() + 0.3 and time.monotonic() < end:
        time.sleep(0.05)
    raise SystemExit(used[0] < time.process_time() + 0.3)
"""
LAUNCHER = """
import os, subprocess, sys
other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
try:
    status = subprocess.run([sys.executable, "-c", sys.argv[1]], env=os.environ | place).returncode
finally:
    other.kill()
sys.exit(status)
"""


def test_all_ranks_of_the_machine_count():
    subprocess.run([sys.executable, "-c", LAUNCHER, RANK_0], check=True)


def test_samples_come_in_the_block_and_not_after_it():
    samples = []
    with sampling(samples.append, FAST):
        wait_for(lambda: len(samples) >= 3)
    count = len(samples)
    time.sleep(0.1)
    assert len(samples) == count
    assert samples[0].cpu


def test_a_fault_of_the_sampler_is_only_a_warning(caplog):
    def full(sample):
        raise OSError("no space left")

    with sampling(full, FAST):
        wait_for(lambda: "utilisation sampling stopped after an error" in caplog.text)


def test_an_error_in_the_block_stops_the_sampler():
    samples = []
    with pytest.raises(KeyError), sampling(samples.append, FAST):
        raise KeyError
    count = len(samples)
    time.sleep(0.1)
    assert len(samples) == count


def test_bursts_are_fine_and_begin_on_time():
    config = UtilisationConfig(fine=0.1, coarse=5.0, burst=30.0, period=100.0)
    now, times = 0.0, []
    while now < 250:
        now += config.interval(now)
        times.append(now)
    assert sum(1.0 < t <= 30.0 for t in times) == pytest.approx(290, abs=2)
    assert sum(31.0 < t <= 95.0 for t in times) <= 13
    assert min(abs(t - 100.0) for t in times) < 0.11
    assert sum(100.0 < t <= 130.0 for t in times) == pytest.approx(300, abs=2)


@pytest.mark.parametrize(
    "values",
    [{"fine": 0.0}, {"fine": 6.0}, {"burst": 400.0}, {"period": 0.0, "burst": 0.0}],
)
def test_impossible_schedules_are_refused(values):
    with pytest.raises(ValueError, match="must be"):
        UtilisationConfig(**values)


class Nvml:
    """A fake pynvml with three devices; the last does not report its utilisation."""

    class NVMLError(Exception):
        pass

    nvmlInit = staticmethod(lambda: None)  # noqa: N815 - NVML's names
    nvmlDeviceGetCount = staticmethod(lambda: 3)  # noqa: N815
    nvmlDeviceGetHandleByIndex = staticmethod(lambda index: index)  # noqa: N815
    nvmlDeviceGetName = staticmethod(lambda handle: f"Device {handle}".encode())  # noqa: N815
    nvmlDeviceGetMaxPcieLinkGeneration = staticmethod(lambda handle: 3)  # noqa: N815
    nvmlDeviceGetMaxPcieLinkWidth = staticmethod(lambda handle: 16 >> handle)  # noqa: N815

    @staticmethod
    def nvmlDeviceGetHandleByUUID(uuid):  # noqa: N802
        if uuid != "GPU-1":
            raise Nvml.NVMLError
        return 1

    @staticmethod
    def nvmlDeviceGetMemoryInfo(handle):  # noqa: N802
        return type("Memory", (), {"total": 8 * 2**30})

    @staticmethod
    def nvmlDeviceGetUtilizationRates(handle):  # noqa: N802
        if handle == 2:
            raise Nvml.NVMLError
        return type("Rates", (), {"gpu": 70 + handle})


@pytest.fixture
def devices(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", Nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("devices")
def test_devices_are_described_and_metered():
    described = machine.Devices()
    assert described.utilisation() == (0.7, 0.71)
    assert described.describe()[1] == machine.Device("Device 1", 8.0, "PCIe 3 x8")
    assert Meter().sample().gpus == (0.7, 0.71)


@pytest.mark.usefixtures("devices")
@pytest.mark.parametrize(
    ("visible", "names"),
    [("1,0", ["1", "0"]), ("GPU-1", ["1"]), ("", []), ("-1,0", []), ("GPU-7", [])],
)
def test_only_visible_devices_count(monkeypatch, visible, names):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [d.name for d in machine.Devices().describe()] == [f"Device {n}" for n in names]


@pytest.mark.parametrize("module", [None, Nvml])
def test_without_package_or_driver_there_are_no_devices(monkeypatch, module):
    monkeypatch.setitem(sys.modules, "pynvml", module)
    if module is not None:

        def fail():
            raise Nvml.NVMLError

        monkeypatch.setattr(Nvml, "nvmlInit", staticmethod(fail))
    assert machine.Devices().utilisation() == ()
    assert machine.Devices().describe() == []
