"""Selection and labelling of unlabelled speech from the lake."""

from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch
from lhotse import Recording
from lhotse.audio import AudioSource

from local.farfield.sets import write_lake
from recipes.farfield_ssl.config import demo
from recipes.steps.learning import label_with_teacher, prepare_unlabelled, training_shards
from tests.dummies import setting_of
from toolkit.corpus.manifest import make_cut
from toolkit.features.shards import FeatureStore
from toolkit.models.config import LstmConfig
from toolkit.models.lstm import LstmModel
from toolkit.models.store import save_model
from toolkit.pipeline.config import SelectConfig
from toolkit.pipeline.lake import LakeError
from toolkit.pipeline.local import LocalExecutor
from toolkit.pipeline.objects import ObjectStore
from toolkit.pipeline.steps.select import select_records
from toolkit.ssl.unlabelled import TeacherShards
from toolkit.storage.digests import Digests

START = 1_770_000_000.0


def cut(number, seconds, form="flac"):
    source = AudioSource(type="file", channels=[0], source=f"audio/{number}.{form}")
    recording = Recording(f"{number}", [source], 16000, int(16000 * seconds), seconds)
    new_cut = make_cut(f"u{number:03d}", recording, "", f"s{number % 3}")
    new_cut.custom = {"time": START + number}
    return new_cut


@pytest.fixture
def lake(tmp_path):
    """Utterances of 5 s, a few too long or too short to be chosen."""
    cuts = [cut(number, 5.0) for number in range(100)]
    cuts += [cut(100, 65.0), cut(101, 300.0), cut(102, 0.05)]
    return write_lake(cuts, ObjectStore(), str(tmp_path / "lake"))


def test_up_to_selects_every_eligible_utterance(lake, tmp_path):
    config = SelectConfig(hours_per_file=0.05)
    no_store = None  # this process reads no metadata
    files = select_records(
        lake, config, LocalExecutor(), no_store, str(tmp_path / "all"), up_to=True
    ).files
    assert sum(ref.about["utterances"] for ref in files) == 100
    smaller = replace(config, hours=0.1)
    files = select_records(
        lake, smaller, LocalExecutor(), no_store, str(tmp_path / "some"), up_to=True
    ).files
    assert sum(ref.about["hours"] for ref in files) == pytest.approx(0.1, abs=5 / 3600)


def test_an_empty_selection_is_an_error(lake, tmp_path):
    config = SelectConfig(min_duration=400, max_duration=500)
    with pytest.raises(LakeError, match="no utterance lasts 400 to 500 s"):
        select_records(lake, config, LocalExecutor(), None, str(tmp_path / "out"), up_to=True)


def test_missing_hours_of_a_lake_are_estimated(lake, tmp_path):
    objects = tuple(replace(ref, about={**ref.about, "hours": 0.0}) for ref in lake.objects)
    config = SelectConfig(hours_per_file=0.05)
    arguments = (LocalExecutor(), ObjectStore(), str(tmp_path / "out"))
    files = select_records(replace(lake, objects=objects), config, *arguments, up_to=True).files
    assert sum(ref.about["utterances"] for ref in files) == 100


class StoredRun:
    """A run whose steps write to a store that outlives a stage's outputs."""

    jobs, device = 1, "cpu"

    def __init__(self, root, attempt):
        self.config = replace(demo(), storage=str(root / "bucket"))
        self.setting = setting_of(self.config)
        self._root, self._made = root, root / f"attempt-{attempt}"

    def make(self, name):
        (self._made / name).parent.mkdir(parents=True, exist_ok=True)
        return self._made / name

    def need(self, name):
        return self._root / name

    def digest(self, name):
        return Digests(self._root, self._root / "digests.json").content(self._root / name).digest

    def progress(self, done, total):
        pass


def write_noise(folder, attempt=0):
    """A lake of three utterances of noise."""
    (folder / "audio").mkdir(parents=True, exist_ok=True)
    for number in range(3):
        noise = np.random.default_rng(10 * attempt + number).normal(size=80_000)
        samples = (noise * (300 + 3000 * attempt)).clip(-32768, 32767).astype(np.int16)
        soundfile.write(folder / f"audio/{number}.wav", samples, 16000)
    cuts = [cut(number, 5.0, "wav") for number in range(3)]
    write_lake(cuts, ObjectStore(), str(folder))


@pytest.mark.long
def test_changed_audio_of_the_same_utterances_is_extracted_again(tmp_path):
    """The lake's metadata is the same to the byte, and so are the sizes of the audio."""
    folder, means = tmp_path / "rooms/lake", []
    for attempt in range(2):
        write_noise(folder, attempt)
        run = StoredRun(tmp_path, attempt)
        assert prepare_unlabelled(run)["utterances"] == 3
        store = FeatureStore(run.make("unlabelled"))
        means.append({name: float(store.load(name).mean()) for name in store.ids})
    assert all(means[1][name] > means[0][name] + 1 for name in means[0])


@pytest.mark.long
@pytest.mark.parametrize("storage", ["{}/disk", "file://{}/disk", "disk"])
def test_storage_can_be_another_disk(tmp_path, monkeypatch, storage):
    monkeypatch.chdir(tmp_path)
    write_noise(tmp_path / "rooms/lake")
    run = StoredRun(tmp_path, 0)
    run.config = replace(run.config, storage=storage.format(tmp_path))
    run.need = run.make  # what a stage has made, the next one needs
    (run.make("rooms")).symlink_to(tmp_path / "rooms")
    run.digest = lambda name: "0" * 32
    prepare_unlabelled(run)
    inputs = 3 * FeatureStore(run.need("unlabelled")).dimension
    torch.manual_seed(0)
    save_model(run.need("teacher"), LstmModel(LstmConfig(inputs, 7, hidden=8, layers=1)))
    label_counts = label_with_teacher(run, "teacher", run.need("unlabelled/normaliser.json"))
    assert label_counts["utterances"] == 3
    (shards,) = training_shards(run)
    assert len(list(TeacherShards(shards).read(0))) == 3
    assert {path.name.split("-")[0] for path in (tmp_path / "disk").iterdir()} == {
        *("lake", "features", "targets", "teacher")
    }
