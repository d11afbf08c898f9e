"""`--profile-stage`; tests of py-spy itself are skipped without it."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

FOLDERS = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
needs_py_spy = pytest.mark.skipif(
    not shutil.which("py-spy", path=FOLDERS), reason="py-spy is not installed"
)


def profile(sample, *arguments, **variables):
    """Profile a stage as a user does; py-spy starts a new interpreter."""
    process = sample.process("--profile-stage", *arguments, **variables)
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


def marker(sample, number):
    return json.loads((sample.exp / "stages" / f"{number:02d}.json").read_text())


@needs_py_spy
def test_a_stage_that_is_done_runs_again_under_the_profiler(sample):
    sample.main("--stop-stage", 2)
    first = marker(sample, 2)
    status, output = profile(sample, 2)
    assert status == 0, output
    assert "== 2 Build the lexicon" in output
    assert "Train the model" not in output
    assert marker(sample, 2)["started"] >= first["started"]
    assert marker(sample, 2)["outputs"] == first["outputs"]
    assert (sample.exp / "profiles/02.svg").read_text().startswith("<?xml")


@needs_py_spy
def test_an_interrupted_stage_is_resumed_and_a_failed_one_fails(sample):
    sample.main("--stop-stage", 2)
    status, output = profile(sample, 3, FAULT="3:middle:value")
    assert status == 1
    assert re.search(r"error: stage 3 did not finish: failed \d+ %: ValueError", output), output
    assert (sample.exp / "profiles/03.svg").exists()
    status, output = profile(sample, 3)
    assert status == 0, output
    assert "resuming the interrupted attempt" in output


def test_without_py_spy_a_message_says_how_to_install_it(sample, tmp_path):
    python = tmp_path / "python"
    python.symlink_to(sys.executable)

    def hide():
        sys.executable = str(python)

    result = sample.main("--profile-stage", 2, env={"PATH": str(tmp_path)}, setup=hide)
    assert result.status == 1
    assert f"is not installed. Install it with {python} -m pip install py-spy" in result.output
    assert not (sample.exp / "stages").exists()


def test_a_failure_of_py_spy_is_a_failure(sample, tmp_path):
    """For example, the system may not let it read its child's memory."""
    sample.main("--stop-stage", 2)
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\nexit 7\n")
    program.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"

    def hide():
        sys.executable = str(tmp_path / "python")

    result = sample.main("--profile-stage", 2, env={"PATH": path}, setup=hide)
    assert result.status == 1
    assert "py-spy failed with exit status 7" in result.output


def test_it_excludes_other_choices_of_stages(sample):
    for option in (("--stage", 1), ("--stop-stage", 3), ("--force", 2)):
        result = sample.main("--profile-stage", 2, *option)
        assert (result.status, "--profile-stage runs" in result.output) == (1, True)
    result = sample.main("--profile-stage", 4)
    assert "--profile-stage 4: no such stage" in result.output
