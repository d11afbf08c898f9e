import subprocess
import sys
import time

import numpy as np
import pytest

from toolkit.processes import memory
from toolkit.processes.memory import MemoryWatch

HOLD = "import sys; held = bytearray(80 << 20); print('ready', flush=True); sys.stdin.read()"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no /proc")
def test_peak_includes_memory_freed_between_samples(monkeypatch):
    monkeypatch.setattr(memory, "INTERVAL", 1000.0)
    with MemoryWatch() as first_watch:
        pass
    with MemoryWatch() as watch:
        np.ones(200 << 17)  # 200 MiB
    assert watch.peak_bytes > first_watch.peak_bytes + (150 << 20)
    with MemoryWatch() as last_watch:  # an earlier peak does not count
        pass
    assert last_watch.peak_bytes < watch.peak_bytes - (100 << 20)


def test_peak_includes_child_processes(monkeypatch):
    monkeypatch.setattr(memory, "INTERVAL", 0.01)
    with MemoryWatch() as alone:
        pass
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        more, end = alone.peak_bytes + (70 << 20), time.monotonic() + 60
        with MemoryWatch() as watch:
            while watch.peak_bytes <= more and time.monotonic() < end:
                pass
        child.communicate()
    assert watch.peak_bytes > more


def test_resident_bytes_is_known_only_while_a_watch_runs(monkeypatch):
    monkeypatch.setattr(memory, "INTERVAL", 0.01)
    with MemoryWatch():
        end = time.monotonic() + 60
        while not memory.resident_bytes() and time.monotonic() < end:
            time.sleep(0.01)
        assert memory.resident_bytes() > 10 << 20
    assert memory.resident_bytes() == 0
