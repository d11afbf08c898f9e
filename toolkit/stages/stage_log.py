"""The log lines of a run, on the terminal and in the run directory's log.txt."""

import logging
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import click

from toolkit.storage.encoding import printable
from toolkit.storage.links import open_regular

Amount = Literal["quiet", "normal", "verbose"]
"""What is printed: warnings and errors; all but what is of interest to developers; that too, with
the time before each line, which lines that do not go to a terminal have anyway. The log file has
what is normal and, where it is printed, more."""


class StageLog:
    """Prints lines on standard output and appends them, with the time, to a log file.

    Args:
      path: of the log file.
      amount: how much is printed.
    """

    def __init__(self, path: Path, amount: Amount = "normal") -> None:
        self._path, self.amount = path, amount

    def write(self, line: str, urgent: bool = False) -> None:
        """Write one line; a log file that cannot be written (a full disk) does not stop the run.

        Args:
          line: without its end.
          urgent: whether it is printed where the amount is quiet.

        Raises:
          LinkError: a link or no regular file is in its place.
        """
        if urgent or self.amount != "quiet":
            self._print(f"{_now()} {line}" if self._timed else line)
        self.record(line)

    @property
    def _timed(self) -> bool:
        to_terminal = sys.stdout is not None and sys.stdout.isatty()
        return self.amount == "verbose" or (self.amount == "normal" and not to_terminal)

    @staticmethod
    def _print(line: str) -> None:
        if _bars():
            _bars().write(printable(line))  # above them
            sys.stdout.flush()
        else:
            click.echo(printable(line))

    def record(self, line: str) -> None:
        """Write one line to the log file alone, as `write` does."""
        try:
            descriptor = open_regular(self._path, os.O_WRONLY | os.O_APPEND)
            with open(descriptor, "a", encoding="utf-8") as file:
                file.write(f"{_now()} {printable(line)}\n")
        except OSError:
            return


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _bars() -> Any:
    """Return tqdm's class where it shows progress bars now, otherwise None."""
    module = sys.modules.get("tqdm")
    shown = module and any(not bar.disable for bar in getattr(module.tqdm, "_instances", ()))
    return module.tqdm if shown else None


class _LogHandler(logging.Handler):
    def __init__(self, stage_log: StageLog) -> None:
        super().__init__(logging.DEBUG if stage_log.amount == "verbose" else logging.INFO)
        self._stage_log = stage_log

    def emit(self, record: logging.LogRecord) -> None:
        urgent = record.levelno >= logging.WARNING
        self._stage_log.write(f"   {record.getMessage()}", urgent)


@contextmanager
def toolkit_logs(stage_log: StageLog) -> Iterator[None]:
    """Write what modules of the toolkit and of recipes log inside the block to the stage log."""
    handler = _LogHandler(stage_log)
    loggers = [logging.getLogger(name) for name in ("toolkit", "recipes")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(handler.level)
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)


def duration(seconds: float) -> str:
    """Return a wall time in readable form: "4.2 s", "3 min 12 s", "1 h 02 min", or "?"."""
    if not math.isfinite(seconds):
        return "?"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def headline(numbers: dict) -> str:
    """Return a stage's headline numbers on one line: "utterances 120, wer 8.31"."""
    return ", ".join(f"{name} {_number(value)}" for name, value in numbers.items())


def _number(value: bool | float | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
