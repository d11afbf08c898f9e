"""What a run says, on the terminal and in the run directory's log."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import click


class Journal:
    """Says lines on standard output and appends them, with the time, to a log file."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def say(self, line: str) -> None:
        """Say one line; a log that cannot be written (a full disk) does not stop the run."""
        click.echo(line)
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        try:
            with open(self._log, "a", encoding="utf-8") as log:
                log.write(f"{now} {line}\n")
        except OSError:
            return


class _Relay(logging.Handler):
    def __init__(self, journal: Journal) -> None:
        super().__init__(logging.INFO)
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        self._journal.say(f"   {record.getMessage()}")


@contextmanager
def toolkit_logs(journal: Journal) -> Iterator[None]:
    """Let the journal say what the toolkit's modules log inside the `with` block."""
    logger, relay = logging.getLogger("toolkit"), _Relay(journal)
    before, logger.level = logger.level, logging.INFO
    logger.addHandler(relay)
    try:
        yield
    finally:
        logger.removeHandler(relay)
        logger.level = before


def duration(seconds: float) -> str:
    """Return a wall time for people: "4.2 s", "3 min 12 s", "1 h 02 min"."""
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
