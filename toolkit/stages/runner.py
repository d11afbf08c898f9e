"""Runs the stages of a recipe in order, skips those that are done, resumes interrupted ones."""

import itertools
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from toolkit.engines import VARIABLES, engines
from toolkit.environment import numeric_environment
from toolkit.errors import ToolkitError
from toolkit.processes import ranks
from toolkit.processes.devices import choose_device
from toolkit.processes.memory import MemoryWatch
from toolkit.processes.workers import import_modules
from toolkit.stages.background import BackgroundError, BackgroundStages, BufferedLog
from toolkit.stages.declaration import RunOptions, Stage
from toolkit.stages.directory import TRASHES, RunDirectory, memory_error, storage_error
from toolkit.stages.distributed import broadcast_stage
from toolkit.stages.log import StageLog, duration, headline, timestamp, toolkit_logs
from toolkit.stages.marker import Attempt, Marker, Progress, Provenance, code_version
from toolkit.stages.plan import Planner, is_outside, join_reasons
from toolkit.stages.run import DeclarationError, Run, StageOutputs, plain_headline
from toolkit.stages.signals import in_stage
from toolkit.storage.digests import Content
from toolkit.storage.files import LinkError, refuse_links_below
from toolkit.storage.paths import encoding_error, overlap, printable


class StageFailedError(ToolkitError):
    """A stage raised an exception; `stages/NN.failed.txt` has its traceback."""


class OtherCodeError(ToolkitError):
    """The code or packages that made partial outputs differ from the present ones."""


class Runner:
    """Runs stages in one run directory, whose lock the caller must hold.

    Args:
      stages: all stages of the recipe.
      directory: where they run.
      options: options of the command line.
      stage_log: the run's log.
      modules: what the stages' functions import, see `Declaration`.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        directory: RunDirectory,
        options: RunOptions,
        stage_log: StageLog,
        modules: Sequence[str] = (),
    ) -> None:
        self.stages, self.directory, self.modules = stages, directory, modules
        self.options, self.stage_log = options, stage_log
        self.planner = Planner(directory, stages, options.config)
        self.digests = self.planner.digests
        # The code at the start: later edits do not affect modules that are loaded.
        self.code = code_version(options.source)
        self.chosen = [s for s in stages if options.first <= s.number <= options.last]
        self._background: BackgroundStages | None = None

    def run(self) -> None:
        """Run each chosen stage that is not done.

        Raises:
          ToolkitError: a stage failed; those before it are finished.
        """
        # 1. Rename outputs that an interrupted run has finished.
        self.directory.recover(self.digests)
        # 2. Fail now rather than after hours of earlier stages.
        self._check_engines()
        self._check_stages()
        first = self.options.first
        for stage in self.stages:
            if stage.number < first and not (state := self.planner.state(stage)).done:
                self.stage_log.write(
                    f"warning: stage {stage.number} ({stage.title}) is {state}; "
                    f"not run because of --stage {first}"
                )
        # 3. Run the stages. A stage's state depends on the outputs of those in the background.
        try:
            for stage in self.chosen:
                if self._background is not None and stage.number in self._background.numbers:
                    continue
                self._wait_for_inputs(stage)
                if not self.skips(stage):
                    # Imports of torch and numba take seconds: import them only if a stage needs
                    # them.
                    import_modules(self.modules)
                    if not self._start_in_background(stage):
                        self.run_stage(stage)
            self._wait_for_background()
        finally:
            if self._background is not None:
                self._background.stop()
        self.digests.save()

    def skips(self, stage: Stage) -> bool:
        """Return whether a stage is done and not forced; if so, log it."""
        if not self.planner.state(stage).done or stage.number in self.options.forced:
            return False
        skip_reason = stage.skip_reason(self.options.config)
        text = f"{skip_reason}; its earlier outputs stay" if skip_reason else "done, skipped"
        self.stage_log.write(f"-- {stage.number} {stage.title}: {text}")
        return True

    def run_stage(self, stage: Stage) -> None:
        """Call a stage's function, put its outputs in place and write its marker.

        Raises:
          ToolkitError: the stage failed.
        """
        # 1. Log why it runs, and take over or discard the partial outputs.
        number, options = stage.number, self.options
        self.stage_log.write(f"== {number} {stage.title} (--stage {number})")
        state = self.planner.state(stage)
        if state.kind in ("stale", "failed"):
            earlier = "the last time it " if state.kind == "failed" else ""
            self.stage_log.write(f"   {earlier}{state}")
        provenance, seconds_before = self._resume(number)
        self.directory.failure(number).unlink(missing_ok=True)
        started = timestamp()
        provenance.attempts.append(Attempt(started, self.code, numeric_environment()))
        run = Run(
            number,
            self.planner,
            provenance,
            self._other_stages(number),
            options.device,
            options.jobs - (self._background.jobs if self._background is not None else 0),
            options.command,
            seconds_before,
            self._wait_for_output,
        )
        # 2. Call the function. 3. Digest the outputs, put them in place and write the marker.
        try:
            with in_stage(number), broadcast_stage(stage, options.config), MemoryWatch() as memory:
                # Use the recorded configuration, so that the setting that enables a stage is a
                # parameter.
                enabled = stage.is_enabled(run.config)
                numbers = plain_headline(stage.function(run) if enabled else None)
            provenance.update_numeric()
            marker = Marker(
                stage=number,
                title=stage.title,
                provenance=provenance,
                outputs=self._outputs(run),
                command=options.command,
                started=started,
                ended=timestamp(),
                seconds=round(run.seconds, 3),
                headline=numbers,
                peak_bytes=memory.peak_bytes,
            )
            self.directory.publish(marker, self.digests)
        except BackgroundError:  # this stage has waited for an output of the failed one
            raise
        except (Exception, SystemExit) as error:
            raise self._failure(stage, error) from error
        results = headline(numbers)
        self.stage_log.write(f"   {duration(marker.seconds)}" + (f"; {results}" if results else ""))

    def _resume(self, number: int) -> tuple[Provenance, float]:
        """Resume a stage's partial outputs, or discard them if they cannot be resumed.

        Returns:
          The provenance of the resumed outputs, or a new one, and the seconds spent on them.

        Raises:
          OtherCodeError: other code made the outputs that would be resumed.
          LinkError: there is a link among the outputs.
        """
        forced, accepted = number in self.options.forced, self.options.accept_code_change
        provenance = Provenance.read(self.directory.provenance(number))
        changes = self.planner.changes(provenance) if provenance else []
        code_changes = provenance.code_changes(self.code) if provenance else []
        # --force starts over, but resumes an attempt that an earlier --force began.
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
        """Return the digests of a stage's outputs, by name."""
        outputs = {}
        for name in run.outputs:
            content = self.digests.content(self.directory.partial(run.stage, name), sync=True)
            if content is None:
                raise DeclarationError(f"stage {run.stage} did not write its output `{name}`")
            outputs[name] = content
        return outputs

    def _other_stages(self, number: int) -> list[StageOutputs]:
        """Return the other stages with the names of their outputs."""
        return [
            StageOutputs(stage.number, stage.title, tuple(self.planner.outputs(stage.number)))
            for stage in self.stages
            if stage.number != number
        ]

    def _failure(self, stage: Stage, error: BaseException) -> ToolkitError:
        """Write the traceback beside the markers and return the error to raise."""
        path = self.directory.failure(stage.number)
        resource = storage_error(error, self.directory.root) or memory_error(error)
        resource = resource or encoding_error(error)
        user_error = resource or (error if isinstance(error, ToolkitError) else None)
        message = printable(str(user_error) if user_error else f"{type(error).__name__}: {error}")
        text = printable("".join(traceback.format_exception(error)))
        try:
            self.directory.write(path, f"{' '.join(message.split())}\n\n{timestamp()}\n{text}")
            where = f" (traceback in {path})"
        except (OSError, LinkError):
            where = ""
        if not user_error:
            self.stage_log.write(text.rstrip(), always=True)
        return StageFailedError(f"stage {stage.number} ({stage.title}) failed: {message}{where}")

    def _start_in_background(self, stage: Stage) -> bool:
        """Start a stage and the background stages right after it in a new process, if that helps.

        There is at most one such process, with half of the jobs. There is none on a GPU, which one
        stage fills, and none under torchrun.

        Returns:
          Whether the process was started.
        """
        options = self.options
        later = [s for s in self.chosen if s.number >= stage.number]
        background_stages = list(
            itertools.takewhile(lambda s: s.runs_in_background(options.config), later)
        )
        # It helps only if a stage in the foreground can run at the same time.
        if len(background_stages) in (0, len(later)) or self._background is not None:
            return False
        if options.jobs == 1 or ranks.world_size() > 1 or choose_device(options.device) != "cpu":
            return False
        for later_stage in background_stages:
            self.stage_log.write(f"=> {later_stage.number} {later_stage.title}: in the background")
        numbers = [later_stage.number for later_stage in background_stages]
        background_options = replace(options, first=numbers[0], last=numbers[-1])
        background_jobs = options.jobs // 2
        outputs = [name for number in numbers for name in self.planner.outputs(number)]
        run_stages = partial(
            _run_stages, self.stages, self.directory.root, background_options, background_jobs
        )
        self._background = BackgroundStages(
            numbers, outputs, background_jobs, run_stages, self.stage_log
        )
        return True

    def _wait_for_background(self) -> None:
        """Wait for the stages in the background; raise a `BackgroundError` if one failed."""
        if self._background is not None:
            self._background.wait()
            self._background = None

    def _wait_for_inputs(self, stage: Stage) -> None:
        """Wait for recorded inputs of a stage that are being made again: they decide its state."""
        if self._background is None or not self._background.running:
            self._wait_for_background()
            return
        marker = self.planner.marker(stage.number)
        for name in marker.provenance.inputs if marker is not None else ():
            self._wait_for_output(name, missing=False)

    def _wait_for_output(self, name: str, missing: bool = True) -> None:
        """Wait for an input that a background stage is making.

        Args:
          name: name of the input.
          missing: whether to wait also for an input that does not exist yet.
        """
        if self._background is None or is_outside(name):
            return
        is_output = any(overlap(name, output) for output in self._background.outputs)
        if is_output or (missing and not (self.directory.root / name).exists()):
            self._wait_for_background()

    def _check_engines(self) -> None:
        """Refuse to mix stages of different engines in one run directory.

        Raises:
          OtherCodeError: a finished stage was run with another engine.
        """
        numbers = [stage.number for stage in self.stages]
        planned = self.planner.plan(numbers[0], numbers[-1], self.options.forced)
        if self.options.accept_code_change or not any(
            p.action == "run" and p.stage in self.chosen for p in planned
        ):
            return
        for each in planned:
            stage, marker = each.stage, each.state.marker
            if each.action != "skip" or marker is None:
                continue
            if not stage.is_enabled(self.options.config):
                continue
            for name, engine in engines().items():
                recorded = marker.code.versions.get(name)
                if recorded and recorded != engine:
                    raise OtherCodeError(
                        f"stage {stage.number} ({stage.title}) was run with {recorded} for the "
                        f"{name}, but this run uses {engine}. Their results should not be mixed. "
                        f"Set {VARIABLES[name]}={recorded}, use another run directory, or accept "
                        "the mixture with --accept-code-change"
                    )

    def _check_stages(self) -> None:
        """Call the checks of the stages that will run, before hours are spent on earlier ones."""
        if any(stage.check for stage in self.chosen):
            options = self.options
            for planned in self.planner.plan(options.first, options.last, options.forced):
                if planned.stage.check and planned.action != "skip":
                    planned.stage.check(options.config)


def _run_stages(
    stages: Sequence[Stage],
    root: Path,
    options: RunOptions,
    jobs: int,
    log: BufferedLog,
    is_awaited: Callable[[], bool],
) -> None:
    """Run stages in the background of the process that holds the run's lock.

    Args:
      stages: stages of the recipe.
      root: the run directory.
      options: which stages, and how.
      jobs: worker processes while the other process runs stages; `options.jobs` when it waits.
      log: gets the lines of each stage.
      is_awaited: whether the other process waits.
    """
    with toolkit_logs(log):
        runner = Runner(stages, RunDirectory(root, TRASHES[1]), options, log)
        for stage in runner.chosen:
            runner.options = replace(options, jobs=options.jobs if is_awaited() else jobs)
            if not runner.skips(stage):
                runner.run_stage(stage)
            log.send()
        runner.digests.save()


def refusal(number: int, changes: Sequence[str]) -> str:
    """Return the message that a stage is not continued with other code, with both remedies."""
    return (
        f"stage {number} was begun with other code or packages: {'; '.join(changes)}. To "
        "continue it with the present ones, add --accept-code-change; its marker will then list "
        f"both versions. To start the stage over, add --force {number}"
    )
