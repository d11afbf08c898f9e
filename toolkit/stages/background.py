"""Stages that run in the background, in a process of their own, while later stages start.

Kaldi's recipes likewise decode in the background while they train the next system. Results do not
depend on which process runs a stage: a stage waits for the outputs that it reads.
"""

import os
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.processes.memory import excluded_pids
from toolkit.processes.workers import block_sigint, exit_with_parent, worker_context
from toolkit.stages.log import StageLog, Verbosity
from toolkit.stages.signals import TERMINATED, exit_on_signals

StagesFunction = Callable[["BufferedLog", Callable[[], bool]], None]
"""Runs stages and writes to a log; the second argument says whether the main process waits for
them."""


class BackgroundError(ToolkitError):
    """A stage that ran in the background failed."""


class BackgroundStages:
    """Stages in a separate process, which the constructor starts.

    Args:
      numbers: numbers of the stages.
      outputs: names of their outputs when they last finished.
      jobs: number of worker processes that they use.
      run_stages: function that runs the stages; picklable.
      log: receives all lines of a stage when the stage has ended.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        outputs: Sequence[str],
        jobs: int,
        run_stages: StagesFunction,
        log: StageLog,
    ) -> None:
        self.numbers, self.outputs, self.jobs = numbers, outputs, jobs
        self._log = log
        self._which = f"stage{'s' * (len(numbers) > 1)} {' and '.join(map(str, numbers))}"
        # `wait` raises an error with this message, unless the process sends its own outcome.
        self._failure: str | None = (
            f"the process of {self._which} was killed, perhaps because memory ran out: run the same"
            " command again to continue. With --jobs 1 the stages run one after the other"
        )
        context = worker_context()
        self._lines, sender = context.Pipe(duplex=False)
        self._awaited = context.Event()
        arguments = (sender, run_stages, self._awaited, log.verbosity, dict(os.environ))
        # This process handles Ctrl-C and stops the new one.
        with block_sigint():
            self._process = context.Process(target=_run_stages, args=arguments)
            self._process.start()
        sender.close()  # only the process has the sender now: its end closes the pipe
        excluded_pids.add(self._process.pid)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def running(self) -> bool:
        """Whether the process of the stages is still running."""
        return self._process.is_alive()

    def wait(self) -> None:
        """Wait until all stages are done.

        Raises:
          BackgroundError: a stage failed; the message is that of its error.
        """
        self._awaited.set()
        self._join()
        if self._process.exitcode == TERMINATED:
            raise BackgroundError(f"the process of {self._which} was stopped by SIGTERM")
        if self._failure is not None:
            raise BackgroundError(self._failure)

    def stop(self) -> None:
        """End the process with SIGTERM; unfinished outputs stay for the next run."""
        self._process.terminate()
        self._join()

    def _join(self) -> None:
        """Wait for the end of the process and of the thread that receives its lines."""
        self._process.join()
        self._listener.join()
        excluded_pids.discard(self._process.pid)

    def _listen(self) -> None:
        """Receive the lines and the outcome of the stages; runs in a thread."""
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


class BufferedLog(StageLog):
    """Buffers the lines of a stage, and sends them to the main process when the stage has ended."""

    def __init__(self, sender: Connection, verbosity: Verbosity) -> None:
        super().__init__(Path(os.devnull), verbosity)
        self._sender = sender
        self._buffer: list[tuple[str, bool]] = []

    def write(self, line: str, always: bool = False) -> None:
        """Buffer one line."""
        self._buffer.append((line, always))

    def send(self) -> None:
        """Send the buffered lines."""
        self._sender.send(("lines", self._buffer))
        self._buffer = []


def _run_stages(
    sender: Connection,
    run_stages: StagesFunction,
    awaited: Event,
    verbosity: Verbosity,
    environment: dict[str, str],
) -> None:
    """Run stages in the new process, and send their lines and their outcome."""
    from toolkit.processes.bars import hide_progress_bars

    # The server of workers forked this process: it has the server's environment, not the caller's.
    exit_with_parent(environment)
    log, failure = BufferedLog(sender, verbosity), None
    try:
        with exit_on_signals(message=False), hide_progress_bars():
            run_stages(log, awaited.is_set)
    except ToolkitError as error:
        failure = str(error)
    log.send()
    sender.send(("ended", failure))
