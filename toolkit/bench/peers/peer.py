"""Engines of others, each in a process of its own: their libraries clash with each other's."""

import subprocess
import threading
from contextlib import suppress
from pathlib import Path

from toolkit.bench.instruments.harness import BenchmarkError


class PeerUnavailableError(BenchmarkError):
    """An engine that is not there or does not work; says how to install it."""


class Peer:
    """A script that does its task once for every line it is told; a context manager.

    The process says `ready`, then answers each line with the processor time, in seconds, that its
    work took.

    Args:
      name: of the engine, for messages.
      python: an interpreter that has the engine.
      script: the file beside this module that it runs.
      arguments: files of the script.
      patience: seconds to wait for an answer; such libraries have been seen to hang.

    Raises:
      PeerUnavailableError: it does not start.
    """

    def __init__(
        self, name: str, python: str, script: str, arguments: tuple[Path, ...], patience: float
    ) -> None:
        self.processor_seconds = 0.0
        self._name, self.patience = name, patience
        # -I: its folder, where modules have names of others, is not searched for imports.
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

    def ask(self, line: str = "") -> None:
        """Have the task done once and add its time to `processor_seconds`."""
        with suppress(BrokenPipeError):  # a process that has ended gives no answer
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

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _answer(self) -> str:
        patience = threading.Timer(self.patience, self._process.kill)
        patience.start()
        line = self._process.stdout.readline()
        patience.cancel()
        if not line:
            raise PeerUnavailableError(
                f"{self._name}: it crashed, or gave no answer within {self.patience:g} s"
            )
        return line
