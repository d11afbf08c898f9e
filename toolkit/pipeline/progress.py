"""Progress of a step: hours done, rate, time left, failures."""

import time
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING

from toolkit.stages.log import duration

if TYPE_CHECKING:
    from toolkit.pipeline.step import Partition
    from toolkit.pipeline.worker_process import Attempt


class Progress:
    """Progress of one run of a step; shows a line on standard error where that is a terminal.

    Args:
      name: name of the step.
      partitions: all of them; `about["hours"]` is used where it is given.
      done: ids of the partitions that were done before.
      report: called after every attempt.
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
        kept = [p.id for p in partitions if p.id in done]
        self.kept = len(kept)
        """Partitions done by an earlier run."""
        self.done = len(kept)
        """Partitions done so far, earlier runs included."""
        self.failed = 0
        """Failed attempts."""
        self.elements_failed = 0
        """Elements, such as utterances, left out in this run."""
        self.hours_total = sum(self._hours.values())
        self.hours_kept = sum(self._hours[name] for name in kept)
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
        if self.hours > self.hours_kept:
            return 3600 * (self.hours_total - self.hours) / self.rate
        return self.seconds * (self.total - self.done) / (self.done - self.kept)

    def record(self, attempt: "Attempt") -> None:
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
