import os
import subprocess
import sys

import pytest

from tests.stages.conftest import PROJECT


def start(sample, stdout, stderr=subprocess.PIPE, arguments=()):
    return subprocess.run(
        [sys.executable, str(sample.script), *arguments],
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        stdout=stdout,
        stderr=stderr,
        text=True,
        check=False,
    )


@pytest.fixture
def closed():
    """The write end of a pipe without a reader."""
    read, write = os.pipe()
    os.close(read)
    yield write
    os.close(write)


@pytest.fixture
def full():
    with open("/dev/full", "w") as file:
        yield file


@pytest.mark.parametrize(
    ("output", "why"), [("closed", "Broken pipe"), ("full", "No space left on device")]
)
def test_a_run_continues_without_standard_output(sample, finished, request, output, why):
    done = start(sample, request.getfixturevalue(output))
    warning = f"warning: standard output cannot be written ({why}); the run goes on without"
    assert done.returncode == 0
    assert done.stderr.count(warning) == 1
    assert "Traceback" not in done.stderr
    log = (sample.exp / "log.txt").read_text()
    assert log.count(warning) == 1
    assert all(f"== {number} " in log for number in (1, 2, 3, 5))
    assert sample.outputs() == finished


def test_a_run_continues_without_a_terminal(sample, finished, closed):
    assert start(sample, closed, subprocess.STDOUT).returncode == 0
    assert sample.outputs() == finished


@pytest.mark.parametrize("option", ["--list", "--dry-run", "--stale-code"])
def test_a_listing_names_the_output_that_cannot_be_written(sample, full, option):
    done = start(sample, full, arguments=[option])
    assert done.returncode == 1
    assert done.stderr == ("error: standard output cannot be written (No space left on device)\n")
