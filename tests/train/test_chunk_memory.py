"""Peak memory of an epoch of chunks must not grow with the corpus."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch

from benchmarks.synthetic import SHARD, NoiseFeatures
from toolkit.environment import peak_bytes
from toolkit.train.batches import ChunkSampler, CorpusBatches, ShardGroups
from toolkit.train.config import ChunkConfig
from toolkit.train.corpus import Corpus

pytestmark = pytest.mark.long
FRAMES = 1200
"""Frames of an utterance: 0.3 MB of features, and as much again when stacked."""


class ConstantTargets:
    def __init__(self, ids):
        self.ids = ids

    def load(self, utterance):
        return torch.zeros(FRAMES, dtype=torch.int64)


def peak_of_an_epoch(utterances):
    """Iterate over all chunks, and return the peak resident size of this process in bytes."""
    features = NoiseFeatures(64, utterances, FRAMES)
    corpus = Corpus([(features, ConstantTargets(features.ids))], features, 10)
    # A window holds one shard, so that no size of corpus is kept as a whole.
    config = ChunkConfig(shuffle_frames=SHARD * FRAMES - 1)
    groups = ShardGroups(corpus, config.shuffle_frames, seed=0)
    source = CorpusBatches(groups, ChunkSampler(config, lookahead=5), seed=0)
    total = sum(batch.frames for batch in source.batches(0))
    assert total >= utterances * FRAMES // 3
    return peak_bytes()


def test_eight_times_the_utterances_take_as_much_memory():
    peaks = []
    for utterances in (100, 800):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            peaks.append(process.submit(peak_of_an_epoch, utterances).result())
    # 700 more utterances, held as features and as stacked frames, are 430 MB.
    assert peaks[1] - peaks[0] < 60e6
