"""Feed hostile files to one reader in a process of its own for a limited time."""

import contextlib
import json
import mmap
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.fuzz.choices import Choices, Rolled
from tests.fuzz.trial import SECONDS, limited_memory

MOST_FAILURES = 3
"""Those after which a turn is over."""
PAUSE = 1.0
"""Seconds between two looks at a process that has nothing to say."""
BLOCKED = 600.0
"""Seconds of wall time for one input, however busy the machine is."""


class Source(Protocol):
    """A reader with a generator of hostile files."""

    last: tuple[str, bytes]
    """The name and the content of the file that was tried last."""

    def try_one(self, pick: Choices) -> bool:
        """Try one file and return whether it was refused. Any exception is a failure."""


@dataclass
class Turn:
    """The counts and failures of a turn."""

    inputs: int = 0
    refused: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)


def choices(name: str, seed: int, number: int) -> Rolled:
    """Return the choices that make input `number` of a reader, the same every time."""
    return Rolled(f"{seed} {name} {number}")


def take_turn(
    name: str, source: Source, seed: int, first: int, most: int, seconds: float, failed: Path
) -> Turn:
    """Feed a reader in a process of its own, so that a crash or hang ends only that process.

    Args:
      name: of the reader.
      source: the reader.
      seed: of the inputs, together with the name and their numbers.
      first: number of the first input.
      most: how many inputs at most.
      seconds: of processor time.
      failed: the folder for inputs that it fails on.
    """
    shared = mmap.mmap(-1, 8)
    reading, writing = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        os.close(reading)
        with contextlib.suppress(BaseException):
            turn = _feed(name, source, seed, first, most, seconds, failed, shared)
            os.write(writing, json.dumps(vars(turn)).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        status, blocked = _watch(pid, reading, shared)
        text = pipe.read()
    if text:
        return Turn(**json.loads(text))
    tried = int.from_bytes(shared[:8], "little")
    cause = "blocked" if blocked else f"ended by {_describe_status(status)}"
    return Turn(tried + 1, 0, 0.0, [f"{name} seed {seed} input {first + tried}: {cause}"])


def _describe_status(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGPROF:
        return f"its limit of {SECONDS:.0f} s of processor time"
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


def _watch(pid: int, results_pipe: int, shared: mmap.mmap) -> tuple[int, bool]:
    """Wait for a process. Kill it and return True if it is stuck on one input."""
    last_count, since, blocked = shared[:8], time.monotonic(), False
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status, blocked
        if shared[:8] != last_count:
            last_count, since = shared[:8], time.monotonic()
        elif time.monotonic() - since > BLOCKED and not blocked:
            blocked = True
            os.kill(pid, signal.SIGKILL)
        select.select([results_pipe], [], [], PAUSE)


def _feed(
    name: str,
    source: Source,
    seed: int,
    first: int,
    most: int,
    seconds: float,
    failed: Path,
    shared: mmap.mmap,
) -> Turn:
    turn, began = Turn(), time.process_time()
    end = began + seconds
    with limited_memory(), discard_output():
        while turn.inputs < most and time.process_time() < end:
            shared[:8] = turn.inputs.to_bytes(8, "little")
            # Of processor time: a busy machine is no reason. By default the signal kills.
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                turn.refused += source.try_one(choices(name, seed, first + turn.inputs))
            except BaseException as error:
                turn.failures.append(_keep(name, source, seed, first + turn.inputs, error, failed))
            turn.inputs += 1
            if len(turn.failures) >= MOST_FAILURES:
                break
        signal.setitimer(signal.ITIMER_PROF, 0)
    turn.seconds = time.process_time() - began
    return turn


def _keep(
    name: str, source: Source, seed: int, number: int, error: BaseException, failed: Path
) -> str:
    """Save the input and the traceback, and return a line about the failure."""
    folder = failed / name.replace("/", "-") / f"{seed}-{number}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "traceback.txt").write_text(
        "".join(traceback.format_exception(error)), errors="replace"
    )
    (folder / "input").write_bytes(source.last[1])
    message = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return f"{name} seed {seed} input {number} ({source.last[0]}): {message}"


@contextlib.contextmanager
def discard_output() -> Callable:
    """Discard what readers print, such as warnings."""
    sys.stdout.flush()
    sys.stderr.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    saved_descriptors = [os.dup(number) for number in (1, 2)]
    try:
        for number in (1, 2):
            os.dup2(nowhere, number)
        yield
    finally:
        for number, copy in zip((1, 2), saved_descriptors, strict=True):
            os.dup2(copy, number)
            os.close(copy)
        os.close(nowhere)
