"""Pools, which leave their processes to the next one."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.processes.tasks import fail, kill, process
from toolkit.processes import workers
from toolkit.processes.workers import WorkerError, WorkerPool, end_idle_workers, map_in_processes
from toolkit.stages.recipe import Recipe

PROJECT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Settings:
    """Of a recipe."""

    seed: int = 0


@pytest.fixture(autouse=True)
def no_workers(monkeypatch):
    """None before and after; they start without torch, which takes seconds."""
    end_idle_workers()
    monkeypatch.setattr(workers, "_start", workers._end_quietly_when_interrupted)
    yield
    end_idle_workers()


def used(jobs=2):
    """The worker processes that do ten items."""
    return {*map_in_processes(process, range(10), jobs)}


def living(processes):
    return [pid for pid in processes if psutil.pid_exists(pid)]


def test_the_next_pool_of_as_many_jobs_uses_the_same_processes():
    first = used()
    assert os.getpid() not in first
    assert {*first, *used(), *used()} <= {*living(children())}
    assert len(children()) <= 2
    end_idle_workers()
    assert living(first) == []
    assert not first & used()


def children():
    """The worker processes of this one."""
    found = psutil.Process().children()
    return [child.pid for child in found if "spawn_main" in " ".join(child.cmdline())]


def test_a_pool_of_more_jobs_has_processes_of_its_own():
    first = used(2)
    assert not first & used(3)
    assert living(first) == []


def test_two_pools_at_a_time_share_no_process():
    with WorkerPool(2) as one, WorkerPool(2) as other:
        assert not {*one.map(process, range(4))} & {*other.map(process, range(4))}


@pytest.mark.parametrize(("function", "error"), [(kill, WorkerError), (fail, LookupError)])
def test_after_an_error_processes_are_not_handed_on(function, error):
    first = used()
    with pytest.raises(error):
        list(map_in_processes(function, range(4), 2))
    assert living(first) == []
    assert not first & used()


def test_processes_that_were_killed_while_idle_are_replaced():
    first = used()
    for pid in children():
        os.kill(pid, signal.SIGKILL)
    assert not first & used()


def test_a_forked_process_has_workers_of_its_own():
    first = used()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, b"%d" % (first.isdisjoint(used())))
            end_idle_workers()
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as said:
        assert said.read() == "1"
    os.waitpid(child, 0)
    assert used() <= {*children()}


def test_a_stage_that_trains_has_their_memory(tmp_path):
    recipe, found = Recipe("r", tmp_path / "run.py", {"a": Settings}), []
    recipe.stage(1, "Map")(lambda run: found.append(used()))
    recipe.stage(2, "Map again")(lambda run: found.append({*children()}))
    recipe.stage(3, "Train", parallel=True)(lambda run: found.append({*children()}))
    with pytest.raises(SystemExit) as end:
        recipe.main(["--exp", str(tmp_path / "exp"), "--device", "cpu"])
    assert end.value.code in (0, None)
    assert found[0] <= found[1]
    assert found[2] == set()


IDLE = """
import os, signal
from toolkit.processes.workers import end_idle_workers, map_in_processes

def work(item):
    return os.getpid()

if __name__ == "__main__":
    list(map_in_processes(work, range(10), 2))
    signal.signal(signal.SIGINT, lambda *_: None)
    os.killpg(0, signal.SIGINT)
    end_idle_workers()
"""


def test_ctrl_c_ends_those_that_wait_without_a_word(tmp_path):
    script = tmp_path / "idle.py"
    script.write_text(IDLE)
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
