"""A small lake and an executor in this process, shared by the tests of the steps."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from lhotse import MonoCut, Recording, SupervisionSegment

from tests.pipeline.synthetic_lake import SyntheticLakeConfig, make_lake
from toolkit.corpus import manifest
from toolkit.features.audio import Decoded
from toolkit.features.config import FrontendConfig
from toolkit.features.shards import FeatureStore, write_shard
from toolkit.pipeline.lake import Record
from toolkit.pipeline.objects import ObjectStore
from toolkit.pipeline.shards import put_shard, write_manifests
from toolkit.pipeline.step import Resources, StepResult
from toolkit.pipeline.steps.extract import make_cut

RATE = 16000
FRONTEND = FrontendConfig(num_mel_bins=4)
FILES = 12
NOISES = 120


@dataclass
class Here:
    """Runs partitions one by one in this process."""

    store: ObjectStore
    scratch: Path

    def run(self, step, partitions, out):
        results = []
        for partition in partitions:
            shutil.rmtree(self.scratch, ignore_errors=True)
            self.scratch.mkdir(parents=True)
            results.append(step.run(partition, self.store, out, Resources("cpu", 1, self.scratch)))
        return results


@pytest.fixture
def store():
    return ObjectStore()


@pytest.fixture
def here(store, tmp_path):
    return Here(store, tmp_path / "scratch")


@pytest.fixture(scope="session")
def cuts(tmp_path_factory):
    """Noise of 6 speakers, 5 utterances each, 0.3 to 0.8 s."""
    folder = tmp_path_factory.mktemp("audio")
    cuts = []
    for number in range(30):
        speaker = f"s{number % 6}"
        name, seconds = f"u{number:02d}", 0.3 + number % 11 * 0.05
        path = folder / f"{name}.wav"
        noise = np.random.default_rng(number).uniform(-0.5, 0.5, round(seconds * RATE))
        soundfile.write(path, noise * (0.1 + number % 6), RATE)
        recording = Recording.from_file(path, recording_id=name)
        supervision = SupervisionSegment(name, name, 0.0, recording.duration, speaker=speaker)
        cuts.append(
            MonoCut(
                name, 0.0, recording.duration, 0,
                supervisions=[supervision], recording=recording,
            )
        )  # fmt: skip
    return cuts


@pytest.fixture
def noises(tmp_path):
    """Six minutes of noise, to be repeated."""
    (tmp_path / "audio").mkdir()
    cuts = []
    for number in range(NOISES):
        name = f"u{number:03d}"
        path = tmp_path / "audio" / f"{name}.wav"
        size = RATE * (2 + number % 4)
        samples = np.random.default_rng(number).standard_normal(size) * 3000
        soundfile.write(path, samples.astype(np.int16), RATE)
        recording, _ = manifest.probe_recording(path, name)
        cuts.append(manifest.make_cut(name, recording, "", f"s{number % 40}"))
    return cuts


@pytest.fixture
def lake(cuts, store, tmp_path):
    """Every cut three times, over two intervals and two buckets."""
    hours = 3 * sum(cut.duration for cut in cuts) / 3600 - 1e-6
    config = SyntheticLakeConfig(hours=hours, days=60, buckets=2)
    return make_lake(cuts, store, str(tmp_path / "lake"), config)


@pytest.fixture
def records(lake, store):
    """All records of the lake by (speaker, time)."""
    lines = [line for ref in lake.objects for line in store.get(ref).splitlines()]
    records = [Record.from_line(line) for line in lines]
    return sorted(records, key=lambda record: (record.speaker, record.time, record.id))


@pytest.fixture
def shards(store, tmp_path):
    """12 shards of 4 speakers and 40 utterances of random features, without any audio."""
    rng, results = np.random.default_rng(0), []
    for index in range(FILES):
        utterances, seconds, frames = [], 0.0, 0
        for number in range(40):
            length = int(rng.integers(20, 200))
            name, speaker = f"{index:02d}-{number:02d}.x/y", f"f{index}s{number // 10}"
            record = Record(name, speaker, length / 100, float(number), "", "a.wav")
            audio = Decoded(torch.zeros(0), 16000, length * 160, 1)
            x = torch.from_numpy(rng.normal(15 + index, 3, (length, 4))).float()
            utterances.append((make_cut(record, audio), speaker, x))
            seconds, frames = seconds + length / 100, frames + length
        folder = tmp_path / "in" / "shards"
        write_shard(folder, index, utterances, FRONTEND)
        files = {
            "cuts": folder / f"cuts.{index:06d}.jsonl",
            "features": folder / f"features.{index:06d}.tar",
        }
        about = {"hours": seconds / 3600, "utterances": 40, "frames": frames}
        results.append(StepResult(put_shard(files, index, about, store, str(tmp_path / "in"))))
    return write_manifests(store, str(tmp_path / "in"), results, FRONTEND)


def contents(folder):
    """Bytes of every file below a folder."""
    folder = Path(folder)
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(name="contents")
def contents_fixture():
    return contents


def everything(path):
    """Features and mean state of every utterance of a store."""
    store = FeatureStore(path)
    return {name: (store.load(name), store.cmn_state(name).sum) for name in store.ids}


@pytest.fixture
def same_rows():
    """Compare two stores by their utterances, whatever the order."""

    def same(first_path, second_path):
        first, second = everything(first_path), everything(second_path)
        assert first.keys() == second.keys()
        for name, (features, state) in first.items():
            assert torch.equal(features, second[name][0])
            assert torch.equal(state, second[name][1])

    return same
