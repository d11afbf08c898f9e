"""Base class of the executors, which run a step once over each of its partitions.

The same inputs give the same objects, byte for byte, whatever the executor, the order of the
partitions, the number of workers and the failures on the way. A finished partition never runs
again. One that fails is tried again, elsewhere and after all others. One that keeps failing is set
aside, and once all others are done the run ends with an error that lists it. If the reason is a
damaged object of an earlier step, the next run makes that object again.
"""

import json
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from toolkit.errors import ToolkitError
from toolkit.pipeline.config import ExecutorConfig, StoreConfig
from toolkit.pipeline.markers import (
    FOLDER,
    OBJECTS,
    REBUILD_HINT,
    TaskResult,
    all_finished,
    numeric_variables,
    plain_name,
    remove_leftovers,
    remove_markers_of,
)
from toolkit.pipeline.objects import (
    Counts,
    MissingObjectError,
    ObjectError,
    ObjectRef,
    ObjectStore,
    is_local,
    local_path,
)
from toolkit.pipeline.step import Partition, Step, StepResult, config_plain, step_digest
from toolkit.stages.log import duration
from toolkit.storage.digests import digest_bytes
from toolkit.storage.files import refuse_links, remove_temporaries
from toolkit.storage.reading import NATURAL, reading, validated

if TYPE_CHECKING:
    from toolkit.pipeline.markers import TaskResult
    from toolkit.pipeline.step import Partition


class Progress:
    """Progress of one run of a step; shown as a line on standard error if that is a terminal.

    Args:
      name: name of the step.
      partitions: all partitions of the step; `about["hours"]` is used where it is given.
      done: ids of the partitions that were done before.
      report: called after every attempt.
      clock: returns the time in seconds.
    """

    def __init__(
        self,
        name: str,
        partitions: Sequence["Partition"],
        done: Container[str],
        report: Callable[["Progress"], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._hours = {p.id: float(p.about.get("hours", 0.0)) for p in partitions}
        self.total = len(partitions)
        """Number of partitions."""
        done_before = [p.id for p in partitions if p.id in done]
        self.kept = len(done_before)
        """Partitions done by an earlier run."""
        self.done = len(done_before)
        """Partitions done so far, earlier runs included."""
        self.failed = 0
        """Failed attempts."""
        self.elements_failed = 0
        """Elements, such as utterances, left out in this run."""
        self.hours_total = sum(self._hours.values())
        self.hours_kept = sum(self._hours[name] for name in done_before)
        self.hours = self.hours_kept
        """Hours of audio done so far."""
        self._report, self._clock, self._start = report, clock, clock()
        self._bar = None

    @property
    def seconds(self) -> float:
        """Seconds since this run began."""
        return self._clock() - self._start

    @property
    def rate(self) -> float:
        """Hours of audio processed per hour in this run."""
        return 3600 * (self.hours - self.hours_kept) / max(self.seconds, 1e-9)

    @property
    def left(self) -> float | None:
        """Estimated seconds left; None until a partition is done in this run."""
        if self.done == self.kept:
            return None
        # Only this run's work tells the speed: partitions of earlier runs took no time here. Use
        # hours of audio where they are known, else partitions.
        if self.hours > self.hours_kept:
            return 3600 * (self.hours_total - self.hours) / self.rate
        return self.seconds * (self.total - self.done) / (self.done - self.kept)

    def record(self, attempt: "TaskResult") -> None:
        """Count an attempt."""
        if attempt.result is None:
            self.failed += 1
        else:
            self.done += 1
            self.hours += self._hours[attempt.partition]
            self.elements_failed += len(attempt.result.failures)
        if self._bar is not None:
            self._bar.set_description_str(self.line(), refresh=False)
            self._bar.update(attempt.result is not None)
        if self._report is not None:
            self._report(self)

    def line(self) -> str:
        """Format the progress as one line."""
        parts = [f"{self.name}: {self.done} of {self.total} partitions"]
        if self.hours_total:
            parts.append(f"{self.hours:.1f} of {self.hours_total:.1f} h at {self.rate:,.0f} h/h")
        if self.left is not None:
            parts.append(f"{duration(self.left)} left")
        if self.failed or self.elements_failed:
            parts.append(f"{self.failed} attempts and {self.elements_failed} elements failed")
        return ", ".join(parts)

    def __enter__(self) -> "Progress":
        from tqdm import tqdm

        self._bar = tqdm(
            total=self.total, initial=self.kept, desc=self.line(), bar_format="{desc}", disable=None
        )
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()


logger = logging.getLogger(__name__)


class FailedPartitionsError(ToolkitError):
    """Some partitions failed at every attempt."""


class ExecutorError(ToolkitError):
    """The executor cannot run the step at all."""


class Executor(ABC):
    """Base of the executors; use it in a `with` statement."""

    def __init__(self, config: ExecutorConfig | None = None) -> None:
        self.config = config or ExecutorConfig()
        self.numeric = numeric_variables(self.config.threads)
        self.report: Callable[[Progress], None] | None = None
        """Called after every attempt."""
        self.outputs: list[str] = []
        """Prefixes of the output of the steps that have begun, in order."""

    def run(self, step: Step, partitions: Sequence[Partition], out: str) -> list[StepResult]:
        """Run a step over its partitions, except those that are done already.

        Below `out` it writes the step's objects in `_objects/`, `_done/` (a marker per partition,
        which names its objects), `_failures.tsv` (partition, element, reason) and `_summary.json`.

        Args:
          step: the step.
          partitions: with unique ids.
          out: prefix of all output: a local path or a URL.

        Returns:
          The results in the partitions' order.

        Raises:
          FailedPartitionsError: some partitions failed `tries` times; all others are done.
          LinkError: `_objects/` or `_done/` is a link, so tidying up would remove files elsewhere.
        """
        # 1. Make the places absolute and check that the partitions can be told apart.
        if out not in self.outputs:
            self.outputs.append(out)
        out = _absolute(out.rstrip("/"))
        if is_local(out):
            for name in (OBJECTS, FOLDER):
                refuse_links(local_path(out), local_path(out) / name)
        partitions = [_located(partition) for partition in partitions]
        if len({partition.id for partition in partitions}) < len(partitions):
            raise ExecutorError(f"{step.name}: two partitions have the same id")
        # 2. A partition with a marker of the same step, configuration and inputs is done.
        markers, calls = all_finished(step, partitions, out, self.config.store, self.numeric)
        results = {name: marker.result for name, marker in markers.items()}
        runs = {name: marker.run for name, marker in markers.items()}
        # 3. Run the others. `_finish` adds to `results` and `runs`.
        with Progress(step.name, partitions, results, self.report) as tracker:
            failed_partitions = self._finish(step, partitions, out, results, runs, tracker)
        # 4. Tidy up: remove files of killed attempts and, once all partitions are done, objects
        # that no marker names.
        if is_local(out) and local_path(out).is_dir():
            remove_temporaries(local_path(out))
        if len(results) == len(partitions) > tracker.kept:
            store = ObjectStore(self.config.store)
            done = list(results.values())
            try:
                remove_leftovers(store, step, partitions, out, done, self.numeric)
            except ObjectError as error:  # not fatal: they only take space
                logger.warning(
                    "%s: cannot remove the leftovers of earlier attempts from %s: %s",
                    step.name,
                    out,
                    error,
                )
            calls += store.counts
        # 5. Write the summary, after failures too. If the reason was a damaged input, remove the
        # marker that names it, so that the next run makes this input again.
        write_summary(
            self.config.store,
            step,
            partitions,
            out,
            results,
            runs,
            failed_partitions,
            tracker,
            calls,
        )
        if failed_partitions:
            first = next(iter(failed_partitions.values()))
            store = ObjectStore(self.config.store)
            damaged = {attempt.damaged for attempt in failed_partitions.values() if attempt.damaged}
            rebuilt = [remove_markers_of(store, path) for path in sorted(damaged)]
            hint = REBUILD_HINT if rebuilt and all(rebuilt) else "run the same command to try again"
            raise FailedPartitionsError(
                f"{step.name}: {len(failed_partitions)} of {len(partitions)} partitions failed "
                f"{self.config.tries} times and were skipped: "
                f"{', '.join(sorted(failed_partitions))}. Reason for the first: {first.reason}. "
                f"All reasons are in {out}/{SUMMARY}; {hint}"
            )
        return [results[partition.id] for partition in partitions]

    def _finish(
        self,
        step: Step,
        partitions: Sequence[Partition],
        out: str,
        results: dict[str, StepResult],
        runs: dict[str, object],
        tracker: Progress,
    ) -> dict[str, TaskResult]:
        """Run the missing partitions in rounds; a failed one is tried again in the next round.

        Adds to `results` and `runs`, which are by partition id, and returns the last attempt at
        each partition that failed `tries` times.
        """
        failures: dict[str, int] = {}
        failed_partitions: dict[str, TaskResult] = {}
        round_number = 0
        while pending := [
            p for p in partitions if p.id not in results and p.id not in failed_partitions
        ]:
            progressed = False
            for attempt in self._attempts(step, pending, out, repeated=round_number > 0):
                # Spark may run a partition twice; the first result counts.
                if attempt.partition in results:
                    continue
                progressed = True
                if attempt.result is not None:
                    results[attempt.partition] = attempt.result
                    runs[attempt.partition] = attempt.run
                # A partition that failed `tries` times is set aside, so that it cannot hold up the
                # others.
                else:
                    failures[attempt.partition] = failures.get(attempt.partition, 0) + 1
                    if failures[attempt.partition] >= self.config.tries:
                        failed_partitions[attempt.partition] = attempt
                tracker.record(attempt)
            # No attempt came back: further rounds would never end.
            if not progressed:
                raise ExecutorError(f"{step.name}: no worker returned a result for any partition")
            round_number += 1
        return failed_partitions

    @abstractmethod
    def _attempts(
        self, step: Step, partitions: Sequence[Partition], out: str, repeated: bool
    ) -> Iterator[TaskResult]:
        """Attempt every partition once, in any order, and yield each outcome as it arrives."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release the executor's resources."""

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _absolute(path: str) -> str:
    """Make a local path absolute; other URLs stay as they are."""
    return os.path.abspath(local_path(path)) if is_local(path) else path


def _located(partition: Partition) -> Partition:
    """Make local paths absolute, since workers may have another working directory."""
    inputs: tuple[ObjectRef, ...] = tuple(
        replace(ref, path=_absolute(ref.path)) for ref in partition.inputs
    )
    return replace(partition, inputs=inputs)


SUMMARY = "_summary.json"
FAILURES = "_failures.tsv"
_FORM = {
    **dict.fromkeys(("partitions", "done", "kept", "attempts_failed", "peak_bytes"), NATURAL),
    **dict.fromkeys(("elements_failed", "objects", "bytes"), NATURAL),
    **{"step": str, "hours": float, "wall_seconds": float, "output_digest": str},
    "calls": dict.fromkeys(("get", "put", "head", "list", "repeated"), NATURAL),
    "poisoned": [{"partition": str, "reason": str, "trace": str}],
}


class SummaryError(ToolkitError):
    """A summary cannot be read."""


def write_summary(
    config: StoreConfig,
    step: Step,
    partitions: Sequence[Partition],
    out: str,
    results: Mapping[str, StepResult],
    runs: Mapping[str, Mapping[str, Any]],
    failed_partitions: Mapping[str, TaskResult],
    tracker: Progress,
    planning: Counts,
) -> None:
    """Write `_failures.tsv` and `_summary.json` below `out`.

    `results`, `runs` (statistics) and `failed_partitions` are by partition id; `planning` counts
    the calls of this process.
    """
    store = ObjectStore(config)
    done = [results[p.id] for p in partitions if p.id in results]
    # Calls for all partitions, those of earlier runs included, and for planning in this process.
    counts = sum((_counts(runs[p.id]) for p in partitions if p.id in runs), planning)
    summary = {
        **config_plain(step),
        "digest": step_digest(step),
        "partitions": len(partitions),
        "done": len(done),
        "kept": tracker.kept,
        "hours": tracker.hours,
        "wall_seconds": round(tracker.seconds, 3),
        "worker_seconds": sum(run.get("seconds", 0.0) for run in runs.values()),
        "peak_bytes": max((run.get("peak_bytes", 0) for run in runs.values()), default=0),
        "attempts_failed": tracker.failed,
        "elements_failed": sum(len(result.failures) for result in done),
        "objects": sum(len(result.outputs) for result in done),
        "bytes": sum(ref.size for result in done for ref in result.outputs),
        "output_digest": outputs_digest(out, done),
        "about": _totals(done),
        "calls": counts.to_dict(),
        "poisoned": [
            {"partition": name, "reason": attempt.reason, "trace": attempt.trace}
            for name, attempt in sorted(failed_partitions.items())
        ],
    }
    lines = [
        f"{p.id}\t{element}\t{' '.join(reason.split())}\n"
        for p in partitions
        if p.id in results
        for element, reason in results[p.id].failures
    ]
    store.put(f"{out}/{FAILURES}", "".join(lines).encode())
    store.put(f"{out}/{SUMMARY}", (json.dumps(summary, indent=1) + "\n").encode())


def read_summary(store: ObjectStore, out: str) -> dict[str, Any] | None:
    """Read the summary that `write_summary` wrote; None when the step has not run.

    Raises:
      SummaryError: the summary is damaged.
    """
    path = f"{out.rstrip('/')}/{SUMMARY}"
    try:
        content = store.get(path)
    except MissingObjectError:
        return None
    with reading(path, SummaryError, "run the step again", "damaged"):
        return validated(json.loads(content), _FORM)


def outputs_digest(out: str, results: Sequence[StepResult]) -> str:
    """Return one digest of the names and contents of all outputs of a step.

    It does not depend on `out` itself, nor on the order of the results.
    """
    lines = sorted(
        f"{plain_name(ref.path, out)}\0{ref.size}\0{ref.digest}\n"
        for result in results
        for ref in result.outputs
    )
    return digest_bytes("".join(lines).encode())


def _counts(run: Mapping[str, Any]) -> Counts:
    """Return the store's calls and bytes that an attempt's statistics record."""
    calls = {**run, "seconds": run.get("store_seconds", 0.0)}
    return Counts(**{name: calls[name] for name in Counts().to_dict() if name in calls})


def _totals(results: Sequence[StepResult]) -> dict[str, float]:
    """Sum the numbers in the results' `about`, by name."""
    totals: dict[str, float] = {}
    for result in results:
        for name, value in result.about.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                totals[name] = totals.get(name, 0) + value
    return totals
