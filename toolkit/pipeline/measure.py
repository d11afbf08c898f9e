"""Speed of the data pipeline's steps on one core, and their calls and bytes per hour."""

import io
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, cast

from toolkit.environment import machine
from toolkit.pipeline.objects import Counts, ObjectRef, ObjectStore
from toolkit.pipeline.rates import Rates, StepRate

if TYPE_CHECKING:
    from toolkit.pipeline.executor import Executor
    from toolkit.pipeline.lake import Lake
    from toolkit.pipeline.step import Partition, Step, StepResult

RATE = 16000
SECONDS = (2.0, 3.0, 4.0, 5.4)  # 3.6 s on average, as 1e9 utterances in a million hours (C35)
SPEAKERS = 8
FIRST_DAY = 1_767_225_600.0  # 2026-01-01
LATENCY, BANDWIDTH = 0.2, 50e6  # C24
FRONTEND = "front end, samples to features"


@dataclass(frozen=True)
class MeasuredSteps:
    """Speeds of the pipeline's steps on one core, and the rates from which a plan is computed."""

    speeds: dict[str, tuple[float, ...]]
    """Seconds of audio per second of CPU time in each round, by step and for `FRONTEND`."""
    rates: Rates
    """The rates that `toolkit pipeline plan` reads."""
    notes: tuple[str, ...]
    """Sentences about the audio and about the calls and bytes of extraction."""

    def print(self) -> None:
        """Print the speeds, relative to the front end alone, to standard output."""
        from rich.console import Console
        from rich.table import Table

        rounds = len(self.speeds[FRONTEND])
        table = Table(
            title="The data pipeline on one core",
            caption="\n".join((f"medians of {rounds} interleaved rounds", *self.notes)),
            caption_justify="left",
        )
        table.add_column("step")
        for name in ("s of audio / s", f"ratio to {FRONTEND}", "spread"):
            table.add_column(name, justify="right")
        for name, speeds in self.speeds.items():
            ratios = [a / b for a, b in zip(speeds, self.speeds[FRONTEND], strict=True)]
            table.add_row(
                name,
                f"{median(speeds):,.4g}",
                f"{median(ratios):.3f}",
                f"{100 * _spread(speeds):.0f} %",
            )
        console = Console()
        if not console.is_terminal:
            console.width = 120  # a log file has room
        console.print(table)


def measure_steps(minutes: float = 6.0, repeats: int = 3) -> MeasuredSteps:
    """Measure every step on an aggregated lake of noise on a local disk.

    The steps take turns, in reverse order in every second round, after one round that is not timed.

    Args:
      minutes: minutes of audio. Target generation, with a teacher of the paper's size (C9), uses a
        twentieth of the audio.
      repeats: timed rounds.
    """
    from toolkit.processes.devices import one_thread

    with tempfile.TemporaryDirectory() as folder, one_thread():
        # 1. Write the lake and run every step once, so that each has its inputs.
        lake = _NoiseLake(Path(folder), minutes)
        cases = lake.cases()
        speeds: dict[str, list[float]] = {name: [] for name in cases}
        # 2. A round that is not timed compiles kernels and fills the disk cache.
        for run in cases.values():
            run()
        # 3. Timed rounds. The order alternates, so that slow drifts of the machine hit all steps
        # alike.
        for turn in range(repeats):
            for name in cases if turn % 2 == 0 else reversed(cases):
                start = time.process_time()
                seconds = cases[name]()
                speeds[name].append(seconds / (time.process_time() - start))
        # 4. Calls of extraction, which depend on the layout of the lake's audio (C15).
        calls, single = lake.remote_calls("aggregated"), lake.remote_calls("single")
        rates = lake.rates(speeds, calls)
    hours = lake.hours
    notes = (
        "times are processor time: `toolkit pipeline plan` adds the wait for disks and stores",
        f"{60 * hours:.1f} min of noise in WAV files of 3.6 s on average, {SPEAKERS} speakers",
        f"extract, per hour of audio: {calls.calls / hours:,.0f} calls, "
        f"{calls.bytes_read / hours / 1e6:,.0f} MB read, "
        f"{calls.bytes_written / hours / 1e6:,.0f} MB written",
        f"extract, with an object per utterance: {single.calls / hours:,.0f} calls",
        f"fetching an hour of audio at {LATENCY:g} s per call and {BANDWIDTH / 1e6:g} MB/s over one"
        f" connection: {fetch_ratio():.0f} times as fast from aggregated objects as from an object"
        " per utterance",
    )
    return MeasuredSteps({name: tuple(row) for name, row in speeds.items()}, rates, notes)


def _spread(speeds: Sequence[float]) -> float:
    """Return (fastest - slowest) / median: below 0.1 on an otherwise idle machine."""
    return (max(speeds) - min(speeds)) / median(speeds)


@dataclass
class _StepRun:
    """A step, its partitions, and their seconds of audio."""

    step: "Step"
    partitions: "list[Partition]"
    seconds: float


class _NoiseLake:
    """Lakes of noise, and the steps with their partitions."""

    def __init__(self, folder: Path, minutes: float) -> None:
        self.folder = folder
        self.store = ObjectStore()
        self.calls: dict[str, Counts] = {}
        self.lakes: dict[str, Lake] = {}
        self.utterances = _noise(minutes)
        self.hours = sum(utterance.seconds for utterance in self.utterances) / 3600
        self.step_runs = self._prepare()

    def _lake(self, layout: str, base: str) -> "Lake":
        """Return the lake below `base`, which the first call writes in `layout`."""
        if base not in self.lakes:
            self.lakes[base] = write_lake(self.utterances, self.store, f"{base}/lake", layout)
        return self.lakes[base]

    def _files(self, layout: str, base: str) -> list[ObjectRef]:
        """Select nearly all audio of a lake; return the files of records."""
        from toolkit.pipeline.config import SelectConfig
        from toolkit.pipeline.steps.select import select_records

        config = SelectConfig(hours=0.98 * self.hours, hours_per_file=self.hours)
        lake = self._lake(layout, base)
        executor = cast("Executor", _InProcess(self))
        return select_records(lake, config, executor, self.store, f"{base}/selected").files

    def _extract(self, layout: str, base: str) -> _StepRun:
        """Return the extraction step for a lake's audio, ready to run."""
        from toolkit.pipeline.steps.extract import Extract, ExtractConfig, plan_extract

        files = self._files(layout, base)
        step = Extract(ExtractConfig(f"{base}/lake"))
        hours = sum(ref.about["hours"] for ref in files)
        return _StepRun(step, plan_extract(files), 3600 * hours)

    def _prepare(self) -> dict[str, _StepRun]:
        """Prepare every step; return each with its partitions and seconds of audio, by name."""
        from toolkit.pipeline.config import RepartitionConfig, ShuffleConfig, StatsConfig
        from toolkit.pipeline.shards import shards_of
        from toolkit.pipeline.steps.shuffle import (
            Repartition,
            Shuffle,
            plan_repartition,
            plan_shuffle,
        )
        from toolkit.pipeline.steps.stats import Stats, merge_stats, plan_shards
        from toolkit.pipeline.steps.targets import Targets, TargetsConfig, Teacher

        step_runs = {"extract": self._extract("aggregated", str(self.folder))}
        shards = shards_of(ref for r in self.run(step_runs["extract"]) for ref in r.outputs)
        seconds = step_runs["extract"].seconds
        step_runs["shuffle"] = _StepRun(
            Shuffle(ShuffleConfig()), plan_shuffle(shards, ShuffleConfig()), seconds
        )
        step_runs["stats"] = _StepRun(Stats(StatsConfig()), plan_shards(shards), seconds)
        # A teacher of the paper's size is slow: its targets are measured on a twentieth of the
        # audio.
        sums = [ref for r in self.run(step_runs["stats"]) for ref in r.outputs]
        normaliser = self.folder / "normaliser.json"
        merge_stats(sums, self.store).save(normaliser)
        parts = RepartitionConfig(hours=max(self.hours / 20, 0.002))
        small = _StepRun(Repartition(parts), plan_repartition(shards, parts), seconds)
        pieces = shards_of(ref for r in self.run(small) for ref in r.outputs)
        teacher = Teacher.at(self.store, write_teacher(self.folder / "teacher"), normaliser)
        piece = pieces[:1]
        step_runs["targets"] = _StepRun(
            Targets(TargetsConfig(teacher)), plan_shards(piece), 3600 * piece[0].hours
        )
        halves = RepartitionConfig(hours=self.hours / 2)
        step_runs["repartition"] = _StepRun(
            Repartition(halves), plan_repartition(shards, halves), seconds
        )
        return step_runs

    def run(self, step_run: _StepRun, base: str | None = None) -> "list[StepResult]":
        """Run a step in this process and count its calls."""
        from toolkit.pipeline.step import Resources, output_prefix

        results = []
        store = ObjectStore()
        for partition in step_run.partitions:
            with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
                resources = Resources("cpu", 1, Path(scratch))
                out = output_prefix(step_run.step, f"{base or self.folder}/out")
                results.append(step_run.step.run(partition, store, out, resources))
        self.calls[step_run.step.name] = store.counts
        return results

    def cases(self) -> dict[str, Callable[[], float]]:
        """Return functions that run the front end alone or a step, and return seconds of audio."""
        from toolkit.features.audio import decode_audio
        from toolkit.features.config import FrontendConfig
        from toolkit.features.frontend import Frontend

        frontend = Frontend(FrontendConfig())
        samples = [decode_audio(u.wav, u.id, RATE).samples for u in self.utterances]

        def features() -> float:
            for x in samples:
                frontend(x)
            return 3600 * self.hours

        def run_step(step_run: _StepRun) -> float:
            self.run(step_run)
            return step_run.seconds

        steps = {name: partial(run_step, step_run) for name, step_run in self.step_runs.items()}
        return {FRONTEND: features, **steps}

    def remote_calls(self, layout: str) -> Counts:
        """Count the calls of extraction with a store that is not a local disk."""
        base = f"memory://{self.folder.name}/{layout}"
        results = self.run(self._extract(layout, base), base)
        assert all(not result.failures for result in results)
        return self.calls["extract"]

    def rates(self, speeds: Mapping[str, Sequence[float]], extract: Counts) -> Rates:
        """Return the rates that a plan needs."""
        steps = {"select": self._select_rate()}
        for name, step_run in self.step_runs.items():
            counts = extract if name == "extract" else self.calls[name]
            hours, speed = step_run.seconds / 3600, median(speeds[name])
            half_range = _spread(speeds[name]) / 2
            steps[name] = StepRate(
                speed=speed,
                read=counts.bytes_read / hours,
                written=counts.bytes_written / hours,
                low=speed * (1 - half_range),
                high=speed * (1 + half_range),
                measured_on=f"{60 * hours:.1f} min of noise, {len(speeds[name])} rounds",
            )
        targets = steps["targets"].written  # the measured shards have no targets
        moved = steps["repartition"]
        steps["repartition"] = replace(
            moved, read=moved.read + targets, written=moved.written + targets
        )
        about = {"cpu": str(machine()["cpu"]), "date": time.strftime("%Y-%m-%d")}
        return Rates(steps, measured=about)

    def _select_rate(self) -> StepRate:
        """Measure the rate of the selection."""
        start = time.process_time()
        self._files("aggregated", str(self.folder))
        seconds = time.process_time() - start
        counts = self.calls["sample"] + self.calls["group"]
        return StepRate(
            3600 * self.hours / seconds,
            counts.bytes_read / self.hours,
            counts.bytes_written / self.hours,
        )


def fetch_ratio() -> float:
    """Return how many times faster audio comes from large objects than from one per utterance.

    Both times are for an hour of audio, one connection and the calls that extraction plans.
    """
    from toolkit.pipeline.lake import Record
    from toolkit.pipeline.steps.extract import plan_spans

    audio, count = int(Rates({}).audio_bytes), round(3600 / 3.6)
    size = audio // count
    records = [
        Record(str(i), "a", 3.6, float(i), "", "audio.tar", i * size, size) for i in range(count)
    ]
    aggregated = Counts(get=len(plan_spans(records)), bytes_read=audio)
    single = Counts(get=count, bytes_read=audio)
    return _store_seconds(single) / _store_seconds(aggregated)


class _InProcess:
    """An executor that runs partitions in this process and writes no markers."""

    def __init__(self, lake: _NoiseLake) -> None:
        self._lake = lake

    def run(self, step: "Step", partitions: "list[Partition]", out: str) -> "list[StepResult]":
        """Run a step over its partitions, one after the other."""
        return self._lake.run(_StepRun(step, list(partitions), 0.0))


def _store_seconds(counts: Counts) -> float:
    """Return the duration of calls and transfers on one connection to the paper's store."""
    return counts.calls * LATENCY + (counts.bytes_read + counts.bytes_written) / BANDWIDTH


def write_teacher(folder: Path) -> Path:
    """Write an untrained BLSTM of the default size as the teacher; return the folder."""
    import torch

    from toolkit.models.config import BlstmConfig
    from toolkit.models.lstm import BlstmModel
    from toolkit.models.store import save_model

    torch.manual_seed(0)
    save_model(folder, BlstmModel(BlstmConfig()))
    return folder


@dataclass(frozen=True)
class _Utterance:
    """An utterance of noise."""

    id: str
    speaker: str
    seconds: float
    wav: bytes
    """The content of its WAV file, 16 bit at 16 kHz (256 kbps: C35)."""


def _noise(minutes: float) -> list[_Utterance]:
    """Make utterances of noise with `minutes` of audio in all."""
    import numpy as np

    from toolkit.corpus.audio import encode_audio

    rng = np.random.default_rng(0)
    utterances: list[_Utterance] = []
    while sum(utterance.seconds for utterance in utterances) < 60 * minutes:
        number = len(utterances)
        seconds = SECONDS[number % len(SECONDS)]
        noise = (rng.standard_normal(round(seconds * RATE)) * 3000).astype(np.int16)
        wav = encode_audio(noise, RATE, "WAV")
        name, speaker = f"utterance-{number:05d}", f"speaker-{number % SPEAKERS}"
        utterances.append(_Utterance(name, speaker, seconds, wav))
    return utterances


def write_lake(
    utterances: Sequence[_Utterance], store: ObjectStore, url: str, layout: str
) -> "Lake":
    """Write a lake of one metadata object.

    Args:
      utterances: in any order; the lake has them by speaker.
      store: writes the objects.
      url: prefix of the lake.
      layout: `aggregated`: one tar of all utterances; `single`: one object per utterance.
    """
    from toolkit.pipeline.lake import Lake, Record, metadata_path

    utterances = sorted(utterances, key=lambda utterance: (utterance.speaker, utterance.id))
    records = [
        Record(u.id, u.speaker, u.seconds, FIRST_DAY + row, "en-US", f"audio/{u.id}.wav")
        for row, u in enumerate(utterances)
    ]
    if layout == "aggregated":
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as tar:
            for row, u in enumerate(utterances):
                header = tarfile.TarInfo(f"{u.id}.wav")
                header.size = len(u.wav)
                offset = tar.offset + tarfile.BLOCKSIZE  # behind the member's header
                tar.addfile(header, io.BytesIO(u.wav))
                records[row] = replace(
                    records[row], audio="audio/all.tar", offset=offset, size=header.size
                )
        store.put(f"{url}/audio/all.tar", stream.getvalue())
    else:
        for u in utterances:
            store.put(f"{url}/audio/{u.id}.wav", u.wav)
    about = {"hours": sum(u.seconds for u in utterances) / 3600, "utterances": len(utterances)}
    lines = b"".join(record.to_line() for record in records)
    lake = Lake(url, (store.put(metadata_path(url, "2026-01-01", 0), lines, about),), 1)
    lake.save(store)
    return lake
