"""Report a training's progress: progress bar, log lines, TensorBoard, tracker, callback.

The environment variable `TOOLKIT_TRACKER` selects MLflow or Weights & Biases. The tracker's own
variables (`MLFLOW_TRACKING_URI`, `WANDB_MODE`, ...) determine where runs are stored and under which
account. The tracker is not a recipe setting, because results do not depend on it.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol, TypeVar

# Imported here, not when a training run starts: the import takes seconds, for which the other ranks
# would wait.
from torch.utils.tensorboard import SummaryWriter

from toolkit.processes.bars import Bar
from toolkit.train.errors import TrainingError

logger = logging.getLogger(__name__)
T = TypeVar("T")
Progress = Callable[[int, int], None]
"""Called as progress(steps done, total steps)."""
VARIABLE = "TOOLKIT_TRACKER"
PROJECT = "asr-recipe-toolkit"
"""MLflow's experiment and W&B's project, unless their own variables name another."""
SECONDS_BETWEEN_REPORTS = 1.0
MAX_DATA_WAIT = 0.2  # share of an epoch's time spent waiting for data; a larger one is warned about
NOTICEABLE = 2.0  # seconds of waiting below which there is no warning: readers take time to start
STEPS_BETWEEN_EVENTS = 50


def phase_progress(
    progress: Progress | None, num_steps: Sequence[int], phase: int
) -> Progress | None:
    """Return the progress callback for one of several consecutive training runs (phases).

    Args:
      progress: called as progress(steps done, steps of all phases); None gives None.
      num_steps: number of steps of each phase.
      phase: index of this phase, from 0.
    """
    if progress is None:
        return None
    steps_before, total = sum(num_steps[:phase]), sum(num_steps)
    return lambda step, _: progress(steps_before + step, total)


class Monitor:
    """Measures the epochs of one training and, if `enabled`, reports them."""

    def __init__(
        self, out: Path, total_steps: int, progress: Progress | None, enabled: bool = True
    ) -> None:
        self.enabled = enabled
        self._out = out
        self._total_steps = total_steps
        self._progress = progress
        self._writer: SummaryWriter | None = None
        self._tracker: Tracker | None = None

    def start(self, first_step: int) -> None:
        """Open the tracker and the event file; hide earlier runs' events from `first_step` on."""
        if self.enabled:
            self._tracker = open_tracker(self._out)
            self._writer = SummaryWriter(str(self._out / "tensorboard"), purge_step=first_step)

    def close(self) -> None:
        """Flush and close the event file, and close the tracker.

        Raises:
          OSError: events are lost, for example because the disk is full.
        """
        if self._writer is not None:
            self._writer.flush()  # raises the error that ended the writer's thread
            self._writer.close()
            self._writer = None
        if self._tracker is not None:
            self._tracker.close()
            self._tracker = None

    def epoch(self, title: str, steps: int, done: int, first_step: int) -> "EpochMonitor":
        """Return the monitor of an epoch of `steps` steps, of which `done` are finished.

        `title` is shown on the progress bar; `first_step` is the number of steps in earlier epochs.
        """
        return EpochMonitor(self, title, steps, done, first_step)

    def report_progress(self, step: int) -> None:
        """Call the progress callback."""
        if self._progress is not None:
            self._progress(step, self._total_steps)

    def events(self, step: int, values: dict[str, float]) -> None:
        """Write scalars to TensorBoard and to the tracker."""
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)
        if self._tracker is not None:
            self._tracker.log(step, values)


class EpochMonitor:
    """Measures an epoch's frames, seconds, and the share of them spent waiting for data."""

    def __init__(
        self, monitor: Monitor, title: str, steps: int, done: int, first_step: int
    ) -> None:
        self._monitor = monitor
        self._first_step = first_step
        self._done = done
        self._frames = 0
        self._waited = 0.0
        self._started = self._reported = perf_counter()
        self._bar = Bar(
            total=steps,
            initial=done,
            desc=title,
            unit="step",
            disable=not (monitor.enabled and sys.stderr.isatty()),
            leave=False,
        )

    def timed(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield `batches`, measuring the time spent waiting for them."""
        iterator = iter(batches)
        while True:
            # Only the time in `next` counts, not the time of the step between two items.
            started = perf_counter()
            item = next(iterator, None)
            self._waited += perf_counter() - started
            if item is None:
                return
            yield item

    def step(self, frames: int, values: Callable[[], dict[str, float]]) -> None:
        """Count a finished step; call `values`, which may wait for the device, only for reports."""
        self._done += 1
        self._frames += frames
        self._bar.update(1)
        now = perf_counter()
        if now - self._reported >= SECONDS_BETWEEN_REPORTS:
            self._reported = now
            self._monitor.report_progress(self._first_step + self._done)
            if not self._bar.disable:
                texts = {name: f"{value:.4g}" for name, value in values().items()}
                self._bar.set_postfix({**texts, **self._rates_in_words()}, refresh=False)
        if self._done % STEPS_BETWEEN_EVENTS == 0:
            self._monitor.events(self._first_step + self._done, {**values(), **self.rates()})

    def rates(self) -> dict[str, float]:
        """Return frames per second, and the share (0 to 1) of the time spent waiting for data."""
        seconds = max(perf_counter() - self._started, 1e-9)
        return {"frames_per_second": self._frames / seconds, "data_wait": self._waited / seconds}

    def _rates_in_words(self) -> dict[str, str]:
        """Return the rates as the progress bar shows them."""
        rates = self.rates()
        return {
            "frames/s": f"{rates['frames_per_second']:.0f}",
            "data wait": f"{100 * rates['data_wait']:.0f} %",
        }

    def seconds(self) -> float:
        """Return the seconds since the epoch was started or resumed."""
        return perf_counter() - self._started

    def close(self) -> None:
        """Remove the progress bar."""
        self._bar.close()


def log_epoch(epochs: int, record: dict[str, float]) -> None:
    """Log an epoch's record in one line, and warn if much of its time was spent waiting for data.

    The line omits `utterances`, the number of utterances per unit of the loss's weight.
    """
    omitted = ("epoch", "utterances")
    texts = [f"{k.replace('_', ' ')} {v:.4g}" for k, v in record.items() if k not in omitted]
    logger.info("epoch %d/%d: %s", record["epoch"], epochs, ", ".join(texts))
    waited = record["data_wait"]
    if waited > MAX_DATA_WAIT and waited * record["seconds"] >= NOTICEABLE:
        logger.warning(
            "%.0f %% of epoch %d was spent waiting for data: use more readers (for CTC, `toolkit "
            "tta readers` finds how many) or a faster disk",
            100 * waited,
            record["epoch"],
        )


class Tracker(Protocol):
    """Records the metrics of one training elsewhere, such as on a server."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record metrics by name after `step` steps."""

    def close(self) -> None:
        """End the run."""


def open_tracker(out: Path) -> Tracker | None:
    """Return the tracker that the environment selects, or None.

    Args:
      out: the folder of the training, which names the run.

    Raises:
      TrainingError: the tracker is unknown, is not installed or cannot begin a run.
    """
    name = os.environ.get(VARIABLE, "")
    if not name:
        return None
    if name not in _TRACKERS:
        raise TrainingError(
            f"{VARIABLE}={name} is not a known tracker: set it to {' or '.join(_TRACKERS)}"
        )
    try:
        library = import_module(name)
    except ImportError as error:
        raise TrainingError(
            f"{VARIABLE}={name}: this package cannot be imported ({error}). Run `pip install "
            f"{name}`, or unset the variable"
        ) from error
    try:
        return _TolerantTracker(name, _TRACKERS[name](library, run_name(out)))
    except Exception as error:
        raise TrainingError(
            f"{name} cannot begin a run ({error}): check its own settings, or unset {VARIABLE}"
        ) from error


def run_name(out: Path) -> str:
    """Return the name of a training's run: run directory and network, such as `demo/lstm_ce`."""
    parts = out.absolute().parts
    # A stage writes into <run>/.partial/<stage>/, which is renamed at the end: drop both parts.
    final = [part for parent, part in pairwise(parts) if ".partial" not in (parent, part)]
    return "/".join(final[-2:])


class _Mlflow:
    """A run of MLflow, through a client: the functions of the module share one active run."""

    def __init__(self, library: Any, run: str) -> None:
        self._client = library.MlflowClient()
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        existing = self._client.get_experiment_by_name(experiment)
        experiment_id = (
            existing.experiment_id if existing else self._client.create_experiment(experiment)
        )
        self._run = self._client.create_run(experiment_id, run_name=run).info.run_id

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._client.log_metric(self._run, name, float(value), step=step)

    def close(self) -> None:
        self._client.set_terminated(self._run)


class _Wandb:
    """A run of Weights & Biases."""

    def __init__(self, library: Any, run: str) -> None:
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        self._run = library.init(project=project, name=run, reinit="create_new")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({name: float(value) for name, value in values.items()}, step=step)

    def close(self) -> None:
        self._run.finish()


_TRACKERS = {"mlflow": _Mlflow, "wandb": _Wandb}


class _TolerantTracker:
    """A tracker whose errors, such as a lost connection, do not end the training."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self._name, self._tracker = name, tracker
        self._has_failed = False

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if not self._has_failed:
            try:
                self._tracker.log(step, values)
            except Exception as error:
                self._fail(error)

    def close(self) -> None:
        try:
            self._tracker.close()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Log a warning, and send no more metrics to the tracker."""
        self._has_failed = True
        logger.warning("%s records no further metrics of this training: %s", self._name, error)
