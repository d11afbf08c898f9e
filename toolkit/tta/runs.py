"""Trainings for the benchmark: curves, throughput and times from their run logs."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from toolkit.errors import ToolkitError
from toolkit.stages.marker import Marker, UnreadableMarkerError
from toolkit.train.runlog import (
    RUN_LOG,
    Evaluated,
    RunLog,
    Saved,
    Sentences,
    Started,
    Step,
    Swapped,
    Utilisation,
    read_run_log,
)
from toolkit.tta.config import first_epoch, mlperf, time_to_accuracy, typical
from toolkit.tta.machine import Price

STATES = ("training", "sentences", "saving", "swapping", "evaluating", "start-up and rest")


class BenchRunError(ToolkitError):
    """Runs cannot be read or compared."""


@dataclass(frozen=True)
class TrainingRun:
    """One training and its log."""

    folder: Path
    log: RunLog

    @cached_property
    def evaluations(self) -> list[Evaluated]:
        """The evaluations, one per epoch, in order."""
        return self.log.of(Evaluated)

    @cached_property
    def steps(self) -> list[Step]:
        """The training steps in the log."""
        return self.log.of(Step)

    @cached_property
    def utilisation(self) -> list[Utilisation]:
        """The samples of utilisation in the log."""
        return self.log.of(Utilisation)

    @property
    def search(self) -> str:
        """Name of the search that evaluated the epochs; empty in old logs."""
        settings = (self.log.created.about or {}).get("settings") or {}
        return str(settings.get("evaluation", ""))

    def curve(self, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """Return seconds and values of `cer`, `wer`, `ser` or `loss` on the validation data."""
        seconds = [event.seconds for event in self.evaluations]
        return np.array(seconds), np.array([getattr(event, metric) for event in self.evaluations])

    def tta(self, metric: str, target: float, epochs: int) -> float | None:
        """Return TTA(target, epochs) in minutes (A26); with one epoch it is DAWNBench's rule."""
        seconds, rates = self.curve(metric)
        tta_seconds = time_to_accuracy(seconds.tolist(), rates.tolist(), target, epochs)
        return None if tta_seconds is None else tta_seconds / 60

    def losses(self, sigma: float = 10.0) -> tuple[np.ndarray, np.ndarray]:
        """Return seconds and training loss, smoothed by a Gaussian of `sigma` events (A35: 10).

        In a log of fewer than 200 events, sigma is a twentieth of their number.
        """
        from scipy.ndimage import gaussian_filter1d

        if not self.steps:
            return np.zeros(0), np.zeros(0)
        losses = np.array([step.loss for step in self.steps])
        # "nearest" repeats the first and the last loss beyond the ends, so that the ends are not
        # pulled to 0.
        smooth = gaussian_filter1d(losses, min(sigma, len(losses) / 20), mode="nearest")
        return np.array([step.seconds for step in self.steps]), smooth

    @cached_property
    def throughput(self) -> tuple[np.ndarray, np.ndarray]:
        """Time and utterances per second of each step, other states before it included (A37)."""
        ends = np.array([step.seconds for step in self.steps])
        examples = np.array([step.examples for step in self.steps], dtype=float)
        # Time since the step before: waiting for data, evaluation and swaps count (A37).
        passed = np.diff(ends, prepend=0.0)
        return ends, examples / np.maximum(passed, 1e-9)

    def examples_until(self, minutes: float) -> int:
        """Return the utterances trained on in the first minutes; fewer is more efficient (A38)."""
        return sum(step.examples for step in self.steps if step.seconds <= 60 * minutes)

    @cached_property
    def dip(self) -> float | None:
        """Relative loss of throughput (0 to 1) where models are swapped (A37: 0.3 to 0.5).

        The median over swaps; None if there are no swaps, or no steps between them.
        """
        # dip = 1 - median throughput of steps with a swap / median of the steps between.
        ends, rates = self.throughput
        swaps = [swap.seconds for swap in self.log.of(Swapped) if swap.to == "training"]
        # The first step that ends after a swap includes the time of the swap.
        with_swap = np.unique(np.searchsorted(ends, swaps))
        with_swap = with_swap[with_swap < len(rates)]
        between = np.delete(rates, with_swap)
        between = between[1:]  # the first includes loading and compiling
        if not len(with_swap) or not len(between):
            return None
        return float(1 - np.median(rates[with_swap]) / np.median(between))

    @cached_property
    def states(self) -> dict[str, float]:
        """Seconds in each of `STATES` (A22, A39)."""
        seconds_by_state = dict(zip(STATES, [0.0] * len(STATES), strict=True))
        seconds_by_state["training"] = sum(step.seconds_in_step for step in self.steps)
        for name, kind in (("sentences", Sentences), ("saving", Saved), ("swapping", Swapped)):
            seconds_by_state[name] = sum(event.duration for event in self.log.of(kind))
        # Count only the time that training waits, which is none for an evaluation elsewhere.
        seconds_by_state["evaluating"] = sum(event.waited for event in self.evaluations)
        seconds_by_state[STATES[-1]] = max(0.0, self.log.seconds - sum(seconds_by_state.values()))
        return seconds_by_state

    @property
    def lost(self) -> float:
        """Seconds of training lost by interruptions; they are not included in any other figure."""
        return sum(event.lost for event in self.log.of(Started))


@dataclass(frozen=True)
class Platform:
    """A machine or setting, and its training runs."""

    name: str
    runs: tuple[TrainingRun, ...]
    price: Price | None = None

    @property
    def first(self) -> TrainingRun:
        """The first training, the one shown in figures with only one training per platform."""
        return self.runs[0]

    def times(self, metric: str, target: float, epochs: int) -> list[float | None]:
        """Return the TTA of each run in minutes."""
        return [run.tta(metric, target, epochs) for run in self.runs]

    def tta(self, metric: str, target: float, epochs: int) -> float | None:
        """Return TTA(target, epochs) in minutes, the median over runs."""
        return typical(self.times(metric, target, epochs))

    def dawnbench(self, metric: str, target: float) -> float | None:
        """Return the fastest run's minutes by DAWNBench's rule, as its entries do."""
        times = [first_epoch(*_lists(run.curve(metric)), target) for run in self.runs]
        reached = [time / 60 for time in times if time is not None]
        return min(reached, default=None)

    def mlperf(self, metric: str, target: float) -> float | None:
        """Return the minutes by MLPerf's rule; None with fewer than three runs."""
        return mlperf(self.times(metric, target, epochs=1))


def _lists(curve: tuple[np.ndarray, np.ndarray]) -> tuple[list[float], list[float]]:
    """Return the two arrays of a curve as lists."""
    return curve[0].tolist(), curve[1].tolist()


def read_platforms(runs: Iterable[str], prices: Sequence[Price] = ()) -> list[Platform]:
    """Read training runs and group them by platform.

    Args:
      runs: folders, or NAME=FOLDER. log.jsonl is in the folder or in exactly one of its subfolders.
        The default NAME is that in the log, else the name of the recipe's run directory.
      prices: prices of platforms, matched by name; if there is only one price and one platform,
        their names may differ.

    Raises:
      BenchRunError: a folder is given twice or has no log or several; or a price has no platform.
      TrainingError: a log cannot be read.
    """
    grouped: dict[str, list[TrainingRun]] = {}
    # A run that is given twice would make a median look safer than it is.
    folders = set()
    for argument in runs:
        name, folder = name_and_folder(argument)
        folder = log_folder(folder)
        if folder.resolve() in folders:
            raise BenchRunError(f"{folder} was given twice: pass every run only once")
        folders.add(folder.resolve())
        run = TrainingRun(folder, read_run_log(folder))
        grouped.setdefault(name or _own_name(run), []).append(run)
    if not grouped:
        raise BenchRunError("no run given: pass at least one folder with a log.jsonl")
    # A single price belongs to a single platform, whatever their names; it then gives the name.
    by_name = {price.name: price for price in prices}
    if len(grouped) == len(by_name) == 1 and not grouped.keys() & by_name.keys():
        grouped = {next(iter(by_name)): next(iter(grouped.values()))}
    for name in by_name:
        if name not in grouped:
            raise BenchRunError(
                f"there is a price for the platform {name!r}, but the runs are of the platforms "
                f"{', '.join(grouped)}: pass the runs of {name!r} as {name}=FOLDER"
            )
    return [Platform(name, tuple(group), by_name.get(name)) for name, group in grouped.items()]


def name_and_folder(argument: str) -> tuple[str, Path]:
    """Split NAME=FOLDER; the name is empty if only a folder is given."""
    name, equals, folder = argument.partition("=")
    if not equals or Path(argument).exists() or "/" in name:
        return "", Path(argument)
    return name, Path(folder)


def log_folder(folder: Path) -> Path:
    """Return the folder with a training's log: this one, or its only subfolder that has one.

    Raises:
      BenchRunError: there is no such folder, or there are several.
    """
    if (folder / RUN_LOG).is_file():
        return folder
    inside = sorted(path.parent for path in folder.glob(f"*/{RUN_LOG}"))
    if len(inside) != 1:
        names = ", ".join(str(path) for path in inside)
        problem = (
            f"several of its folders have one: {names}" if inside else "none of its folders has one"
        )
        raise BenchRunError(f"{folder} has no {RUN_LOG}, the log of a training run; {problem}")
    return inside[0]


def _own_name(run: TrainingRun) -> str:
    """Return the name of a run by its log, or else by its folder."""
    name = (run.log.created.about or {}).get("name")
    return str(name) if name else (recipe_folder(run.folder) or run.folder.resolve()).name


def recipe_folder(folder: Path) -> Path | None:
    """Return the training's run directory: `folder` or one of three above it; None if none fits."""
    folder = folder.resolve()
    for place in (folder, *list(folder.parents)[:3]):
        if any(re.fullmatch(r"\d+\.json", path.name) for path in place.glob("stages/*.json")):
            return place
    return None


def stage_times(folder: Path) -> list[tuple[int, str, float]]:
    """Return number, title and seconds of the finished stages of a recipe's run (A39)."""
    place = recipe_folder(folder)
    times = []
    for path in sorted(place.glob("stages/*.json")) if place else []:
        if not re.fullmatch(r"\d+\.json", path.name):
            continue
        try:
            marker = Marker.read(path)
        except UnreadableMarkerError:
            continue
        if marker is not None:
            times.append((marker.stage, marker.title, marker.seconds))
    return times
