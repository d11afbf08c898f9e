"""Training targets of the far-field teacher, with rounds of realignment (C9)."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("pyroomacoustics")

from recipes.farfield_ssl.run import baseline_ce, teacher_ce
from tests.dummies import setting_of
from toolkit.align.config import CorpusAlignConfig
from toolkit.align.store import AlignmentStore, OffsetAlignments, write_shard
from toolkit.features.config import AugmentConfig
from toolkit.features.normalise import Cmvn, estimate_normaliser
from toolkit.features.shards import FeatureStore
from toolkit.hmm.senones import Senones
from toolkit.models.config import BlstmConfig, LstmConfig
from toolkit.train.config import ChunkConfig, CrossEntropyConfig
from toolkit.train.cross_entropy import train_cross_entropy

BASELINE = CrossEntropyConfig(
    epochs=3,
    initial_rate=2e-2,
    final_rate=2e-3,
    threads=1,
    model=LstmConfig(hidden=16, layers=1, lookahead=1),
    chunks=ChunkConfig(frames=8, chunks_per_batch=4),
)
TEACHER = replace(BASELINE, model=BlstmConfig(hidden=12, layers=1))


class DrawnRun:
    """A run with drawn speech as labelled and held-out far-field speech."""

    jobs, device = 1, "cpu"

    def __init__(self, speech, root, rounds):
        self.root = root
        self.names = {"fbank/val": speech.cepstra, "lang": speech.lang}
        self.config = SimpleNamespace(
            align=CorpusAlignConfig(rounds=rounds),
            baseline=BASELINE,
            teacher=TEACHER,
            augment=AugmentConfig(),
        )
        self.setting = setting_of(self.config)
        for name in ("lda_mllt", "senones", "ali", "ali_val", "fbank"):
            (root / name).mkdir()
        speech.topology.save(root / "lda_mllt/topology.json")
        Senones.monophone(speech.topology.at_low_rate()).save(root / "senones")
        for name in ("ali", "ali_val"):
            write_shard(root / name / "ali.000000.tar", speech.states, [])
        estimate_normaliser(FeatureStore(speech.cepstra)).save(root / "fbank/normaliser.json")
        (root / "fbank/train").symlink_to(speech.cepstra)

    def need(self, name):
        return self.names.get(name, self.root / name)

    def make(self, name):
        path = self.root / name
        path.mkdir(exist_ok=True)
        return path

    def progress(self, done, total):
        pass


def test_the_teacher_is_trained_on_the_baselines_realignment(speech, tmp_path):
    run = DrawnRun(speech, tmp_path, rounds=1)
    baseline_ce(run)
    teacher_ce(run)
    assert not (tmp_path / "teacher_ce/rounds").exists()
    senones = Senones.load(tmp_path / "senones")
    last = tmp_path / "baseline_ce/rounds/0"
    realigned = OffsetAlignments(
        [AlignmentStore(last / f"ali.{offset}") for offset in range(3)], senones
    )
    out, normaliser = tmp_path / "expected", Cmvn.load(tmp_path / "fbank/normaliser.json")
    features = FeatureStore(speech.cepstra)
    valid = features, realigned
    train_cross_entropy(
        features, realigned, normaliser, TEACHER, senones.num_pdfs, out, valid=valid
    )
    name = "model.safetensors"
    assert (tmp_path / "teacher_ce" / name).read_bytes() == (out / name).read_bytes()
