"""Imported modules are frozen: the garbage collector skips them."""

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


def freeze_count(number):
    return gc.get_freeze_count()


if __name__ == "__main__":
    print(min(map_in_processes(freeze_count, [1, 2], 2)))
"""
COMMANDS = (
    "from toolkit.cli import main; main(['score', '--help'])",
    "from recipes.librispeech.run import recipe; recipe.main(['--list', '--exp', 'none'])",
)


def last_line_of(script, folder):
    """Run a script in a new process; return the last line that it prints."""
    path = folder / "script.py"
    path.write_text(script)
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    words = [sys.executable, path]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="workers are spawned here")
def test_workers_freeze_the_imports_of_their_server(tmp_path):
    assert int(last_line_of(WORKERS, tmp_path)) > SAMPLE


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS, ids=("toolkit", "recipe"))
def test_commands_freeze_their_imports(command, tmp_path):
    report = "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count()))\n"
    assert int(last_line_of(report + command, tmp_path)) > SAMPLE
