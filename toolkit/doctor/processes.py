"""Processes in which the doctor tests engines: a crash or a hang is a result like any other."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.environment import project_root

SELF_TESTS = "toolkit.doctor.selftests"


@dataclass(frozen=True)
class ProcessResult:
    """Whether a process succeeded, and its output."""

    works: bool
    text: str
    """Its last line of output, or what went wrong."""
    output: str = ""
    """All of standard output and standard error."""
    timed_out: bool = False
    """Whether it was killed because it took too long."""


def run_process(command: Sequence[str], timeout: float, **variables: str) -> ProcessResult:
    """Run a command in the project's root; a failure, a crash or a hang is a result too.

    Args:
      command: program and arguments.
      timeout: seconds after which it is killed.
      variables: additions to the environment.
    """
    try:
        done = subprocess.run(
            command,
            cwd=project_root(),
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode(errors="replace")
        return ProcessResult(False, f"no answer in {timeout:g} s", output, timed_out=True)
    except OSError as error:
        return ProcessResult(False, str(error))
    output = (done.stdout + done.stderr).decode(errors="replace")
    if done.returncode == 0:
        return ProcessResult(True, _last_line(done.stdout) or _last_line(done.stderr), output)
    if done.returncode < 0:
        return ProcessResult(False, f"killed by {signal.Signals(-done.returncode).name}", output)
    return ProcessResult(False, _last_line(done.stderr) or f"exit status {done.returncode}", output)


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


def self_test(name: str, timeout: float = 60.0, **variables: str) -> ProcessResult:
    """Run one entry of `toolkit.doctor.selftests.TESTS` in its own process."""
    return run_process([sys.executable, "-m", SELF_TESTS, name], timeout, **variables)


def passed_together(names: Sequence[str], timeout: float = 120.0) -> dict[str, ProcessResult]:
    """Run several self-tests in one process, which imports what they share once.

    Returns:
      The results of those that passed. One that did not, or that came after a crash or a hang, has
      to be run alone before anything is said about it.
    """
    done = run_process([sys.executable, "-m", SELF_TESTS, *names], timeout)
    passed = {}
    for line in done.output.splitlines():
        try:
            name, text = json.loads(line)["passed"]
        except (ValueError, KeyError, TypeError):  # what a library printed
            continue
        passed[name] = ProcessResult(True, text)
    return passed
