"""Write the lines of a run to the terminal and log.txt; handle output that cannot be written."""

import errno
import logging
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, TextIO

import click

from toolkit.errors import ToolkitError
from toolkit.storage.files import open_regular
from toolkit.storage.paths import printable

Verbosity = Literal["quiet", "normal", "verbose"]
"""The amount of output. `quiet`: warnings, errors and results; `normal`: all but messages for
developers; `verbose`: these messages too, and the time before each line. With `normal`, lines that
do not go to a terminal have the time too. The log file has the lines of `normal`, or of `verbose`
if that is set."""
_NAMES = {"stdout": "standard output", "stderr": "standard error"}


class OutputError(ToolkitError):
    """Standard output or standard error cannot be written."""


class StageLog:
    """Prints lines on standard output and appends them, with the time, to a log file.

    Args:
      path: path of the log file.
      verbosity: how much is printed.
    """

    def __init__(self, path: Path, verbosity: Verbosity = "normal") -> None:
        self._path, self.verbosity = path, verbosity

    def write(self, line: str, always: bool = False) -> None:
        """Print a line and write it to the log file.

        Args:
          line: without its end.
          always: whether it is printed even if the verbosity is `quiet`.

        Raises:
          LinkError: the log file is a link or not a regular file.
        """
        if always or self.verbosity != "quiet":
            self._print(f"{timestamp()} {line}" if self._timed else line)
        self.write_to_file(line)

    def write_to_file(self, line: str) -> None:
        """Write a line to the log file alone; if that fails, the run goes on."""
        try:
            descriptor = open_regular(self._path, os.O_WRONLY | os.O_APPEND)
            with open(descriptor, "a", encoding="utf-8") as file:
                file.write(f"{timestamp()} {printable(line)}\n")
        except OSError:
            return

    @property
    def _timed(self) -> bool:
        """Whether lines are printed with the time before them."""
        to_terminal = sys.stdout is not None and sys.stdout.isatty()
        return self.verbosity == "verbose" or (self.verbosity == "normal" and not to_terminal)

    @staticmethod
    def _print(line: str) -> None:
        """Print a line, above progress bars if there are any."""
        tqdm = _tqdm_with_bars()
        if tqdm is None:
            click.echo(printable(line))
        else:
            tqdm.write(printable(line))  # above the bars
            sys.stdout.flush()


def timestamp() -> str:
    """Return the present local time as ISO 8601, to the second, with the offset from UTC."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _tqdm_with_bars() -> Any:
    """Return tqdm's class if it shows progress bars now, otherwise None."""
    module = sys.modules.get("tqdm")
    has_bars = module and any(not bar.disable for bar in getattr(module.tqdm, "_instances", ()))
    return module.tqdm if has_bars else None


class _LogHandler(logging.Handler):
    """Writes log records of the `logging` module to the stage log."""

    def __init__(self, stage_log: StageLog) -> None:
        super().__init__(logging.DEBUG if stage_log.verbosity == "verbose" else logging.INFO)
        self._stage_log = stage_log

    def emit(self, record: logging.LogRecord) -> None:
        always = record.levelno >= logging.WARNING
        self._stage_log.write(f"   {record.getMessage()}", always)


@contextmanager
def toolkit_logs(stage_log: StageLog) -> Iterator[None]:
    """Write what modules of the toolkit and of recipes log to the stage log in a `with` block."""
    handler = _LogHandler(stage_log)
    loggers = [logging.getLogger(name) for name in ("toolkit", "recipes")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(handler.level)
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)


def duration(seconds: float) -> str:
    """Return a wall time in readable form: "4.2 s", "3 min 12 s", "1 h 02 min", or "?"."""
    if not math.isfinite(seconds):
        return "?"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, remainder = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {remainder:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def headline(numbers: dict) -> str:
    """Return a stage's headline numbers on one line: "utterances 120, wer 8.31"."""
    return ", ".join(f"{name} {_number(value)}" for name, value in numbers.items())


def _number(value: bool | float | str) -> str:
    """Format a headline number."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class _Stream:
    """A stream, of text or of the bytes below it, that passes errors on to a function."""

    def __init__(self, stream: Any, report: Callable[[OSError], None]) -> None:
        self._stream, self._report = stream, report

    @property
    def buffer(self) -> "_Stream":
        """The stream of bytes, which click prints bytes to."""
        return _Stream(self._stream.buffer, self._report)

    def write(self, text: str | bytes) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._report(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._report(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _errors_reported(report: Callable[[str, OSError], None]) -> Iterator[None]:
    """In a `with` block, call `report` with "stdout" or "stderr" if that cannot be written."""
    originals = {name: getattr(sys, name) for name in _NAMES}
    wrapped = {
        name: stream and _Stream(stream, partial(report, name))
        for name, stream in originals.items()
    }
    for name, stream in wrapped.items():
        setattr(sys, name, stream)
    try:
        yield
    finally:
        for name, stream in wrapped.items():
            if getattr(sys, name) is stream:  # and not another thread's replacement
                setattr(sys, name, originals[name])


@contextmanager
def survive_broken_output(write_to_file: Callable[[str], None]) -> Iterator[None]:
    """Go on in a `with` block when standard output or error cannot be written.

    The reason may be a closed pipe or a full disk. This applies to every writer in this process,
    such as progress bars and warnings of libraries.

    Args:
      write_to_file: writes a line, which says what is lost and why, to the log file.
    """

    def report(name: str, error: OSError) -> None:
        _lead_nowhere(getattr(sys, name))
        line = (
            f"warning: {_NAMES[name]} cannot be written ({error.strerror}); the run goes on "
            "without it, and its lines are in log.txt"
        )
        write_to_file(line)
        if name == "stdout":
            sys.stderr.write(f"{line}\n")

    with _errors_reported(report):
        hook, threading.excepthook = threading.excepthook, _report_thread(threading.excepthook)
        try:
            yield
        finally:
            threading.excepthook = hook


def _report_thread(hook: Callable) -> Callable:
    """Return a hook that reports in one line an `OSError` that ends a thread.

    An example is TensorBoard's writer on a full disk. The function that waits for the thread raises
    the error.
    """

    def report(ended: threading.ExceptHookArgs) -> None:
        if isinstance(ended.exc_value, OSError) and ended.thread is not None:
            sys.stderr.write(f"warning: {ended.thread.name} ended: {ended.exc_value}\n")
        else:
            hook(ended)

    return report


@contextmanager
def report_broken_output() -> Iterator[None]:
    """Raise an `OutputError` in a `with` block where standard output or error cannot be written.

    A closed pipe stays a BrokenPipeError: somebody may read the beginning of a listing (`| head`).
    """
    broken = set()

    def report(name: str, error: OSError) -> None:
        if error.errno == errno.EPIPE:
            raise error
        broken.add(name)
        raise OutputError(f"{_NAMES[name]} cannot be written ({error.strerror})") from error

    try:
        with _errors_reported(report):
            yield
    finally:
        for name in broken:
            _lead_nowhere(getattr(sys, name))


def _lead_nowhere(stream: TextIO) -> None:
    """Redirect a stream and its buffered output to /dev/null, here and in child processes.

    This has no effect on workers of a server that is running already (`toolkit.processes.workers`).
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
