"""A training resumes with the same inputs, and with layers that share weights."""

import pytest
import torch

from toolkit.models.config import LstmConfig
from toolkit.models.lstm import LstmModel
from toolkit.train.batches import ChunkSampler, CorpusBatches, ShardGroups, ValidationBatches
from toolkit.train.config import ChunkConfig, TrainerConfig
from toolkit.train.corpus import Corpus
from toolkit.train.cross_entropy import cross_entropy
from toolkit.train.errors import TrainingDataError, TrainingError
from toolkit.train.trainer import Trainer, fit

CONFIG = TrainerConfig(epochs=2, initial_rate=1e-2, checkpoint_seconds=0, average_epochs=2)


class KilledError(Exception):
    pass


class StopAt:
    """Cross entropy, with a fault in its n-th training batch."""

    def __init__(self, n=None):
        self.n, self.seen = n, 0

    def __call__(self, model, batch):
        self.seen += model.training
        if model.training and self.seen == self.n:
            raise KilledError
        return cross_entropy(model, batch)


@pytest.fixture
def train(make_stores, tmp_path):
    """Train in two phases up to a batch; return the network."""

    def run(name, stop=None, identity=None, shared=False):
        stores = make_stores([90, 40, 70, 100, 30, 60])
        corpus = Corpus([(stores.features, stores.alignments)], stores.normaliser, 5)
        torch.manual_seed(1)
        model = LstmModel(LstmConfig(12, 5, hidden=8, layers=1, lookahead=3))
        if shared:
            model.also = model.output
        sampler = ChunkSampler(ChunkConfig(frames=8, chunks_per_batch=4), 3)
        chunks = CorpusBatches(ShardGroups(corpus, 10_000, 0), sampler, seed=0)
        valid = ValidationBatches(corpus, 3)
        objective = StopAt(stop)
        for number in "12":
            out = tmp_path / name / number
            fit(model, objective, chunks, CONFIG, out, valid=valid, identity=identity)
        return model

    return run


@pytest.mark.parametrize("stop", [3, 8, 14])
def test_layers_may_share_weights(train, stop):
    with pytest.raises(KilledError):
        train("killed", stop, shared=True)
    model, whole = train("killed", shared=True), train("whole", shared=True)
    assert model.also.weight is model.output.weight
    for name, value in whole.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)


def test_a_run_with_another_identity_is_not_resumed(train):
    with pytest.raises(KilledError):
        train("run", 3, {"initial weights": "a"})
    for identity in ({"initial weights": "b"}, None):
        with pytest.raises(TrainingError, match=r"other settings \(initial weights\)"):
            train("run", identity=identity)
    train("run", identity={"initial weights": "a"})


def test_an_epoch_without_a_batch_is_an_error_that_says_why(tmp_path):
    class Nothing:
        def num_steps(self, epoch, world_size=1):
            return 0

    model = LstmModel(LstmConfig(12, 5, hidden=8, layers=1))
    with pytest.raises(TrainingDataError, match="has no batch: the utterances to train on"):
        Trainer(model, cross_entropy, Nothing(), CONFIG, tmp_path)
