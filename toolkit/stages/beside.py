"""Stages that run in a process of their own, beside those that follow them.

As Kaldi's recipes decode in the background while they train the next system. Which process runs a
stage decides nothing but the time: whoever reads what the other one makes waits for it.
"""

import os
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.processes.bars import hide_progress_bars
from toolkit.processes.memory import excluded_pids
from toolkit.processes.workers import block_sigint, exit_with_parent, worker_context
from toolkit.stages.log import StageLog, Verbosity
from toolkit.stages.signals import TERMINATED, exit_on_signals

Work = Callable[["HeldLog", Callable[[], bool]], None]
"""Runs stages and writes to a log; is told whether the main process is waiting for them."""


class BesideError(ToolkitError):
    """A stage that ran beside others failed."""


class Beside:
    """Stages in a process of their own, from now on.

    Args:
      numbers: of the stages.
      made: names of what they made when they last finished.
      jobs: the worker processes that they use.
      work: runs them; picklable.
      log: gets their lines, those of a stage at once when it has ended.
    """

    def __init__(
        self, numbers: Sequence[int], made: Sequence[str], jobs: int, work: Work, log: StageLog
    ) -> None:
        self.numbers, self.made, self.jobs = numbers, made, jobs
        self._log = log
        self._which = f"stage{'s' * (len(numbers) > 1)} {' and '.join(map(str, numbers))}"
        self._failure: str | None = (
            f"the process of {self._which} was killed, perhaps because memory ran out: the same"
            " command continues, with --jobs 1 one stage after the other"
        )
        context = worker_context()
        self._lines, sender = context.Pipe(duplex=False)
        self._awaited = context.Event()
        arguments = (sender, work, self._awaited, log.verbosity, dict(os.environ))
        with block_sigint():
            self._process = context.Process(target=_begin, args=arguments)
            self._process.start()
        sender.close()
        excluded_pids.add(self._process.pid)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def running(self) -> bool:
        """Whether they are not done."""
        return self._process.is_alive()

    def wait(self) -> None:
        """Wait until all of them are done.

        Raises:
          BesideError: one of them failed; the message is its own.
        """
        self._awaited.set()
        self._end()
        if self._process.exitcode == TERMINATED:
            raise BesideError(f"the process of {self._which} was stopped by SIGTERM")
        if self._failure is not None:
            raise BesideError(self._failure)

    def stop(self) -> None:
        """End them, as SIGTERM does; what is unfinished stays for the next run."""
        self._process.terminate()
        self._end()

    def _end(self) -> None:
        self._process.join()
        self._listener.join()
        excluded_pids.discard(self._process.pid)

    def _listen(self) -> None:
        while True:
            try:
                kind, value = self._lines.recv()
            except EOFError:
                return
            if kind == "ended":
                self._failure = value
            else:
                for line, always in value:
                    self._log.write(line, always)


class HeldLog(StageLog):
    """Holds the lines of a stage back until it has ended, and sends them to the main process."""

    def __init__(self, sender: Connection, verbosity: Verbosity) -> None:
        super().__init__(Path(os.devnull), verbosity)
        self._sender, self._held = sender, []

    def write(self, line: str, always: bool = False) -> None:
        """Hold one line back."""
        self._held.append((line, always))

    def release(self) -> None:
        """Send what was held back."""
        self._sender.send(("lines", self._held))
        self._held = []


def _begin(
    sender: Connection,
    work: Work,
    awaited: Event,
    verbosity: Verbosity,
    environment: dict[str, str],
) -> None:
    exit_with_parent(environment)
    log, failure = HeldLog(sender, verbosity), None
    try:
        with exit_on_signals(message=False), hide_progress_bars():
            work(log, awaited.is_set)
    except ToolkitError as error:
        failure = str(error)
    log.release()
    sender.send(("ended", failure))
