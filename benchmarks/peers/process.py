"""A process in which another project's engine runs, since its libraries clash with k2's."""

import subprocess
import threading
from contextlib import suppress
from pathlib import Path

from benchmarks.run import BenchmarkError


class PeerUnavailableError(BenchmarkError):
    """An engine is missing or does not work; the message says how to install it."""


class PeerProcess:
    """A process that runs its task once for every line of input; a context manager.

    The process writes `ready`, then answers each line with the processor time of its work in
    seconds.

    Args:
      name: the engine's name, for messages.
      python: a Python interpreter that has the engine installed.
      script: the script to run, a file beside this module.
      arguments: files that are the script's arguments.
      timeout: seconds to wait for an answer; such libraries have been seen to hang.

    Raises:
      PeerUnavailableError: it does not start.
    """

    def __init__(
        self, name: str, python: str, script: str, arguments: tuple[Path, ...], timeout: float
    ) -> None:
        self.processor_seconds = 0.0
        self._name, self.timeout = name, timeout
        # -I: the script's folder is not searched for imports; its modules shadow other packages'.
        path = Path(__file__).with_name(script)
        self._process = subprocess.Popen(
            [python, "-I", str(path), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self._answer()
        except PeerUnavailableError:
            self.close()
            raise

    def request(self, line: str = "") -> None:
        """Run the task once and add its time to `processor_seconds`."""
        with suppress(BrokenPipeError):  # if the process has ended, `_answer` reports it
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        self.processor_seconds += float(self._answer())

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> "PeerProcess":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _answer(self) -> str:
        timer = threading.Timer(self.timeout, self._process.kill)
        timer.start()
        line = self._process.stdout.readline()
        timer.cancel()
        if not line:
            raise PeerUnavailableError(
                f"{self._name}: it crashed, or gave no answer within {self.timeout:g} s"
            )
        return line
