"""Keeps a run alive when its standard output or error cannot be written, and says which it was."""

import errno
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from toolkit.errors import ToolkitError


class OutputError(ToolkitError):
    """Standard output or standard error cannot be written."""


class _Stream:
    """A stream, of text or of the bytes below it, that passes errors on to a function."""

    def __init__(
        self, stream: Any, name: str, failed: Callable[[str, OSError], None], bars: bool
    ) -> None:
        self._stream, self._name, self._failed, self._bars = stream, name, failed, bars

    @property
    def buffer(self) -> "_Stream":
        """The stream of bytes, which click prints bytes to."""
        return _Stream(self._stream.buffer, self._name, self._failed, self._bars)

    def write(self, text: str | bytes) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._failed(self._name, error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._failed(self._name, error)

    def isatty(self) -> bool:
        """Whether it is a terminal that may show progress bars."""
        return self._bars and self._stream.isatty()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def outlive(record: Callable[[str], None], bars: bool = True) -> Iterator[None]:
    """Go on when standard output or error cannot be written: a pipe was closed, a disk is full.

    Args:
      record: writes a line to the log file; it is told what was lost and why.
      bars: whether progress bars are shown on a terminal.
    """

    def failed(name: str, error: OSError) -> None:
        _discard(getattr(sys, name))
        line = (
            f"warning: {_NAMES[name]} cannot be written ({error.strerror}); the run goes on "
            "without, and its lines are in log.txt"
        )
        record(line)
        if name == "stdout":
            sys.stderr.write(f"{line}\n")

    with _replaced(failed, bars), _threads_told():
        yield


@contextmanager
def told() -> Iterator[None]:
    """Turn errors of standard output and error into an `OutputError`, except for closed pipes.

    A listing, of which somebody reads only the beginning (`| head`), ends with a BrokenPipeError.
    """

    lost = set()

    def failed(name: str, error: OSError) -> None:
        if error.errno == errno.EPIPE:
            raise error
        lost.add(name)  # each time, since click tries a stream with an empty text
        raise OutputError(f"{_NAMES[name]} cannot be written ({error.strerror})") from error

    try:
        with _replaced(failed):
            yield
    finally:
        for name in lost:
            _discard(getattr(sys, name))


_NAMES = {"stdout": "standard output", "stderr": "standard error"}


@contextmanager
def _replaced(failed: Callable[[str, OSError], None], bars: bool = True) -> Iterator[None]:
    before = {name: getattr(sys, name) for name in _NAMES}
    ours = {name: stream and _Stream(stream, name, failed, bars) for name, stream in before.items()}
    for name, stream in ours.items():
        setattr(sys, name, stream)
    try:
        yield
    finally:
        for name, stream in ours.items():
            if getattr(sys, name) is stream:  # and not what another thread has put there
                setattr(sys, name, before[name])


@contextmanager
def _threads_told() -> Iterator[None]:
    """Say an `OSError` that ends a thread in one line: whoever waits for the thread raises it.

    So does TensorBoard for the thread that writes its events, which a full disk ends.
    """

    def say(ended: threading.ExceptHookArgs) -> None:
        if isinstance(ended.exc_value, OSError) and ended.thread is not None:
            sys.stderr.write(f"warning: {ended.thread.name} ended: {ended.exc_value}\n")
        else:
            before(ended)

    before, threading.excepthook = threading.excepthook, say
    try:
        yield
    finally:
        threading.excepthook = before


def _discard(stream: TextIO) -> None:
    """Lead a stream, and what is still in its buffer, to nowhere, here and in new processes.

    Not in workers of a server that runs already (`toolkit.processes.context`).
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
