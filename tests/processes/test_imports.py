"""What has been imported is left alone by the collection of garbage."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.processes.workers import map_in_processes

PROJECT = Path(__file__).resolve().parents[2]
SAMPLE = 10_000
"""Objects; torch alone makes ten times as many."""


def kept(number):
    return gc.get_freeze_count()


@pytest.mark.skipif(sys.platform != "linux", reason="workers are spawned here")
def test_workers_keep_the_imports_of_their_server():
    assert min(map_in_processes(kept, [1, 2], 2)) > SAMPLE


@pytest.mark.parametrize(
    "main",
    [
        "from toolkit.cli import main as command; command(['score', '--help'])",
        "from recipes.librispeech.run import recipe; recipe.main(['--list', '--exp', 'none'])",
    ],
)
def test_commands_keep_theirs(main, tmp_path):
    code = f"import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count())); {main}"
    words = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(PROJECT)!r}); {code}"]
    said = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert int(said.splitlines()[-1]) > SAMPLE
