"""Scheduled learning in two processes."""

import numpy as np

from tests.parallel.tiny import Job, with_method
from tests.ssl.synthetic import CLASSES
from toolkit.align.store import AlignmentStore, write_shard
from toolkit.features.normalise import Cmvn
from toolkit.features.shards import FeatureStore
from toolkit.models.config import LstmConfig
from toolkit.models.lstm import LstmModel
from toolkit.parallel.config import BmufConfig
from toolkit.ssl import scheduled
from toolkit.ssl.config import ScheduledConfig
from toolkit.ssl.scheduled import student_loss, train_student
from toolkit.train.config import ChunkConfig, WholeUtteranceConfig
from toolkit.train.cross_entropy import KBestBatch
from toolkit.train.trainer import Trainer

CONFIG = ScheduledConfig(
    epochs=2,
    hours_per_sub_epoch=None,
    initial_rate=1e-2,
    final_rate=1e-3,
    threads=1,
    model=LstmConfig(hidden=8, layers=1, lookahead=1),
    chunks=ChunkConfig(frames=8, chunks_per_batch=8, shuffle_frames=2000),
    whole_utterances=WholeUtteranceConfig(1, batch_frames=100),
    valid_utterances=2,
    parallel=with_method("bmuf", bmuf=BmufConfig(block=3, optimizer="average")),
)


def train(unlabelled, labelled, normaliser, out):
    """Train one rank; return its last weights and the frames that it learnt from."""
    frames, last = {True: 0, False: 0}, {}

    def count_frames(model, batch):
        if model.training:
            frames[isinstance(batch, KBestBatch)] += batch.frames
        return student_loss(model, batch)

    scheduled.student_loss = count_frames
    store, alignments = FeatureStore(labelled), AlignmentStore(labelled)
    arguments = store, alignments, Cmvn.load(normaliser), CONFIG, CLASSES, out
    select_weights = Trainer.select_weights

    def store_last_weights(trainer):
        selected = select_weights(trainer)
        last.update({name: x.numpy().copy() for name, x in trainer.model.state_dict().items()})
        return selected

    Trainer.select_weights = store_last_weights
    return train_student(unlabelled, *arguments), frames, last


def test_processes_share_both_kinds_of_data(make_synthetic, normaliser, tmp_path):
    labelled, unlabelled = make_synthetic(12, seed=1, prefix="l"), make_synthetic(48, shards=6)
    write_shard(labelled.folder / "ali.000000.tar", labelled.targets, [])
    unlabelled.label(LstmModel(LstmConfig(15, CLASSES, 8, 1, 1)), normaliser, k=3)
    normaliser.save(tmp_path / "normaliser.json")
    arguments = unlabelled.folder, labelled.folder, tmp_path / "normaliser.json", tmp_path / "out"
    results = Job(2, train, *arguments).wait(120)
    assert all(isinstance(result, tuple) for result in results), results
    (first, first_frames, first_weights), (second, second_frames, second_weights) = results
    timed = "frames_per_second"
    assert {k: v for k, v in first.items() if k != timed} == {
        k: v for k, v in second.items() if k != timed
    }
    assert all(np.array_equal(value, second_weights[name]) for name, value in first_weights.items())
    unlabelled_frames = first_frames[True] + second_frames[True]
    total = sum(unlabelled.store.num_frames(name) for name in unlabelled.ids) / 3
    assert abs(unlabelled_frames - total) <= 48  # stacks are rounded up
    assert 0.7 < first_frames[True] / second_frames[True] < 1.4
    assert min(first_frames[False], second_frames[False]) > 0
    assert (tmp_path / "out/model.safetensors").exists()
