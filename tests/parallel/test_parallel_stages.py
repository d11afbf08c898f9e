"""Recipes started by torchrun: rank 0 runs all stages, the others join the parallel ones."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parallel import parallel_recipe
from tests.parallel.tiny import Job

PROJECT = Path(__file__).resolve().parents[2]


def run(folder, *arguments, fault="", words=None):
    """Run the recipe's command line as one rank, with its output in a file."""
    os.environ["FAULT"] = fault
    log = os.open(folder / f"log-{os.environ['RANK']}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    sys.argv = ["run.py"]
    settings = ["--set", f"words={words}"] if words and os.environ["RANK"] == "1" else []
    parallel_recipe.recipe.main(["--exp", str(folder / "exp"), *settings, *arguments])


def logs(folder):
    return [(folder / f"log-{rank}.txt").read_text() for rank in range(2)]


def test_followers_run_only_parallel_stages_and_write_only_their_own_files(tmp_path):
    job = Job(2, run, tmp_path)
    job.wait()
    leader, follower = logs(tmp_path)
    assert job.exit_codes() == [0, 0], leader + follower
    assert follower == ""
    assert "== 2 Work together" in leader
    assert "rank 0, words 2" in leader
    assert (tmp_path / "exp/together/by.txt").read_text() == "0 0"
    names = json.loads((tmp_path / "exp/names.json").read_text())
    assert names == ["by.txt", "own-0.txt", "own-1.txt"]
    again = Job(2, run, tmp_path)
    again.wait()
    assert again.exit_codes() == [0, 0]
    assert logs(tmp_path)[0].count("done, skipped") == 3
    listing = Job(2, run, tmp_path, "--list")
    listing.wait()
    assert listing.exit_codes() == [0, 0]
    assert logs(tmp_path)[1] == ""


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("fault", "worker 1 failed in stage 2: utterance a-1 is broken"),
        ("bug", "worker 1 failed in stage 2: KeyError('a-1')"),
        ("kill", ") was killed"),
    ],
)
def test_a_fault_on_a_follower_ends_the_run_with_its_message(tmp_path, fault, message):
    job = Job(2, run, tmp_path, fault=fault)
    job.wait()
    leader, follower = logs(tmp_path)
    assert message in leader
    assert "Traceback" not in leader
    assert ("Traceback" in follower) == (fault == "bug")
    assert job.exit_codes()[0] == 1
    assert job.exit_codes()[1] == (-9 if fault == "kill" else 1)
    resumed = Job(2, run, tmp_path)
    resumed.wait()
    assert resumed.exit_codes() == [0, 0]


def test_a_fault_of_the_leader_ends_the_followers_quietly(tmp_path):
    job = Job(2, run, tmp_path, fault="leader")
    job.wait()
    leader, follower = logs(tmp_path)
    assert job.exit_codes() == [1, 1]
    assert "error: stage 2 (Work together) failed: the disk is full" in leader
    assert follower == ""


def test_other_settings_on_a_follower_are_refused(tmp_path):
    job = Job(2, run, tmp_path, words="three")
    job.wait()
    leader, _ = logs(tmp_path)
    assert "worker 1 failed in stage 2: its settings differ from worker 0's" in leader
    assert job.exit_codes() == [1, 1]


@pytest.mark.long
def test_torchrun_starts_the_recipe(tmp_path):
    """With the launcher itself: a killed worker is reported, and the same command continues."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command += [parallel_recipe.__file__, "--exp", str(tmp_path / "exp")]
    environment = os.environ | {"PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"}

    environment["FAULT"] = "kill"
    killed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert killed.returncode != 0
    output = killed.stdout + killed.stderr
    assert "was killed" in output
    assert "The same command continues" in output
    Job(2, run, tmp_path).wait()
    assert (tmp_path / "exp/together/by.txt").read_text() == "0 0"


def test_without_torchrun_one_process_runs_all_stages_without_importing_torch(tmp_path):
    code = (
        "import sys; from tests.parallel.parallel_recipe import recipe\n"
        f"try: recipe.main(['--exp', {str(tmp_path / 'exp')!r}])\n"
        "except SystemExit as end: assert not end.code, end\n"
        "loaded = [n for n in sys.modules if n == 'torch']\n"
        "assert not loaded, loaded"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    environment["PYTHONPATH"] = str(PROJECT)
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, cwd=PROJECT)
    assert (tmp_path / "exp/together/by.txt").read_text() == "0 0"
