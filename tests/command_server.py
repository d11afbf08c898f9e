"""Commands of the project in processes that have imported it: forked from a server that did.

Importing torch and numba takes two to six seconds of processor time, and the recipes' tests start a
hundred commands. That programs find their environment by themselves is for the tests of
`toolkit.stages.bootstrap` and of the guides, which start them as users do.
"""

import atexit
import contextlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

from toolkit.processes.workers import freeze_imports

PROJECT = Path(__file__).resolve().parents[1]


class Command:
    """A started command, in a process group of its own; used as `subprocess.Popen` is.

    Args:
      words: the path of a program of the project, or `toolkit`, and its arguments.
      cwd: the folder in which it is typed; None: that of the tests.
      merged: its standard error goes to its standard output.
    """

    def __init__(self, *words, cwd=None, merged=False) -> None:
        folder = tempfile.TemporaryDirectory(prefix="command")
        self._folder, self.returncode = folder, None
        names = ("output", "output" if merged else "errors", "status")
        self._output, self._errors, self._status = (Path(folder.name) / name for name in names)
        server, initial_environment = _server()
        order = {
            "words": [*map(str, words)],
            "cwd": str(cwd or Path.cwd()),
            # What a test has set since then, such as credentials.
            "environ": {k: v for k, v in os.environ.items() if initial_environment.get(k) != v},
            "files": [str(self._output), str(self._errors), str(self._status)],
        }
        server.stdin.write(json.dumps(order) + "\n")
        server.stdin.flush()
        self.pid = int(server.stdout.readline())

    def poll(self):
        """Return the exit status, that of a signal negative; None while the command runs."""
        if self.returncode is None and self._status.exists():
            self.returncode = int(self._status.read_text())
        return self.returncode

    def communicate(self):
        """Wait for the end; return output and errors."""
        while self.poll() is None:
            time.sleep(0.01)
        merged = self._errors == self._output
        outputs = self._output.read_text(), None if merged else self._errors.read_text()
        self._folder.cleanup()
        return outputs


@cache
def _server() -> tuple[subprocess.Popen, dict[str, str]]:
    """This test process's server, which ends with it, and the environment from before it."""
    initial_environment = dict(os.environ)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    python_path = filter(None, [os.environ.get("PYTHONPATH")])  # of test-cluster
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.command_server"],
        cwd=PROJECT,
        env=os.environ
        | {"PATH": path, "PYTHONPATH": os.pathsep.join([str(PROJECT), *python_path])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.stdin.close)
    return server, initial_environment


def _serve() -> list[str]:
    """Answer each line of standard input with the id of a process that runs the command in it.

    Returns, in that process alone, the words of the command.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for those that wait
    for line in sys.stdin:
        if os.fork() == 0:
            return _fork_and_wait(json.loads(line))
    sys.exit()


def _fork_and_wait(order) -> list[str]:
    """Fork the command, and write down how it ended; return in the command alone."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    output, errors, status = order["files"]
    pid = os.fork()
    os.setpgid(pid, 0)  # by both, since either may be first
    if pid:
        print(pid, flush=True)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        written = Path(f"{status}.new")
        with contextlib.suppress(FileNotFoundError):  # nobody waits any more
            written.write_text(str(code))
            written.replace(status)
        os._exit(0)
    os.chdir(order["cwd"])
    os.environ.update(order["environ"])
    for path, number in ((os.devnull, 0), (output, 1), (errors, 2)):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    return order["words"]


def _run_program(program: str, arguments: list[str]) -> None:
    """Run a program as if it had been started."""
    sys.argv = [program, *arguments]
    if program == "toolkit":
        runpy.run_module("toolkit", run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    import recipes.farfield_ssl.run
    import recipes.librispeech.run
    import recipes.librispeech.run_ctc  # noqa: F401
    import toolkit.cli  # noqa: F401

    freeze_imports()
    program, *arguments = _serve()
    _run_program(program, arguments)
