"""Runs the stages of a recipe in order, skips those that are done, resumes interrupted ones."""

import itertools
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

from toolkit.engines import VARIABLES, engines
from toolkit.environment import numeric_environment
from toolkit.errors import ToolkitError
from toolkit.processes import ranks
from toolkit.processes.devices import choose_device
from toolkit.processes.memory import MemoryWatch
from toolkit.stages.beside import Beside, BesideError, HeldLog
from toolkit.stages.directory import TRASHES, RunDirectory, memory_error, storage_error
from toolkit.stages.distributed import joined_by_followers
from toolkit.stages.inputs import InputNames, is_outside
from toolkit.stages.log import StageLog, duration, headline, toolkit_logs
from toolkit.stages.marker import Attempt, Marker, Progress, Provenance, code_version
from toolkit.stages.plan import Inspector, State, join_reasons, plan, settled
from toolkit.stages.publish import complete_interrupted, publish
from toolkit.stages.run import DeclarationError, OtherStage, Run, plain_headline
from toolkit.stages.signals import in_stage
from toolkit.stages.stage import Request, Stage
from toolkit.storage.digests import Content
from toolkit.storage.files import LinkError, refuse_links_below
from toolkit.storage.paths import encoding_error, overlap, printable


class StageFailedError(ToolkitError):
    """A stage raised an exception; `stages/NN.failed.txt` has its traceback."""


class OtherCodeError(ToolkitError):
    """Partial outputs were made by other code or packages than those that would continue them."""


class Runner:
    """Runs stages in one run directory, whose lock the caller must hold."""

    def __init__(
        self,
        stages: Sequence[Stage],
        directory: RunDirectory,
        request: Request,
        stage_log: StageLog,
    ) -> None:
        self.stages, self.directory = stages, directory
        self.request, self.stage_log = request, stage_log
        folders = InputNames(directory.root, request.config).folders
        self.digests = directory.load_digests(folders)
        # As it is at the start: what is edited later is not what runs, as far as it is loaded.
        self.code = code_version(request.source)
        titles = {stage.number: stage.title for stage in stages}
        self.inspector = Inspector(directory, request.config, self.digests, titles)
        self._beside: Beside | None = None

    def run(self) -> None:
        """Run each stage of the request that is not done.

        Raises:
          ToolkitError: when a stage fails; those before it are finished.
        """
        complete_interrupted(self.directory, self.digests)
        self._check_engines()
        self._check()
        for stage in self.stages:
            if stage.number < self.request.first and not (state := self._state(stage)).done:
                self.stage_log.write(
                    f"warning: stage {stage.number} ({stage.title}) is {state}; "
                    f"not run because of --stage {self.request.first}"
                )
        try:
            for stage in self._chosen():
                if self._beside is None or stage.number not in self._beside.numbers:
                    self._settle_inputs(stage)
                    self.run_stage(stage, beside=True)
            self._join()
        finally:
            if self._beside is not None:
                self._beside.stop()
        self.digests.save()

    def run_stage(self, stage: Stage, beside: bool = False) -> None:
        """Run a stage unless it is done.

        Args:
          stage: the stage.
          beside: whether it may be left to a process of its own.
        """
        state = self._state(stage)
        if state.done and stage.number not in self.request.forced:
            off = not stage.asked_for(self.request.config)
            kept = f"{stage.lack}, what it made before stays" if off else ""
            self.stage_log.write(f"-- {stage.number} {stage.title}: {kept or 'done, skipped'}")
        elif not (beside and self._left_to_another(stage)):
            self._attempt(stage, state)

    def _chosen(self) -> list[Stage]:
        return [s for s in self.stages if self.request.first <= s.number <= self.request.last]

    def _left_to_another(self, stage: Stage) -> bool:
        """Begin a stage, and those after it that may too, in a process of their own, if that helps.

        There is one such process at a time, with half of the jobs; not on a GPU, which one stage
        fills, nor under torchrun.
        """
        after = [s for s in self._chosen() if s.number >= stage.number]
        may = itertools.takewhile(lambda s: s.may_run_beside(self.request.config), after)
        if len(together := list(may)) in (0, len(after)) or self._beside is not None:
            return False
        if self.request.jobs == 1 or ranks.world_size() > 1:
            return False
        if choose_device(self.request.device) != "cpu":
            return False
        for one in together:
            self.stage_log.write(f"=> {one.number} {one.title}: beside those that follow")
        numbers = [one.number for one in together]
        request = replace(self.request, first=numbers[0], last=numbers[-1])
        half = request.jobs // 2
        made = [name for number in numbers for name in self.inspector.outputs(number)]
        work = partial(_run_stages, self.stages, self.directory.root, request, half)
        self._beside = Beside(numbers, made, half, work, self.stage_log)
        return True

    def _join(self) -> None:
        """Wait for the stages that run beside; raises a `BesideError` if one failed."""
        if self._beside is not None:
            self._beside.wait()
            self._beside = None

    def _settle_inputs(self, stage: Stage) -> None:
        """Wait for what a stage read the last time, if it is made anew: its state depends on it."""
        if self._beside is None or not self._beside.running:
            self._join()
            return
        marker = self.inspector.marker(stage.number)
        for name in marker.provenance.inputs if marker is not None else ():
            self._settle(name, missing=False)

    def _settle(self, name: str, missing: bool = True) -> None:
        """Wait for an input that is being made.

        Args:
          name: of the input.
          missing: whether what is not there may be one that is being made.
        """
        if self._beside is None or is_outside(name):
            return
        made = any(overlap(name, output) for output in self._beside.made)
        if made or (missing and not (self.directory.root / name).exists()):
            self._join()

    def _check_engines(self) -> None:
        """Refuse to run stages beside others that stay and were run with another engine.

        Raises:
          OtherCodeError: there is such a stage.
        """
        states = [(s.number, s.title, self._state(s)) for s in self.stages]
        steps = plan(states, self.request.forced)
        chosen = range(self.request.first, self.request.last + 1)
        runs = any(step.action == "run" and step.number in chosen for step in steps)
        if self.request.accept_code_change or not runs:
            return
        off = {s.number for s in self.stages if not s.asked_for(self.request.config)}
        for step in steps:
            if step.action != "skip" or step.state.marker is None or step.number in off:
                continue
            for name, engine in engines().items():
                before = step.state.marker.code.versions.get(name)
                if before and before != engine:
                    raise OtherCodeError(
                        f"stage {step.number} ({step.title}) was run with {before} for {name},"
                        f" here it is {engine}: results of both are not to be mixed. Set"
                        f" {VARIABLES[name]}={before}, take another run directory, or mix them"
                        " knowingly with --accept-code-change"
                    )

    def _check(self) -> None:
        """Call the checks of the stages that will run, before hours are spent on earlier ones."""
        first, last = self.request.first, self.request.last
        chosen = [stage for stage in self.stages if first <= stage.number <= last]
        if not any(stage.check for stage in chosen):
            return
        states = [(s.number, s.title, self._state(s)) for s in chosen]
        for stage, step in zip(chosen, plan(states, self.request.forced), strict=True):
            if stage.check and step.action != "skip":
                stage.check(self.request.config)

    def _state(self, stage: Stage) -> State:
        off = not stage.asked_for(self.request.config)
        return settled(self.inspector.state(stage.number), off)

    def _attempt(self, stage: Stage, state: State) -> None:
        self.stage_log.write(f"== {stage.number} {stage.title} (--stage {stage.number})")
        number = stage.number
        forced = number in self.request.forced
        if state.kind in ("stale", "failed"):
            earlier = "the last time it " if state.kind == "failed" else ""
            self.stage_log.write(f"   {earlier}{state}")
        provenance, seconds_before = self._resumable(number, forced)
        self.directory.failure(number).unlink(missing_ok=True)
        started = _now()
        provenance.attempts.append(Attempt(started, self.code, numeric_environment()))
        run = Run(
            number,
            self.inspector,
            provenance,
            self._other_stages(number),
            self.request.device,
            self.request.jobs - (self._beside.jobs if self._beside is not None else 0),
            self.request.command,
            seconds_before,
            self._settle,
        )
        try:
            with (
                in_stage(number),
                joined_by_followers(stage, self.request.config),
                MemoryWatch() as memory,
            ):
                numbers = plain_headline(stage.body(run) if stage.asked_for(run.config) else None)
            provenance.update_numeric()
            marker = Marker(
                stage=number,
                title=stage.title,
                provenance=provenance,
                outputs=self._outputs(run),
                command=self.request.command,
                started=started,
                ended=_now(),
                seconds=round(run.seconds, 3),
                headline=numbers,
                peak_bytes=memory.peak_bytes,
            )
            publish(self.directory, marker, self.digests)
        except BesideError:  # of a stage for whose output this one has waited
            raise
        except (Exception, SystemExit) as error:
            raise self._failure(stage, error) from error
        results = headline(numbers)
        self.stage_log.write(f"   {duration(marker.seconds)}" + (f"; {results}" if results else ""))

    def _resumable(self, number: int, forced: bool) -> tuple[Provenance, float]:
        """Discard partial outputs of other parameters or inputs.

        Returns:
          The provenance of those that are resumed, or a new one, and the seconds spent on them.

        Raises:
          OtherCodeError: other code made those that would be kept.
          LinkError: there is a link among them.
        """
        provenance = Provenance.read(self.directory.provenance(number))
        changes = self.inspector.provenance_changes(provenance) if provenance else []
        code_changes = provenance.code_changes(self.code) if provenance else []
        accepted = self.request.accept_code_change
        if provenance and forced and (not provenance.forced or (code_changes and not accepted)):
            changes = [f"--force {number}"]
        if provenance and not changes:
            if code_changes and not accepted:
                raise OtherCodeError(refusal(number, code_changes))
            refuse_links_below(self.directory.root, self.directory.partial(number))
            # Inputs that this attempt no longer reads stay recorded: partial outputs may use them.
            with_other = f", with other code: {'; '.join(code_changes)}" if code_changes else ""
            self.stage_log.write(f"   resuming the interrupted attempt{with_other}")
            progress = Progress.read(self.directory.progress(number))
            return provenance, progress.seconds if progress else 0.0
        if provenance:
            self.stage_log.write(f"   starts over: {join_reasons(changes)}")
        self.directory.discard_partial(number)
        return Provenance(forced=forced), 0.0

    def _outputs(self, run: Run) -> dict[str, Content]:
        outputs = {}
        for name in run.outputs:
            content = self.digests.content(self.directory.partial(run.stage, name), sync=True)
            if content is None:
                raise DeclarationError(f"stage {run.stage} did not write its output `{name}`")
            outputs[name] = content
        return outputs

    def _other_stages(self, number: int) -> list[OtherStage]:
        other_stages = []
        for other in self.stages:
            if other.number != number:
                outputs = tuple(self.inspector.outputs(other.number))
                other_stages.append(OtherStage(other.number, other.title, outputs))
        return other_stages

    def _failure(self, stage: Stage, error: BaseException) -> ToolkitError:
        """Write the traceback beside the markers and return the error to raise."""
        path = self.directory.failure(stage.number)
        resource = storage_error(error, self.directory.root) or memory_error(error)
        resource = resource or encoding_error(error)
        user_error = resource or (error if isinstance(error, ToolkitError) else None)
        message = printable(str(user_error) if user_error else f"{type(error).__name__}: {error}")
        text = printable("".join(traceback.format_exception(error)))
        try:
            self.directory.write(path, f"{' '.join(message.split())}\n\n{_now()}\n{text}")
            where = f" (traceback in {path})"
        except (OSError, LinkError):
            where = ""
        if not user_error:
            self.stage_log.write(text.rstrip(), always=True)
        return StageFailedError(f"stage {stage.number} ({stage.title}) failed: {message}{where}")


def _run_stages(
    stages: Sequence[Stage],
    root: Path,
    request: Request,
    jobs: int,
    log: HeldLog,
    awaited: Callable[[], bool],
) -> None:
    """Run the stages of a request beside those of the process that holds the run's lock.

    With `jobs`, or with all of the request's where that process waits.
    """
    with toolkit_logs(log):
        runner = Runner(stages, RunDirectory(root, TRASHES[1]), request, log)
        for stage in runner._chosen():
            runner.request = replace(request, jobs=request.jobs if awaited() else jobs)
            runner.run_stage(stage)
            log.release()
        runner.digests.save()


def refusal(number: int, changes: Sequence[str]) -> str:
    """Return why a stage is not continued with other code, and the two ways out."""
    return (
        f"stage {number} was begun with other code or packages: {'; '.join(changes)}. To "
        "continue it with the present ones, which its marker will then list beside the earlier "
        f"ones, add --accept-code-change; to start the stage over, --force {number}"
    )


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
