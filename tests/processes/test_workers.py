"""Worker processes."""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

from toolkit.processes.workers import (
    WorkerError,
    WorkerPool,
    map_in_processes,
    processor_seconds,
    shared_workers,
)


def filled_array(number):
    return np.full(3, number)


def test_results_come_in_order_and_are_freed():
    """Sums of parts must not need the memory of all of them."""
    references = []
    with WorkerPool(2) as pool:
        results = pool.map(filled_array, range(8))
        for number, result in enumerate(results):
            assert result.tolist() == [number] * 3
            references.append(weakref.ref(result))
            del result
            assert sum(ref() is not None for ref in references) <= 1


def pid(number):
    if number < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
    return os.getpid()


def test_shared_workers_stay_until_the_end_of_the_block():
    with shared_workers():
        pids = set(map_in_processes(pid, range(8), 2))
        with WorkerPool(2) as pool:
            pids |= set(pool.map(pid, range(8)))
        pids |= set(map_in_processes(pid, range(3), 2))
        assert len(pids) <= 2
        assert set(map_in_processes(pid, [0], 2)) == {os.getpid()}
        with pytest.raises(WorkerError):
            list(map_in_processes(pid, [-1, 1], 2))
        new_pids = set(map_in_processes(pid, range(8), 2))
        assert not pids & new_pids
    assert not multiprocessing.active_children()
    assert not new_pids & set(map_in_processes(pid, range(8), 2))


@shared_workers()
def pids_of_two_maps():
    return set().union(*(map_in_processes(pid, range(8), 2) for _ in range(2)))


def test_a_function_can_share_workers():
    first = pids_of_two_maps()
    assert len(first) <= 2
    assert not first & pids_of_two_maps()


IMPORTING = """
if __name__ == "__mp_main__":
    import time
    print("begun\\n", end="", flush=True)
    time.sleep(55)
"""
INTERRUPTED = """
import sys, time
from pathlib import Path
from toolkit.processes.workers import map_in_processes


def write_late(path):
    print("begun\\n", end="", flush=True)
    time.sleep(55)
    Path(path).touch()


if __name__ == "__main__":
    list(map_in_processes(write_late, [sys.argv[1] + "/a", sys.argv[1] + "/b"], 2))
"""


@pytest.mark.parametrize("importing", [False, True])
def test_interrupted_workers_end_with_their_parent(tmp_path, importing):
    """Ctrl-C reaches all processes; no worker may continue after it."""
    script = tmp_path / "script.py"
    script.write_text((IMPORTING if importing else "") + INTERRUPTED)
    process = subprocess.Popen(
        [sys.executable, script, tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        start_new_session=True,
    )
    assert process.stdout.readline() == "begun\n"
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    stderr = process.communicate(timeout=60)[1]
    assert stderr.rstrip().endswith("KeyboardInterrupt")
    assert stderr.count("Traceback") == 1  # none of the workers'
    assert time.monotonic() - began < 50
    assert not [*tmp_path.glob("[ab]")]


def environment(name):
    return os.environ.get(name), os.getppid()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are spawned")
def test_workers_are_forked_from_one_server_with_the_current_environment(
    monkeypatch,
):
    environments = []
    for value in ("one", "two"):
        monkeypatch.setenv("TOOLKIT_TRIED", value)
        environments += map_in_processes(environment, ["TOOLKIT_TRIED"] * 2, 2)
    assert [value for value, _ in environments] == ["one", "one", "two", "two"]
    (server,) = {parent for _, parent in environments}
    assert server != os.getpid()


def busy(seconds):
    began = time.process_time()
    while time.process_time() < began + seconds:
        pass


def test_the_work_of_workers_counts_as_processor_time():
    start_seconds = processor_seconds()
    list(map_in_processes(busy, [0.5, 0.5], 2))
    assert processor_seconds() - start_seconds >= 1


@pytest.mark.long
def test_workers_start_where_the_temporary_path_is_too_long_for_a_socket(tmp_path, monkeypatch):
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    assert list(map_in_processes(len, ["a", "bc"], 2)) == [1, 2]
