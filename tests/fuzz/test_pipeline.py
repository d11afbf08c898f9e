"""Metadata and audio of a data lake, and the files that the pipeline writes."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.fuzz.hostile import *  # noqa: F403
from tests.fuzz.trial import Reader
from tests.pipeline.synthetic_lake import SyntheticLakeConfig, make_lake
from toolkit.corpus.manifest import make_cut, probe_recording
from toolkit.pipeline.config import SelectConfig
from toolkit.pipeline.executor import read_summary
from toolkit.pipeline.lake import LAKE, Record, metadata_totals, open_lake
from toolkit.pipeline.markers import Marker
from toolkit.pipeline.objects import ObjectRef, ObjectStore
from toolkit.pipeline.rates import Rates, StepRate
from toolkit.pipeline.report import summary_page, summary_text
from toolkit.pipeline.shards import SHARD_LIST, read_shards
from toolkit.pipeline.step import Resources, StepResult
from toolkit.pipeline.steps.extract import FetchError, fetch
from toolkit.pipeline.steps.select import (
    RANGE,
    Group,
    GroupConfig,
    Sample,
    SampleConfig,
    plan_group,
    plan_sample,
)

STORE = ObjectStore()


def lake(folder, layout="aggregated"):
    cuts = []
    with tempfile.TemporaryDirectory() as audio:
        for number in range(4):
            samples = np.random.default_rng(number).standard_normal(4000 + 300 * number)
            path = Path(audio) / f"u{number}.wav"
            soundfile.write(str(path), (samples * 3000).astype(np.int16), 16000)
            recording, _ = probe_recording(path, f"u{number}")
            cuts.append(make_cut(f"u{number}", recording, "", f"speaker{number % 2}"))
        make_lake(
            cuts,
            STORE,
            str(folder),
            SyntheticLakeConfig(layout=layout, interval_days=90, buckets=1),
        )


def open_and_plan(folder):
    opened_lake = open_lake(STORE, str(folder))
    return metadata_totals(opened_lake.objects), plan_sample(opened_lake)


def without_list(layout):
    """A lake without a manifest: the pipeline lists its objects."""

    def write(folder):
        lake(folder, layout)
        (folder / LAKE).unlink()

    return write


def process(folder):
    """Sample, group and extract. Faulty elements are reported and raise nothing."""
    with tempfile.TemporaryDirectory() as place:
        resources = Resources("cpu", 1, Path(place) / "scratch")
        sample = Sample(SampleConfig(SelectConfig(hours=1, min_duration=0.0), RANGE, 1))
        opened_lake = open_lake(STORE, str(folder))
        sampled = [
            sample.run(p, STORE, f"{place}/sample", resources) for p in plan_sample(opened_lake)
        ]
        group = Group(GroupConfig(5.0, 0, RANGE))
        files = [
            ref
            for partition in plan_group(sampled)
            for ref in group.run(partition, STORE, f"{place}/group", resources).outputs
        ]
        from toolkit.pipeline.steps.extract import Extract, ExtractConfig, plan_extract

        extract = Extract(ExtractConfig(str(folder)))
        for partition in plan_extract(files):
            extract.run(partition, STORE, f"{place}/features", resources)


def step_files(folder):
    """A marker, a list of shards, a summary and rates."""
    ref = ObjectRef(f"{folder}/shards/cuts.000000.jsonl", 9, "a" * 32, {"hours": 0.5})
    result = StepResult((ref,), (("u1", "no such object"),), {"hours": 0.5})
    Marker("b" * 32, result, {"seconds": 1.5}).commit(STORE, str(folder), "000000")
    listed = {"index": 0, "hours": 0.5, "utterances": 3, "frames": 99}
    listed["objects"] = {"cuts": {"path": "shards/cuts.000000.jsonl", "size": 9, "digest": "c"}}
    (folder / SHARD_LIST).write_text(json.dumps(listed) + "\n")
    Rates({"extract": StepRate(1000.0, 1e6)}, measured={"date": "2026-01-01"}).save(
        folder / "rates.json"
    )
    summary = {
        **dict.fromkeys(("partitions", "done", "kept", "attempts_failed", "peak_bytes"), 1),
        **dict.fromkeys(("elements_failed", "objects", "bytes"), 2),
        **{"step": "extract", "hours": 0.5, "wall_seconds": 2.5, "output_digest": "d"},
        "calls": dict.fromkeys(("get", "put", "head", "list", "repeated"), 3),
        "poisoned": [{"partition": "000001", "reason": "killed", "trace": ""}],
    }
    (folder / "_summary.json").write_text(json.dumps(summary))


def use_step_files(folder):
    for marker in (folder / "_done").glob("*"):
        Marker.read(STORE, str(marker))
    read_shards(STORE, str(folder))
    Rates.load(folder / "rates.json").with_speed("extract", 10.0)
    summary = read_summary(STORE, str(folder))
    return summary and (summary_text(summary), summary_page([summary]))


READERS = {
    "lake": Reader(lake, open_and_plan, files=LAKE),
    "metadata": Reader(without_list("aggregated"), process, files="metadata/**/*.jsonl"),
    "tars-of-audio": Reader(without_list("aggregated"), process, files="audio/**/*"),
    "audio-files": Reader(without_list("single"), process, files="audio/**/*"),
    "kept": Reader(step_files, use_step_files, names=("extract",)),
}


@pytest.mark.parametrize(
    "audio",
    ["../../nowhere", "/", ".", "a\0b", "x" * 5000, "audio", "file:///", "~root/x"],
)
@pytest.mark.parametrize("part", [(None, None), (0, 10), (1 << 62, 1 << 62), (0, 1 << 40)])
def test_missing_audio_fails_its_utterance_alone(audio, part, tmp_path):
    (tmp_path / "audio").mkdir()
    (tmp_path / "good").write_bytes(b"0123456789")
    bad = Record("u1", "anna", 1.0, 0.0, "", audio, *part)
    good = Record("u2", "anna", 1.0, 1.0, "", "good", *((0, 10) if part[1] else part))
    fetched = dict(fetch([bad, good], STORE, str(tmp_path), tmp_path / "scratch"))
    assert isinstance(fetched[bad], FetchError)
    assert fetched[good] == b"0123456789"
