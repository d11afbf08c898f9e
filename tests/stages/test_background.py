"""Stages in the background give the same outputs, even if a process waits, fails or is killed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.log_lines import untimed

PROJECT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).parent / "sample" / "background.py"
NUMBERS = range(1, 6)


class Recipe:
    def __init__(self, folder):
        self.folder, self.exp = folder, folder / "exp" / "demo"
        self.script = Path(shutil.copy(SCRIPT, folder))

    def start(self, *arguments, jobs=2, **env):
        shutil.rmtree(self.folder / "events", ignore_errors=True)
        options = ["--device", "cpu", "--jobs", jobs, *arguments]
        return subprocess.Popen(
            [sys.executable, self.script, *map(str, options)],
            env=os.environ | {"PYTHONPATH": str(PROJECT)} | env,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            # A shell ignores interrupts in what it starts in the background, and so would we.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip

    def run(self, *arguments, status=0, **env):
        process = self.start(*arguments, **env)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == status, output
        return untimed(output)

    def events(self):
        """Return (stage, event, process, jobs) in the order of time."""
        events = []
        for path in sorted((self.folder / "events").iterdir()):
            _, stage, *event, process, jobs = path.name.split()
            events.append((int(stage), " ".join(event), int(process), int(jobs)))
        return events

    def until(self, event):
        deadline = time.monotonic() + 60
        while not any(f" {event} " in p.name for p in (self.folder / "events").glob("*")):
            assert time.monotonic() < deadline, event
            time.sleep(0.01)

    def outputs(self):
        names = ("models/*", "decode/*", "results")
        return {str(p): p.read_text() for name in names for p in sorted(self.exp.glob(name))}

    def done(self):
        return [int(path.stem) for path in sorted(self.exp.glob("stages/??.json"))]


@pytest.fixture
def recipe(tmp_path):
    return Recipe(tmp_path)


@pytest.fixture
def expected(recipe):
    """The outputs of a sequential run."""
    output = recipe.run(jobs=1)
    assert "background" not in output
    assert len({process for _, _, process, _ in recipe.events()}) == 1
    outputs = recipe.outputs()
    shutil.rmtree(recipe.exp)
    return outputs


def order(recipe, *events):
    """Return the positions of events in the order of time."""
    happened = [(stage, event) for stage, event, _, _ in recipe.events()]
    return [happened.index(event) for event in events]


def test_parallel_stages_give_the_same_outputs(recipe, expected):
    output = recipe.run(WAIT_2="4 begins", WAIT_4="3 begins")
    assert recipe.outputs() == expected
    assert recipe.done() == list(NUMBERS)
    by_stage = {stage: (process, jobs) for stage, _, process, jobs in recipe.events()}
    main_process, background_process = by_stage[1][0], by_stage[2][0]
    assert [by_stage[n][0] for n in NUMBERS] == [
        main_process,
        background_process,
        background_process,
        main_process,
        main_process,
    ]
    assert [by_stage[n][1] for n in (1, 2, 3, 4)] == [2, 1, 1, 1]
    assert "=> 2 Decode with the first: in the background" in output
    begun = output.index("== 2 Decode with the first")  # with its result, in one piece
    assert output[begun:].splitlines()[1].endswith("length 1")
    assert recipe.run().count("done, skipped") == len(NUMBERS)


def test_a_stage_waits_for_an_input_that_another_is_writing(recipe, expected):
    recipe.run(WAIT_2="5 begins", FAULT_2="pause")
    assert recipe.outputs() == expected
    assert {jobs for stage, _, _, jobs in recipe.events() if stage == 3} == {2}
    marker = json.loads((recipe.exp / "stages" / "05.json").read_text())
    assert marker["seconds"] < 2  # without the two that it has waited
    read, read_output = order(recipe, (5, "has read"), (3, "ends"))
    assert read_output < read


def test_a_rerun_stage_makes_its_readers_stale(recipe):
    recipe.run()
    output = recipe.run("--set", "first=2", WAIT_2="4 begins", WAIT_4="3 begins")
    assert recipe.outputs()[str(recipe.exp / "results")].count("models/first 2") == 3
    assert "-- " not in output
    assert recipe.run("--set", "first=2").count("done, skipped") == len(NUMBERS)


def test_a_failed_background_stage_ends_the_run_with_its_message(recipe, expected):
    output = recipe.run(status=1, WAIT_2="4 begins", FAULT_2="value")
    assert "error: stage 2 (Decode with the first) failed: ValueError: the loss is not a" in output
    assert recipe.done() == [1, 4]
    recipe.run()
    assert recipe.outputs() == expected


def test_a_failure_of_the_run_ends_the_background_stage(recipe, expected):
    start = time.monotonic()
    output = recipe.run(status=1, FAULT_2="sleep", WAIT_4="2 begins", FAULT_4="value")
    assert time.monotonic() - start < 50
    assert "error: stage 4 (Train the second) failed" in output
    recipe.run()
    assert recipe.outputs() == expected


@pytest.mark.parametrize(
    ("number", "message"),
    [
        ("SIGKILL", "the process of stages 2 and 3 was killed, perhaps because memory ran out"),
        ("SIGTERM", "the process of stages 2 and 3 was stopped by SIGTERM"),
    ],
)
def test_a_killed_background_process_is_reported(recipe, expected, number, message):
    assert f"error: {message}" in recipe.run(status=1, FAULT_3=number)
    recipe.run()
    assert recipe.outputs() == expected


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)]
)
def test_signals_end_both_and_lose_nothing(recipe, expected, number, status):
    process = recipe.start(FAULT_2="sleep", FAULT_4="sleep")
    recipe.until("4 begins")
    recipe.until("2 begins")
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == status, output
    assert not psutil.wait_procs(children, timeout=20)[1]
    assert "Traceback" not in output
    recipe.run()
    assert recipe.outputs() == expected
    assert not [p for p in (recipe.exp / ".partial").rglob("*") if p.is_file()]


def test_a_stage_with_nothing_in_parallel_runs_in_the_foreground(recipe):
    recipe.run()
    two = ["--stage", 2, "--stop-stage", 2]
    for arguments in (
        [*two, "--force", 2],
        ["--force", 2, "--jobs", 1],
        ["--set", "networks=false"],
    ):
        output = recipe.run(*arguments, "--force", 2)
        assert "== 2 Decode with the first" in output
        assert "background" not in output
