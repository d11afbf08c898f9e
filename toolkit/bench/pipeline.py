"""The data pipeline's steps and the bare front end on one core; calls and bytes per hour."""

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.bench.instruments.harness import Case, Table, compare
from toolkit.config.click_types import FILE, JSON_OUT, Number
from toolkit.environment import machine
from toolkit.pipeline.objects import Counts, ObjectRef, ObjectStore
from toolkit.pipeline.rates import Rates, StepRate

if TYPE_CHECKING:
    from lhotse.cut import MonoCut

    from toolkit.pipeline.lake import Lake
    from toolkit.pipeline.step import Partition, Step, StepResult

RATE = 16000
SECONDS = (2.0, 3.0, 4.0, 5.4)  # 3.6 s on average, as 1e9 utterances in a million hours (C35)
SPEAKERS = 8
LATENCY, BANDWIDTH = 0.2, 50e6  # C24
BARE = "front end, samples to features"


def benchmark(minutes: float = 6.0, repeats: int = 3) -> tuple[Table, Rates]:
    """Measure every step on an aggregated lake of noise on a local disk.

    Args:
      minutes: of audio. Target generation, with a teacher of the paper's size (C9), uses a
        twentieth of it.
      repeats: timed rounds.
    """
    from toolkit.processes.devices import one_thread

    with tempfile.TemporaryDirectory() as folder, one_thread():
        bench = _Bench(Path(folder), minutes)
        table = compare(
            bench.cases(),
            unit="s of audio",
            baseline=BARE,
            repeats=repeats,
            title="The data pipeline on one core",
            clock=time.process_time,
        )
        calls, single = bench.remote_calls("aggregated"), bench.remote_calls("single")
        rates = bench.rates(table, calls)
    hours = bench.hours
    notes = (
        "times are processor time: `toolkit pipeline plan` adds the waiting for disks and stores",
        f"{60 * hours:.1f} min of noise in WAV of 3.6 s on average, {SPEAKERS} speakers",
        f"extract, per hour of audio: {calls.calls / hours:,.0f} calls, "
        f"{calls.bytes_read / hours / 1e6:,.0f} MB read, "
        f"{calls.bytes_written / hours / 1e6:,.0f} MB written",
        f"the same with an object per utterance: {single.calls / hours:,.0f} calls",
        f"an hour's audio at {LATENCY:g} s per call and {BANDWIDTH / 1e6:g} MB/s, one connection: "
        f"{fetch_ratio():.0f} times as fast from aggregated objects as from one per utterance",
    )
    return table.with_notes(*notes), rates


@click.command()
@click.option(
    "--minutes",
    type=Number(0.2),
    default=6.0,
    show_default=True,
    help="Minutes of audio.",
)
@click.option(
    "--repeats", type=click.IntRange(1), default=3, show_default=True, help="Timed rounds."
)
@click.option(
    "--rates",
    "rates_file",
    type=FILE,
    help="Also write the rates that `toolkit pipeline plan` reads.",
)
@click.option("--json", "json_file", type=JSON_OUT, help="Also write the table to this file.")
def command(minutes: float, repeats: int, rates_file: Path | None, json_file: Path | None) -> None:
    """Measure the data pipeline's steps on one core.

    The table has each step's seconds of audio per second of processor time, relative to the
    front end alone. With --rates the speeds, and the bytes per hour of audio, are stored for
    `toolkit pipeline plan`.

    \b
    Example:
      toolkit bench pipeline --minutes 2 --rates rates.json
    """
    import json

    from toolkit.storage.files import write_atomically

    table, rates = benchmark(minutes, repeats)
    table.print()
    if json_file is not None:
        write_atomically(json_file, json.dumps(table.to_json(), indent=1) + "\n")
    if rates_file is not None:
        rates.save(rates_file)


@dataclass
class _StepRun:
    """A step, its partitions, and their seconds of audio."""

    step: "Step"
    partitions: "list[Partition]"
    seconds: float


class _Bench:
    def __init__(self, folder: Path, minutes: float) -> None:
        self.folder = folder
        self.store = ObjectStore()
        self.calls: dict[str, Counts] = {}
        self.lakes: dict[str, Lake] = {}
        self.cuts = _noise(folder / "audio", minutes)
        self.hours = sum(cut.duration for cut in self.cuts) / 3600
        self.work = self._prepare()

    def _lake(self, layout: str, base: str) -> "Lake":
        from toolkit.pipeline.synthetic_lake import SyntheticLakeConfig, make_lake

        if base not in self.lakes:
            config = SyntheticLakeConfig(layout=layout, interval_days=90, buckets=1)
            self.lakes[base] = make_lake(self.cuts, self.store, f"{base}/lake", config)
        return self.lakes[base]

    def _files(self, layout: str, base: str) -> list[ObjectRef]:
        from toolkit.pipeline.steps.sample import SelectConfig
        from toolkit.pipeline.steps.select import select

        config = SelectConfig(hours=0.98 * self.hours, hours_per_file=self.hours)
        lake = self._lake(layout, base)
        return select(lake, config, _InProcess(self), self.store, f"{base}/selected")

    def _extract(self, layout: str, base: str) -> _StepRun:
        from toolkit.pipeline.steps.extract import Extract, ExtractConfig, plan_extract

        files = self._files(layout, base)
        step = Extract(ExtractConfig(f"{base}/lake"))
        hours = sum(ref.about["hours"] for ref in files)
        return _StepRun(step, plan_extract(files), 3600 * hours)

    def _prepare(self) -> dict[str, _StepRun]:
        from toolkit.pipeline.shards import shards_of
        from toolkit.pipeline.steps.repartition import (
            Repartition,
            RepartitionConfig,
            plan_repartition,
        )
        from toolkit.pipeline.steps.shuffle import Shuffle, ShuffleConfig, plan_shuffle
        from toolkit.pipeline.steps.stats import Stats, StatsConfig, merge_stats, plan_shards
        from toolkit.pipeline.steps.targets import Targets, TargetsConfig, Teacher

        work = {"extract": self._extract("aggregated", str(self.folder))}
        shards = shards_of(ref for r in self.run(work["extract"]) for ref in r.outputs)
        seconds = work["extract"].seconds
        work["shuffle"] = _StepRun(
            Shuffle(ShuffleConfig()), plan_shuffle(shards, ShuffleConfig()), seconds
        )
        work["stats"] = _StepRun(Stats(StatsConfig()), plan_shards(shards), seconds)
        sums = [ref for r in self.run(work["stats"]) for ref in r.outputs]
        normaliser = self.folder / "normaliser.json"
        merge_stats(sums, self.store).save(normaliser)
        parts = RepartitionConfig(hours=max(self.hours / 20, 0.002))
        small = _StepRun(Repartition(parts), plan_repartition(shards, parts), seconds)
        pieces = shards_of(ref for r in self.run(small) for ref in r.outputs)
        teacher = Teacher.at(self.store, write_teacher(self.folder / "teacher"), normaliser)
        piece = pieces[:1]
        work["targets"] = _StepRun(
            Targets(TargetsConfig(teacher)), plan_shards(piece), 3600 * piece[0].hours
        )
        halves = RepartitionConfig(hours=self.hours / 2)
        work["repartition"] = _StepRun(
            Repartition(halves), plan_repartition(shards, halves), seconds
        )
        return work

    def run(self, work: _StepRun, base: str | None = None) -> "list[StepResult]":
        """Run a step in this process and count its calls."""
        from toolkit.pipeline.step import Resources, output_prefix

        results = []
        store = ObjectStore()
        for partition in work.partitions:
            with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
                resources = Resources("cpu", 1, Path(scratch))
                out = output_prefix(work.step, f"{base or self.folder}/out")
                results.append(work.step.run(partition, store, out, resources))
        self.calls[work.step.name] = store.counts
        return results

    def cases(self) -> list[Case]:
        """Return the cases: the bare front end and every step."""
        from toolkit.features.cut_audio import load_cut_audio
        from toolkit.features.frontend import Frontend, FrontendConfig

        frontend = Frontend(FrontendConfig())
        samples = [load_cut_audio(cut) for cut in self.cuts]

        def features() -> float:
            for x in samples:
                frontend(x)
            return 3600 * self.hours

        def case(name: str, work: _StepRun) -> Case:
            def run() -> float:
                self.run(work)
                return work.seconds

            return Case(name, run)

        return [Case(BARE, features), *(case(name, work) for name, work in self.work.items())]

    def remote_calls(self, layout: str) -> Counts:
        """Count the calls of extraction with a store that is not a local disk."""
        base = f"memory://{self.folder.name}/{layout}"
        results = self.run(self._extract(layout, base), base)
        assert all(not result.failures for result in results)
        return self.calls["extract"]

    def rates(self, table: Table, extract: Counts) -> Rates:
        """Return the rates that a plan needs."""
        steps = {"select": self._select_rate()}
        for name, work in self.work.items():
            counts = extract if name == "extract" else self.calls[name]
            hours, row = work.seconds / 3600, table.row(name)
            steps[name] = StepRate(
                speed=row.rate,
                read=counts.bytes_read / hours,
                written=counts.bytes_written / hours,
                low=row.rate * (1 - row.spread / 2),
                high=row.rate * (1 + row.spread / 2),
                measured_on=f"{60 * hours:.1f} min of noise, {table.repeats} rounds",
            )
        targets = steps["targets"].written  # the measured shards have no targets
        moved = steps["repartition"]
        steps["repartition"] = replace(
            moved, read=moved.read + targets, written=moved.written + targets
        )
        about = {"cpu": str(machine()["cpu"]), "date": time.strftime("%Y-%m-%d")}
        return Rates(steps, measured=about)

    def _select_rate(self) -> StepRate:
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
    """Return how many times faster an hour of audio is fetched from large objects than one by one.

    Both times are for one connection and the calls that extraction plans.
    """
    from toolkit.pipeline.fetch import plan_spans
    from toolkit.pipeline.lake import Record

    audio, count = int(Rates({}).audio_bytes), round(3600 / 3.6)
    size = audio // count
    records = [
        Record(str(i), "a", 3.6, float(i), "", "audio.tar", i * size, size) for i in range(count)
    ]
    aggregated = Counts(get=len(plan_spans(records)), bytes_read=audio)
    single = Counts(get=count, bytes_read=audio)
    return _store_seconds(single) / _store_seconds(aggregated)


class _InProcess:
    """An executor without processes or markers."""

    def __init__(self, bench: _Bench) -> None:
        self._bench = bench

    def run(self, step: "Step", partitions: "list[Partition]", out: str) -> "list[StepResult]":
        return self._bench.run(_StepRun(step, list(partitions), 0.0))


def _store_seconds(counts: Counts) -> float:
    """Return the time of calls and bytes on one connection to a store like the paper's."""
    return counts.calls * LATENCY + (counts.bytes_read + counts.bytes_written) / BANDWIDTH


def write_teacher(folder: Path) -> Path:
    """Write an untrained BLSTM of the usual size as the teacher; return the folder."""
    import torch

    from toolkit.models.lstm import BlstmConfig, BlstmModel
    from toolkit.models.store import save_model

    torch.manual_seed(0)
    save_model(folder, BlstmModel(BlstmConfig()))
    return folder


def _noise(folder: Path, minutes: float) -> "list[MonoCut]":
    import numpy as np
    import soundfile

    from toolkit.corpus.manifest import make_cut, recording_or_fault

    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    cuts: list[MonoCut] = []
    while sum(cut.duration for cut in cuts) < 60 * minutes:
        name = f"utterance-{len(cuts):05d}"
        seconds = SECONDS[len(cuts) % len(SECONDS)]
        noise = (rng.standard_normal(round(seconds * RATE)) * 3000).astype(np.int16)
        soundfile.write(folder / f"{name}.wav", noise, RATE)
        recording, _ = recording_or_fault(folder / f"{name}.wav", name)
        cuts.append(make_cut(name, recording, "", f"speaker-{len(cuts) % SPEAKERS}"))
    return cuts
