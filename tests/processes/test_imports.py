"""What has been imported is left alone by the collection of garbage."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
SAMPLE = 10_000
"""Objects; torch alone makes ten times as many."""
WORKERS = """
import gc

import toolkit.models.lstm
from toolkit.processes.workers import map_in_processes


def kept(number):
    return gc.get_freeze_count()


if __name__ == "__main__":
    print(min(map_in_processes(kept, [1, 2], 2)))
"""
COMMANDS = (
    "from toolkit.cli import main; main(['score', '--help'])",
    "from recipes.librispeech.run import recipe; recipe.main(['--list', '--exp', 'none'])",
)


def said(script, folder):
    """What a program in a process of its own prints last."""
    path = folder / "script.py"
    path.write_text(script)
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    words = [sys.executable, path]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="workers are spawned here")
def test_workers_keep_the_imports_of_their_server(tmp_path):
    assert int(said(WORKERS, tmp_path)) > SAMPLE


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS, ids=("toolkit", "recipe"))
def test_commands_keep_theirs(command, tmp_path):
    last = "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count()))\n"
    assert int(said(last + command, tmp_path)) > SAMPLE
