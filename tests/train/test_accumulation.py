"""A step on several batches equals the step on one batch of all their rows."""

from dataclasses import replace

import pytest
import torch

from toolkit.models.config import LstmConfig
from toolkit.models.lstm import LstmModel
from toolkit.train.batches import (
    AccumulatedBatches,
    Batch,
    ChunkSampler,
    CorpusBatches,
    MicroBatches,
    ShardGroups,
    ValidationBatches,
)
from toolkit.train.config import ChunkConfig, TrainerConfig
from toolkit.train.corpus import Corpus
from toolkit.train.cross_entropy import cross_entropy
from toolkit.train.errors import TrainingError
from toolkit.train.trainer import Trainer, fit

CONFIG = TrainerConfig(
    epochs=3, initial_rate=1e-2, final_rate=1e-3, accumulate=2, checkpoint_seconds=0, threads=1
)


@pytest.fixture
def corpus(make_stores):
    stores = make_stores([90, 40, 70, 100, 30, 60, 80])
    return Corpus([(stores.features, stores.alignments)], stores.normaliser, 5)


@pytest.fixture
def chunks(corpus):
    sampler = ChunkSampler(ChunkConfig(frames=8, chunks_per_batch=4), 3)
    return CorpusBatches(ShardGroups(corpus, 10_000, 0), sampler, seed=0)


def network(dropout=0.0):
    torch.manual_seed(1)
    return LstmModel(LstmConfig(12, 5, hidden=8, layers=2, lookahead=3, dropout=dropout))


def join_batches(batches):
    names = ("inputs", "targets", "weights", "lengths")
    tensors = {name: torch.cat([getattr(b, name) for b in batches]) for name in names}
    ids, frames = [n for b in batches for n in b.ids], sum(b.frames for b in batches)
    return Batch(ids=ids, frames=frames, **tensors)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_step_on_two_batches_is_the_step_on_one_of_both(chunks, tmp_path, optimizer):
    config = replace(CONFIG, optimizer=optimizer, initial_rate=1e-3)
    batches = list(chunks.batches(0))[-2:]  # the last chunks of utterances, and a smaller batch
    assert batches[0].frames != batches[1].frames
    steps = {}
    for name, batch in (("micro", MicroBatches(tuple(batches))), ("joined", join_batches(batches))):
        model = network()
        trainer = Trainer(model.train(), cross_entropy, chunks, config, tmp_path)
        stats = [trainer.train_step(batch) for _ in range(3)][-1]
        steps[name] = stats, model.state_dict()
    for name, value in steps["joined"][0].items():
        torch.testing.assert_close(steps["micro"][0][name], value)
    for name, value in steps["joined"][1].items():
        torch.testing.assert_close(steps["micro"][1][name], value, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("world_size", [1, 2])
def test_steps_are_the_batches_of_each_rank_in_order(chunks, world_size):
    source = AccumulatedBatches(chunks, 3)
    for rank in range(world_size):
        expected = [b.ids for b in chunks.batches(1, 0, rank, world_size)]
        steps = list(source.batches(1, 0, rank, world_size))
        assert len(steps) == source.num_steps(1, world_size) == -(-len(expected) // 3)
        assert [b.ids for step in steps for b in step.batches] == expected
        late = list(source.batches(1, 1, rank, world_size))
        assert [step.ids for step in late] == [step.ids for step in steps[1:]]


def test_a_run_killed_within_an_epoch_ends_with_the_same_bits(corpus, chunks, tmp_path):
    """Dropout is restored, too: the batches of a step draw one after the other."""

    def train(name, stop=None):
        batches = []

        def objective(model, batch):
            batches.append(batch)
            if len(batches) == stop:
                raise KeyboardInterrupt
            return cross_entropy(model, batch)

        model, valid = network(dropout=0.3), ValidationBatches(corpus, 3)
        fit(model, objective, chunks, CONFIG, tmp_path / name, valid=valid)
        return model.state_dict()

    whole = train("whole")
    for stop in (2, 8, 13):  # two of these within a step
        with pytest.raises(KeyboardInterrupt):
            train(f"killed{stop}", stop)
        for name, value in train(f"killed{stop}").items():
            assert torch.equal(value, whole[name])


def test_the_bad_batch_of_a_step_is_named(chunks, tmp_path):
    batches = list(chunks.batches(0))

    def nan_loss(model, batch):
        loss, stats = cross_entropy(model, batch)
        return loss * (float("nan") if batch.ids == batches[2].ids else 1.0), stats

    with pytest.raises(TrainingError, match="not finite in epoch 1") as error:
        fit(network(), nan_loss, chunks, CONFIG, tmp_path)
    assert f"the batch of {', '.join(sorted(set(batches[2].ids)))}. The batch" in str(error.value)
