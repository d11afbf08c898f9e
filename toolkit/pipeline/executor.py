"""Base class of the executors, which run a step over its partitions, each once.

The same inputs give the same objects, byte for byte, whatever the executor, the order of the
partitions, the number of workers and the failures on the way. A partition that is done is never
done again; one that fails is tried again, elsewhere and after all others; one that keeps failing
is set aside, and when all others are done the run ends with an error that lists it. If a damaged
object of an earlier step is the reason, the next run makes that object again.
"""

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.pipeline.attempt_store import OBJECTS
from toolkit.pipeline.filesystems import is_local, local_path
from toolkit.pipeline.leftovers import remove_leftovers
from toolkit.pipeline.markers import FOLDER, HEALS, all_finished, invalidate
from toolkit.pipeline.objects import ObjectError, ObjectRef, ObjectStore, StoreConfig
from toolkit.pipeline.progress import Progress
from toolkit.pipeline.step import Partition, Step, StepResult
from toolkit.pipeline.summary import SUMMARY, write_summary
from toolkit.pipeline.worker_process import Attempt, numeric_variables
from toolkit.storage.files import refuse_links, remove_temporaries

logger = logging.getLogger(__name__)


class PoisonedError(ToolkitError):
    """Some partitions failed at every attempt."""


class ExecutorError(ToolkitError):
    """The executor cannot run the step at all."""


@dataclass(frozen=True)
class ExecutorConfig:
    """Settings of all executors."""

    store: StoreConfig = field(default_factory=StoreConfig)
    """How objects are read and written."""
    tries: int = 3
    """Attempts at a partition before it is set aside."""
    timeout: float | None = None
    """Seconds that one attempt may take before it is given up and tried elsewhere; files are of
    nearly the same length (C22), so a few times the usual time is enough. None: no limit."""
    threads: int = 1
    """Threads per worker for computing; results may depend on it in the last bits."""
    scratch: Path | None = None
    """Local folder for scratch; None: the system's temporary folder."""

    def __post_init__(self) -> None:
        if self.tries < 1 or self.threads < 1:
            raise ValueError("tries and threads must be at least 1")
        if self.timeout is not None and self.timeout <= 0:
            raise ValueError("timeout must be positive")


class Executor(ABC):
    """Base of the executors; use it in a `with` statement."""

    def __init__(self, config: ExecutorConfig | None = None) -> None:
        self.config = config or ExecutorConfig()
        self.numeric = numeric_variables(self.config.threads)

    def run(
        self,
        step: Step,
        partitions: Sequence[Partition],
        out: str,
        progress: Callable[[Progress], None] | None = None,
    ) -> list[StepResult]:
        """Run a step over its partitions; results of those that are done already are kept.

        Below `out`, besides the step's objects in `_objects/`: `_done/` (a marker per partition,
        which names its objects), `_failures.tsv` (partition, element, reason) and `_summary.json`.

        Args:
          step: the step.
          partitions: with unique ids.
          out: prefix of all output: a local path or a URL.
          progress: called after every attempt.

        Returns:
          The results in the partitions' order.

        Raises:
          PoisonedError: partitions that failed `tries` times; all others are done.
          LinkError: `_objects/` or `_done/` is a link; what it leads to is not ours to tidy up.
        """
        out = _absolute(out.rstrip("/"))
        if is_local(out):
            for name in (OBJECTS, FOLDER):
                refuse_links(local_path(out), local_path(out) / name)
        partitions = [_located(partition) for partition in partitions]
        if len({partition.id for partition in partitions}) < len(partitions):
            raise ExecutorError(f"{step.name}: two partitions have the same id")
        markers, calls = all_finished(step, partitions, out, self.config.store, self.numeric)
        results = {name: marker.result for name, marker in markers.items()}
        runs = {name: marker.run for name, marker in markers.items()}
        with Progress(step.name, partitions, results, progress) as tracker:
            poisoned = self._finish(step, partitions, out, results, runs, tracker)
        if is_local(out) and local_path(out).is_dir():
            remove_temporaries(local_path(out))
        if len(results) == len(partitions) > tracker.kept:
            store = ObjectStore(self.config.store)
            done = list(results.values())
            try:
                remove_leftovers(store, step, partitions, out, done, self.numeric)
            except ObjectError as error:  # they hurt nobody
                logger.warning("%s: leftovers of attempts stay in %s: %s", step.name, out, error)
            calls += store.counts
        write_summary(
            self.config.store, step, partitions, out, results, runs, poisoned, tracker, calls
        )
        if poisoned:
            first = next(iter(poisoned.values()))
            store = ObjectStore(self.config.store)
            damaged = {attempt.damaged for attempt in poisoned.values() if attempt.damaged}
            heals = [invalidate(store, path) for path in sorted(damaged)]
            way_out = HEALS if heals and all(heals) else "run the same command to try again"
            raise PoisonedError(
                f"{step.name}: {len(poisoned)} of {len(partitions)} partitions failed "
                f"{self.config.tries} times and are set aside: {', '.join(sorted(poisoned))}; "
                f"first: {first.reason}; all: {out}/{SUMMARY}; {way_out}"
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
    ) -> dict[str, Attempt]:
        """Run the missing partitions in rounds: a failed one waits for the next round."""
        failures: dict[str, int] = {}
        poisoned: dict[str, Attempt] = {}
        round_number = 0
        while pending := [p for p in partitions if p.id not in results and p.id not in poisoned]:
            progressed = False
            for attempt in self._attempts(step, pending, out, repeated=round_number > 0):
                if attempt.partition in results:
                    continue
                if attempt.result is not None:
                    results[attempt.partition] = attempt.result
                    runs[attempt.partition] = attempt.run
                    progressed = True
                elif attempt.counted:
                    failures[attempt.partition] = failures.get(attempt.partition, 0) + 1
                    progressed = True
                    if failures[attempt.partition] >= self.config.tries:
                        poisoned[attempt.partition] = attempt
                tracker.record(attempt)
            if not progressed:
                raise ExecutorError(f"{step.name}: no partition could be attempted")
            round_number += 1
        return poisoned

    @abstractmethod
    def _attempts(
        self, step: Step, partitions: Sequence[Partition], out: str, repeated: bool
    ) -> Iterator[Attempt]:
        """Attempt every partition once, in any order, and yield each outcome as it arrives."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release the executor's resources."""

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _absolute(path: str) -> str:
    return os.path.abspath(local_path(path)) if is_local(path) else path


def _located(partition: Partition) -> Partition:
    """Make local paths absolute, since workers may have another working directory."""
    inputs: tuple[ObjectRef, ...] = tuple(
        replace(ref, path=_absolute(ref.path)) for ref in partition.inputs
    )
    return replace(partition, inputs=inputs)
