"""The process from which workers are forked."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from toolkit.processes.workers import LONGEST_FOLDER

PROJECT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or len(tempfile.gettempdir()) > LONGEST_FOLDER,
    reason="workers are spawned here",
)

SCRIPT = """
import os
from multiprocessing import forkserver
from pathlib import Path

import toolkit

from toolkit.processes.workers import map_in_processes


def place(number):
    import local.librispeech

    return toolkit.__file__, local.librispeech.__file__, os.getcwd()


def run_workers():
    return list(map_in_processes(place, [1, 2], 2))


if __name__ == "__main__":
    import local.librispeech

    expected = [(toolkit.__file__, local.librispeech.__file__, os.getcwd())] * 2
    assert run_workers() == expected
"""


def run_script(tmp_path, then, cwd=None):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + then)
    done = subprocess.run(
        [sys.executable, script],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_folders_in_the_working_directory_are_not_imported(tmp_path):
    """A Kaldi recipe has a folder `local`, which is not the package of this project."""
    cwd = tmp_path / "s5"
    for name in ("local", "toolkit", "recipes"):
        (cwd / name).mkdir(parents=True)
    for name in ("toolkit/__init__.py", "torch.py", "numpy.py"):
        (cwd / name).write_text("raise SystemExit('not ours')\n")
    run_script(tmp_path, "", cwd)


@pytest.mark.long
def test_a_forked_process_can_start_workers(tmp_path):
    run_script(
        tmp_path,
        """
    child = os.fork()
    if not child:
        os._exit(0 if run_workers() == expected else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert run_workers() == expected
""",
    )


@pytest.mark.long
def test_workers_start_after_the_socket_was_deleted(tmp_path):
    run_script(
        tmp_path,
        """
    os.remove(forkserver._forkserver._forkserver_address)
    assert run_workers() == expected
""",
    )


STARTING = """
import sys
from pathlib import Path
import recipes.librispeech.run
from toolkit.processes.workers import map_in_processes


def touch(path):
    Path(path).touch()


if __name__ == "__main__":
    print("begun", flush=True)
    list(map_in_processes(touch, [sys.argv[1] + "/a", sys.argv[1] + "/b"], 2))
"""


@pytest.mark.long
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 1), (signal.SIGTERM, -15)])
def test_signals_end_the_run_while_the_server_imports(tmp_path, number, status):
    script = tmp_path / "script.py"
    script.write_text(STARTING)
    process = subprocess.Popen(
        [sys.executable, script, tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        start_new_session=True,
    )
    assert process.stdout.readline() == "begun\n"
    time.sleep(0.3)
    os.killpg(process.pid, number)
    stderr = process.communicate(timeout=60)[1]
    assert process.returncode in (status, -number)
    assert stderr.count("Traceback") == (number == signal.SIGINT), stderr
    assert not [*tmp_path.glob("[ab]")]
