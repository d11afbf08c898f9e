import os
import signal
import subprocess
import sys
import time

import pytest

from tests.stages.conftest import PROJECT
from toolkit.stages.signals import exit_on_signals

WITH_WORKERS = """
import os, time
from toolkit.processes.workers import map_in_processes
from toolkit.stages.signals import exit_on_signals

def work(seconds):
    print(os.getpid(), flush=True)
    time.sleep(seconds)

if __name__ == "__main__":
    with exit_on_signals():
        list(map_in_processes(work, [600.0, 600.0], 2))
"""


def has_ended(process):
    return not os.path.exists(f"/proc/{process}")


def test_a_run_says_that_it_was_terminated_and_the_same_command_continues(sample, finished):
    process = sample.process(FAULT="3:middle:sleep")
    lines = iter(process.stdout.readline, "")
    assert "sleeping\n" in lines
    process.terminate()
    message = "\nstopped by SIGTERM in stage 3; run the same command again to continue\n"
    assert process.communicate()[0] == message
    assert process.returncode == 143
    assert "resuming the interrupted attempt" in sample.main().output
    assert sample.outputs() == finished


def test_sigterm_at_any_write_is_reported_and_loses_nothing(sample, finished):
    def terminate():
        os.kill(os.getpid(), signal.SIGTERM)

    for point in (5, 30, 60, 90, 120):
        result = sample.main("--force", 1, at_write=point, fault=terminate)
        if result.status:
            assert result.status == 143, result.output
            assert "; run the same command again to continue" in result.output
            assert "Traceback" not in result.output
    assert sample.main().status == 0
    assert sample.outputs() == finished


def test_a_signal_in_a_callback_of_c_code_is_not_lost(sample, finished):
    """C code swallows the exception, and the stage would continue with part of its data."""
    result = sample.main(env={"FAULT": "3:middle:callback"})
    assert result.status == 143
    assert "stopped by SIGTERM in stage 3; run the same command again to continue" in result.output
    assert not list(sample.exp.glob("stages/03*"))
    assert "resuming the interrupted attempt" in sample.main().output
    assert sample.outputs() == finished


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_programs_that_a_stage_has_started_end_with_it(sample, number, status):
    process = sample.process(FAULT="3:middle:program")
    program = next(line for line in iter(process.stdout.readline, "") if line.strip().isdecimal())
    process.send_signal(number)
    assert "in stage 3; run the same command again to continue" in process.communicate()[0]
    assert process.returncode == status
    assert has_ended(int(program))


def test_worker_processes_end_at_once(tmp_path):
    (tmp_path / "work.py").write_text(WITH_WORKERS)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "work.py")],
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    workers = [int(process.stdout.readline()) for _ in range(2)]
    process.terminate()
    assert process.communicate(timeout=30)[1] == (
        "\nstopped by SIGTERM; run the same command again to continue\n"
    )
    assert process.returncode == 143
    assert all(map(has_ended, workers))


def test_signal_handlers_are_restored_after_the_block():
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with exit_on_signals():
        assert signal.getsignal(signal.SIGTERM) is not handlers[0]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers


def test_a_terminated_fork_leaves_other_processes_running():
    sleeper = subprocess.Popen(["sleep", "60"])
    child = os.fork()
    if child == 0:
        with exit_on_signals():
            if os.fork() == 0:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(60)
            os._exit(-os.waitstatus_to_exitcode(os.wait()[1]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == signal.SIGTERM
    assert sleeper.poll() is None
    sleeper.kill()
    sleeper.wait()
