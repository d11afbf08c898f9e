"""Speeds and bytes of the pipeline's steps: read from a file, or computed from finished runs."""

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from scipy import special

from toolkit.config.fields import Positive, Settings, from_plain
from toolkit.environment import machine
from toolkit.errors import ToolkitError
from toolkit.pipeline.executor import SUMMARY, SummaryError, read_summary
from toolkit.pipeline.markers import FOLDER, Marker
from toolkit.pipeline.objects import ObjectStore
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_json, reading

FUSIBLE = ("extract", "shuffle", "stats")
FUSED = "+".join(FUSIBLE)
FEATURES = ("select", *FUSIBLE, FUSED)
"""Steps that make the features; the others make targets and training shards from them."""


class RatesError(ToolkitError):
    """A file of rates cannot be read."""


@dataclass(frozen=True)
class StepRate(Settings):
    """Speed of a step, and the bytes that it reads and writes."""

    speed: Positive
    """Hours of audio processed per hour on one core or device, without waiting for the store."""
    read: float = 0.0
    """Bytes read per hour of audio."""
    written: float = 0.0
    """Bytes written per hour of audio."""
    device: bool = False
    """Whether it runs on devices (GPUs) rather than cores."""
    low: float | None = None
    """Lower end of the speed's 95 % interval, or of its range over the rounds; None: unknown."""
    high: float | None = None
    """Upper end of that interval; None: unknown or unbounded."""
    measured_on: str = ""
    """Data on which the speed was measured, in words."""


@dataclass(frozen=True)
class Rates(Settings):
    """Rates of all steps."""

    steps: Mapping[str, StepRate]
    """Rate of each step by name, in the order of the pipeline."""
    seconds_per_utterance: Positive = 3.6
    """Mean length of an utterance in seconds; 3.6 gives 1e9 utterances in a million hours (C35)."""
    audio_bytes: float = 256e3 / 8 * 3600
    """Bytes of audio per hour: 256 kbps (C35)."""
    measured: Mapping[str, str] = field(default_factory=dict)
    """Processor and date of the measurement."""

    def with_speed(self, name: str, speed: float, device: bool = False) -> "Rates":
        """Return rates in which one step has another speed, on a core or on a device."""
        if name not in self.steps:
            raise RatesError(
                f"there is no rate for the step {name!r}, only for {', '.join(self.steps)}"
            )
        unmeasured = {"low": None, "high": None, "measured_on": "given"}
        rate = replace(self.steps[name], speed=speed, device=device, **unmeasured)
        return replace(self, steps={**self.steps, name: rate})

    def save(self, path: Path) -> None:
        """Write the rates as JSON."""
        write_atomically(path, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Rates":
        """Read what `save` wrote.

        Raises:
          RatesError: naming the file.
        """
        advice = "`toolkit pipeline rates` or `toolkit pipeline measure` writes such a file"
        with reading(path, RatesError, advice, "not a file of rates"):
            content = read_json(path, {"steps": {str: {str: Any}}})
            steps = {name: from_plain(StepRate, rate) for name, rate in content["steps"].items()}
            return replace(from_plain(cls, {**content, "steps": {}}), steps=steps)


SELECT = ("sample", "group")
"""The steps of the selection, which a plan counts as one."""
ORDER = {name: number for number, name in enumerate((*FEATURES, "targets", "repartition"))}


class MeasuredRatesError(ToolkitError):
    """The records of finished runs are not sufficient to compute rates."""


@dataclass(frozen=True)
class PartitionRun:
    """Time and data volume of one partition."""

    hours: float
    """Hours of audio."""
    seconds: float
    """CPU time in seconds; on a GPU, the wall time without the calls to the store."""
    read: int
    """Bytes read."""
    written: int
    """Bytes written."""
    device: bool
    """Whether it ran on a GPU."""

    @classmethod
    def of(cls, marker: Marker) -> "PartitionRun":
        """Return the time and data volume that a marker records."""
        run: Mapping[str, Any] = marker.run
        device = str(run.get("device", "cpu")) != "cpu"
        # A GPU works while the processor waits for it, so its time is the wall time.
        seconds = run["seconds"] - run["store_seconds"] if device else run["cpu_seconds"]
        hours = run["hours"]  # None if known only after the step, as for a sample of the lake
        return cls(
            float(marker.result.about.get("hours", 0.0) if hours is None else hours),
            float(seconds),
            int(run["bytes_read"]),
            int(run["bytes_written"]),
            device,
        )


def rates_of_runs(store: ObjectStore, prefixes: Sequence[str]) -> Rates:
    """Compute rates from all steps that have finished below some prefixes.

    A rate is the hours of all partitions divided by their seconds. Its 95 % interval is that of a
    ratio of means over partitions; with a single partition there is none.

    Args:
      store: reads summaries and markers.
      prefixes: folders or URLs below which the steps have written.

    Raises:
      MeasuredRatesError: no step has finished there, one has finished twice, or the markers are
        from a version that did not record what is needed.
    """
    runs: dict[str, list[PartitionRun]] = {}
    places: dict[str, str] = {}
    for out, name in _finished(store, prefixes):
        if name in places and name not in SELECT:  # a sample that was too small is drawn again
            raise MeasuredRatesError(
                f"the step {name} has finished twice, in {places[name]} and in {out}. Give only "
                "the outputs of one run"
            )
        places[name] = out
        runs.setdefault(name, []).extend(_partitions(store, out))
    if not runs:
        raise MeasuredRatesError(
            f"no step has finished in {', '.join(prefixes)}. Give the folders or URLs to which the "
            "steps wrote"
        )
    steps = {}
    # The plan has one row for the selection, which runs as two steps.
    if all(name in runs for name in SELECT):
        steps["select"] = _select_rate(*(runs.pop(name) for name in SELECT))
    single_steps = sorted(
        runs.keys() - set(SELECT), key=lambda name: (ORDER.get(name, len(ORDER)), name)
    )
    steps |= {name: _rate(runs[name]) for name in single_steps}
    about = {"cpu": str(machine()["cpu"]), "date": time.strftime("%Y-%m-%d")}
    return Rates(steps, measured=about)


def _finished(store: ObjectStore, prefixes: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Yield the output prefix and the name of every step that has a summary."""
    paths = {ref.path for prefix in prefixes for ref in store.list(prefix.rstrip("/"))}
    for path in sorted(path for path in paths if path.endswith(f"/{SUMMARY}")):
        out = path.removesuffix(f"/{SUMMARY}")
        summary = read_summary(store, out)
        if summary is None or summary["done"] < summary["partitions"]:
            raise SummaryError(f"{out}: partitions are missing. Run the step until all are done")
        yield out, summary["step"]


def _partitions(store: ObjectStore, out: str) -> Iterable[PartitionRun]:
    """Yield the finished partitions of the step whose output prefix is `out`."""
    for ref in store.list(f"{out}/{FOLDER}"):
        marker = Marker.read(store, ref.path)
        if marker is None:
            continue
        try:
            yield PartitionRun.of(marker)
        except KeyError as error:
            raise MeasuredRatesError(
                f"{ref.path}: this marker does not record {error}. Run the step again with another "
                "output folder"
            ) from error


def _rate(runs: Sequence[PartitionRun]) -> StepRate:
    """Return the rate of a step, with a 95 % interval of its speed over the partitions."""
    hours, seconds = sum(run.hours for run in runs), sum(run.seconds for run in runs)
    if not hours or not seconds:
        raise MeasuredRatesError(
            "the speed of a step cannot be computed: its partitions record no audio or no time"
        )
    # Ratio estimator r = sum(s) / sum(h) over n partitions of s_i seconds and h_i hours, with the
    # standard error sqrt(n / (n - 1) * sum((s_i - r * h_i)^2)) / sum(h).
    ratio = seconds / hours
    low = high = None
    if len(runs) > 1:
        squares = math.fsum((run.seconds - ratio * run.hours) ** 2 for run in runs)
        t_quantile = float(special.stdtrit(len(runs) - 1, 0.975))  # Student's t
        margin = t_quantile * math.sqrt(len(runs) / (len(runs) - 1) * squares) / hours
        # More seconds per hour of audio mean a lower speed, so the ends change places.
        low = 3600 / (ratio + margin)
        high = 3600 / (ratio - margin) if margin < ratio else None
    return StepRate(
        3600 / ratio,
        sum(run.read for run in runs) / hours,
        sum(run.written for run in runs) / hours,
        device=any(run.device for run in runs),
        low=low,
        high=high,
        measured_on=f"{hours:,.4g} h in {len(runs):,} partitions",
    )


def _select_rate(sampled: Sequence[PartitionRun], grouped: Sequence[PartitionRun]) -> StepRate:
    """Return the rate of the selection per hour of selected audio, not of the whole lake."""
    hours = sum(run.hours for run in grouped)
    parts = [*sampled, *grouped]
    if not hours:
        raise MeasuredRatesError(
            "the speed of the selection cannot be computed: no audio was selected"
        )
    return StepRate(
        3600 * hours / max(sum(run.seconds for run in parts), 1e-3),
        sum(run.read for run in parts) / hours,
        sum(run.written for run in parts) / hours,
        measured_on=f"{hours:,.4g} h selected of {sum(run.hours for run in sampled):,.4g} h",
    )
