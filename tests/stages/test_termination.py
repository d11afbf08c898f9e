import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.stages.conftest import PROJECT
from toolkit.stages.termination import PAUSE, TerminatedError, interruption, terminable


@pytest.fixture(autouse=True)
def heard():
    """What a shell starts in the background ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


WITH_WORKERS = """
import os, sys, time
from toolkit.processes.workers import map_in_processes
from toolkit.stages.termination import TerminatedError, terminable

def work(seconds):
    print(os.getpid(), flush=True)
    time.sleep(seconds)

if __name__ == "__main__":
    try:
        with terminable():
            list(map_in_processes(work, [600.0, 600.0], 2))
    except TerminatedError:
        sys.exit(143)
"""


def test_a_run_says_that_it_was_terminated_and_the_same_command_continues(sample, finished):
    process = sample.process(FAULT="3:middle:sleep")
    lines = iter(process.stdout.readline, "")
    assert "sleeping\n" in lines
    process.terminate()
    assert (
        process.communicate()[0] == "\nstopped by SIGTERM in stage 3; the same command continues\n"
    )
    assert process.returncode == 143
    assert "resuming the interrupted attempt" in sample.main().output
    assert sample.outputs() == finished


def test_sigterm_at_any_write_is_told_and_loses_nothing(sample, finished):
    def terminate():
        os.kill(os.getpid(), signal.SIGTERM)

    for point in (5, 30, 60, 90, 120):
        result = sample.main("--force", 1, at_write=point, fault=terminate)
        if result.status:
            assert result.status == 143, result.output
            assert "; the same command continues" in result.output
            assert "Traceback" not in result.output
    assert sample.main().status == 0
    assert sample.outputs() == finished


@pytest.mark.parametrize("fault", ["masked", "swallowed"])
def test_what_a_signal_has_raised_is_no_fault_of_the_data(sample, finished, fault):
    result = sample.main(env={"FAULT": f"3:middle:{fault}"})
    assert result.status == 143
    assert "stopped by SIGTERM in stage 3; the same command continues" in result.output
    assert not list(sample.exp.glob("stages/03*"))
    assert "resuming the interrupted attempt" in sample.main().output
    assert sample.outputs() == finished


def test_worker_processes_end_at_once(tmp_path):
    (tmp_path / "work.py").write_text(WITH_WORKERS)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "work.py")],
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    workers = [int(process.stdout.readline()) for _ in range(2)]
    process.terminate()
    assert process.wait(30) == 143
    process.stdout.close()
    assert not [worker for worker in workers if os.path.exists(f"/proc/{worker}")]


COMPILING = """
def make(number):
    os.kill(os.getpid(), number)
    finished.append(sum(range(1000)))
"""


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGTERM, TerminatedError), (signal.SIGINT, KeyboardInterrupt)]
)
@pytest.mark.parametrize("compiler", ["numba.core.codegen", "llvmlite.binding"])
def test_a_kernel_that_is_being_made_is_finished_first(number, error, compiler):
    """Raised in a callback from compiled code, an exception would be ignored."""
    assert threading.current_thread() is threading.main_thread()
    finished = []
    module = {"__name__": compiler, "os": os, "finished": finished}
    exec(COMPILING, module)
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}

    def make_and_go_on():
        with terminable():
            module["make"](number)
            finished.append("made")
            end = time.monotonic() + 60
            while time.monotonic() < end:
                time.sleep(0.01)

    with pytest.raises(error):
        make_and_go_on()
    assert finished[1:] == ["made"]
    assert {each: signal.getsignal(each) for each in before} == before


class Careless:
    """Is asked to end while Python ignores exceptions."""

    def __init__(self, number):
        self.number = number

    def __del__(self):
        os.kill(os.getpid(), self.number)
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGTERM, TerminatedError), (signal.SIGINT, KeyboardInterrupt)]
)
def test_a_signal_that_was_ignored_comes_again(number, error, capsys):
    def ignore_and_go_on():
        with terminable():
            Careless(number)
            ignored.append(True)
            end = time.monotonic() + 60
            while time.monotonic() < end:
                time.sleep(0.01)

    ignored = []
    hook = sys.unraisablehook
    with pytest.raises(error):
        ignore_and_go_on()
    assert ignored
    assert sys.unraisablehook is hook
    assert "ignored" not in capsys.readouterr().err


def test_nothing_comes_after_the_block():
    """A signal that waits for the end of a kernel when all is done."""
    module = {"__name__": "numba.core.codegen", "os": os, "finished": []}
    exec(COMPILING, module)
    with terminable():
        module["make"](signal.SIGTERM)
    time.sleep(3 * PAUSE)
    assert len(module["finished"]) == 1


def test_an_interruption_is_forgotten_after_the_block():
    """A later run in another thread of this process would end by it."""

    def terminate():
        with terminable():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)

    with pytest.raises(TerminatedError):
        terminate()
    assert interruption() is None
