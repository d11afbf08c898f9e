"""One trial: restart a stage of a finished run, disturb it, finish it and compare."""

import random
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.torture import forked
from tests.torture.comparison import FailedTrialError, compare, foreign_files
from tests.torture.counts import OVER, Counts
from tests.torture.faults import Fault, Place, draw
from tests.torture.recipes import Command

LONGEST = 3600.0
"""Seconds after which a command counts as hanging."""
SHRINK = 0.7
"""Each fault of a trial finds this much of the stage left that the fault before it found."""


@dataclass
class Bench:
    """A recipe, its undisturbed run, and a copy on which the trials run one by one.

    Since every trial must end with the bytes of the undisturbed run, the next can begin with what
    it left; after a failure the copy is made anew.
    """

    name: str
    recipe: Command
    reference: Path
    place: Place
    folder: Path
    """Folder for the commands' output."""

    def renew(self) -> None:
        """Copy the undisturbed run."""
        self.place.repair()
        shutil.rmtree(self.place.exp, ignore_errors=True)
        shutil.copytree(self.reference, self.place.exp, symlinks=True)

    def measure(self, stage: int, counts: Counts) -> None:
        """Run a stage undisturbed, to know how long it takes, and compare.

        Raises:
          FailedTrialError: see `Trial.run`.
        """
        trial = Trial(self, stage)
        trial.finish()
        compare(self.reference, self.place.exp, stage)
        counts.durations.setdefault(self.name, {})[str(stage)] = trial.took


class Trial:
    """The commands of one trial."""

    def __init__(self, bench: Bench, stage: int) -> None:
        self.bench, self.stage = bench, stage
        self.output = ""
        """Output of the commands."""
        self.began = False
        """Whether the last command has come to the stage."""
        self.took = 0.0
        """Seconds from the beginning of the stage to the end of the last command."""
        # It grows from trial to trial, and would be the first to meet a limit.
        (bench.place.exp / "log.txt").unlink(missing_ok=True)

    def run(self, kinds: Sequence[str], chance: random.Random, counts: Counts) -> list[str]:
        """Disturb the stage by one fault after the other, end it, and compare.

        Returns:
          The kinds of the faults that disturbed it, `OVER` for one that did not.

        Raises:
          FailedTrialError: a disturbed command ended otherwise than it should, the same command did
            not go on, or files differ.
        """
        exp, seconds = self.bench.place.exp, counts.durations[self.bench.name][str(self.stage)]
        files, happened, left, status = foreign_files(exp, self.stage), [], 1.0, None
        for kind in kinds:
            fault = draw(kind, chance)
            status, felt = self.disturbed(fault, seconds * left)
            happened.append(kind if felt else OVER)
            if status == 0:
                break
            left *= SHRINK
        if status:
            self.finish()
        compare(self.bench.reference, exp, self.stage)
        if foreign_files(exp, self.stage) != files:
            raise FailedTrialError("a file that is not an output of the stage has changed")
        return happened

    def disturbed(self, fault: Fault, seconds: float) -> tuple[int, bool]:
        """Run the command with a fault after its share of `seconds`.

        Returns:
          The exit status, and whether the fault has disturbed the stage.

        Raises:
          FailedTrialError: it ended otherwise than it should.
        """
        place = self.bench.place
        process, struck = self._start(fault), False

        def strike() -> None:
            nonlocal struck
            struck = True
            place.strike(fault, process)

        try:
            status = self._watch(process, fault.moment * seconds, strike)
        finally:
            process.kill()
            place.repair()
        if "Traceback" in process.output:
            raise FailedTrialError(f"a traceback after {fault}")
        if fault.kind == "limit":  # from the beginning on, perhaps before that of the stage
            struck = struck or status == fault.status
        expected = (0, fault.status) if struck else (0,)
        # After its last stage the command handles no signals: SIGTERM ends it like any process.
        expected += (-signal.SIGTERM,) if struck and fault.kind == "term" else ()
        if status not in expected:
            raise FailedTrialError(f"exit status {status}, not one of {expected}, with {fault}")
        return status, struck and self.began and status == fault.status

    def finish(self) -> None:
        """Run the command to its end.

        Raises:
          FailedTrialError: it does not end well.
        """
        process = self._start(None)
        try:
            status = self._watch(process, float("inf"), lambda: None)
        finally:
            process.kill()
        if status or "Traceback" in process.output:
            raise FailedTrialError(f"exit status {status} of a command that nobody disturbed")
        forked.learn(self._modules)

    @property
    def _modules(self) -> Path:
        return self.bench.folder / "modules.txt"

    def _start(self, fault: Fault | None) -> forked.Forked:
        number = str(self.stage)
        only = ("--stage", number, "--stop-stage", number, "--force", number)
        jobs = fault.jobs if fault else 1
        arguments = [*self.bench.recipe.arguments(self.bench.place.exp, jobs), *only]
        self._modules.unlink(missing_ok=True)
        limit, jump = (fault.limit, fault.jump) if fault else (None, 0.0)
        return forked.start(self.bench.recipe.script, arguments, self._modules, limit, jump)

    def _watch(self, process: forked.Forked, moment: float, strike: Callable[[], None]) -> int:
        """Wait for the stage, call `strike` some seconds after its beginning, wait for the end."""
        began = time.monotonic() if process.hear(f"== {self.stage} ", LONGEST) else None
        self.began = began is not None
        until = time.monotonic() + min(moment, LONGEST)
        while process.poll() is None and (remaining_s := until - time.monotonic()) > 0:
            process.pause(remaining_s)
        if process.poll() is None and moment <= LONGEST:
            strike()
        try:
            status = process.wait(LONGEST)
        except TimeoutError as error:
            raise FailedTrialError(str(error)) from error
        finally:
            self.output += process.output
        if began is not None:
            self.took = time.monotonic() - began
        return status
