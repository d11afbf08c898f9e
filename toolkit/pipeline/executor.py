"""Running a step over its partitions, each once, whoever does the work.

The same inputs give the same objects, byte for byte, whatever the executor, the order of the
partitions, the number of workers and the failures on the way. A partition that is done is never
done again; one that fails is tried again, elsewhere and after all others; one that keeps failing
is set aside, and the run ends with an error that lists it when all others are done.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.pipeline.cell import Attempt
from toolkit.pipeline.filesystems import is_local, local_path
from toolkit.pipeline.markers import all_finished
from toolkit.pipeline.objects import ObjectRef, StoreConfig
from toolkit.pipeline.progress import Progress
from toolkit.pipeline.step import Partition, Step, StepResult
from toolkit.pipeline.summary import SUMMARY, write_summary
from toolkit.storage.files import remove_temporaries


class PoisonedError(ToolkitError):
    """Partitions that failed at every try."""


class ExecutorError(ToolkitError):
    """An executor that cannot work at all."""


@dataclass(frozen=True)
class ExecutorConfig:
    """What holds for every executor."""

    store: StoreConfig = field(default_factory=StoreConfig)
    """How objects are reached."""
    tries: int = 3
    """Attempts at a partition before it is set aside."""
    timeout: float | None = None
    """Seconds that one attempt may take before it is given up and tried elsewhere; files are near
    equal (C22), so a few times the usual time will do. None: no limit."""
    threads: int = 1
    """Threads for computing per worker; results may depend on it in the last bits."""
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

    def run(
        self,
        step: Step,
        partitions: Sequence[Partition],
        out: str,
        progress: Callable[[Progress], None] | None = None,
    ) -> list[StepResult]:
        """Run a step over its partitions; those that are done already are kept as they are.

        Below `out`, besides what the step writes: `_done/` (a marker per partition),
        `_failures.tsv` (partition, element, reason) and `_summary.json`.

        Args:
          step: what to do.
          partitions: their ids are unique.
          out: prefix of all that is written: a local path or a URL.
          progress: called after every attempt.

        Returns:
          The results in the partitions' order.

        Raises:
          PoisonedError: partitions that failed `tries` times; all others are done.
        """
        out = _absolute(out.rstrip("/"))
        partitions = [_located(partition) for partition in partitions]
        if len({partition.id for partition in partitions}) < len(partitions):
            raise ExecutorError(f"{step.name}: two partitions have the same id")
        markers, calls = all_finished(step, partitions, out, self.config.store)
        results = {name: marker.result for name, marker in markers.items()}
        runs = {name: marker.run for name, marker in markers.items()}
        with Progress(step.name, partitions, results, progress) as watch:
            poisoned = self._finish(step, partitions, out, results, runs, watch)
        if is_local(out) and local_path(out).is_dir():
            remove_temporaries(local_path(out))
        write_summary(
            self.config.store, step, partitions, out, results, runs, poisoned, watch, calls
        )
        if poisoned:
            first = next(iter(poisoned.values()))
            raise PoisonedError(
                f"{step.name}: {len(poisoned)} of {len(partitions)} partitions failed "
                f"{self.config.tries} times and are set aside: {', '.join(sorted(poisoned))}; "
                f"first: {first.reason}; all: {out}/{SUMMARY}; run the same command to try again"
            )
        return [results[partition.id] for partition in partitions]

    def _finish(
        self,
        step: Step,
        partitions: Sequence[Partition],
        out: str,
        results: dict[str, StepResult],
        runs: dict[str, object],
        watch: Progress,
    ) -> dict[str, Attempt]:
        """Do what is missing, in rounds: a failed partition waits for the next."""
        failures: dict[str, int] = {}
        poisoned: dict[str, Attempt] = {}
        round_number = 0
        while pending := [p for p in partitions if p.id not in results and p.id not in poisoned]:
            moved = False
            for attempt in self._attempts(step, pending, out, repeated=round_number > 0):
                if attempt.partition in results:
                    continue
                if attempt.result is not None:
                    results[attempt.partition] = attempt.result
                    runs[attempt.partition] = attempt.run
                    moved = True
                elif attempt.counted:
                    failures[attempt.partition] = failures.get(attempt.partition, 0) + 1
                    moved = True
                    if failures[attempt.partition] >= self.config.tries:
                        poisoned[attempt.partition] = attempt
                watch.record(attempt)
            if not moved:
                raise ExecutorError(f"{step.name}: no partition could be attempted")
            round_number += 1
        return poisoned

    @abstractmethod
    def _attempts(
        self, step: Step, partitions: Sequence[Partition], out: str, repeated: bool
    ) -> Iterator[Attempt]:
        """Attempt every partition once, in any order, and give each outcome as it comes."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Give back what the executor holds."""

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _absolute(path: str) -> str:
    return os.path.abspath(local_path(path)) if is_local(path) else path


def _located(partition: Partition) -> Partition:
    """Make local paths absolute: workers have other working directories."""
    inputs: tuple[ObjectRef, ...] = tuple(
        replace(ref, path=_absolute(ref.path)) for ref in partition.inputs
    )
    return replace(partition, inputs=inputs)
