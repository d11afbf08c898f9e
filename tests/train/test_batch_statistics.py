from functools import partial

import pytest
import torch
from torch import nn

from toolkit.models.config import TdnnfConfig
from toolkit.models.ctc import MaskedBatchNorm
from toolkit.models.tdnnf import TdnnfModel
from toolkit.train import checkpoints
from toolkit.train.batches import Batch, ChunkSampler, CorpusBatches, ShardGroups
from toolkit.train.checkpoints import update_batch_norm
from toolkit.train.config import ChunkConfig, TrainerConfig
from toolkit.train.corpus import Corpus
from toolkit.train.cross_entropy import cross_entropy
from toolkit.train.trainer import fit


class Network(nn.Module):
    """Two batch normalisations, of either kind, with dropout before each."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.masked = MaskedBatchNorm(4)
        self.second = nn.Linear(4, 5)
        self.plain = nn.BatchNorm1d(5, momentum=0.2)

    def forward(self, x):
        dropped = nn.functional.dropout(self.first(x), 0.5, self.training)
        y = self.second(self.masked(dropped, None).relu())
        dropped = nn.functional.dropout(y, 0.5, self.training)
        return self.plain(dropped.transpose(1, 2))


class Data:
    def __init__(self, inputs):
        self.inputs = inputs
        self.loaded = 0

    def batches(self, epoch, start=0, rank=0, world_size=1):
        assert (epoch, start, rank, world_size) == (2, 0, 0, 1)
        for x in self.inputs:
            self.loaded += 1
            unit_weights = torch.ones(x.shape[:2])
            yield Batch(
                ["a"] * len(x),
                x,
                unit_weights.long(),
                unit_weights,
                unit_weights.sum(1).long(),
                unit_weights.numel(),
            )


def random_batches(batches, seed=0):
    torch.manual_seed(seed)
    return Network().train(), Data([2 + 3 * torch.randn(4, 6, 3) for _ in range(batches)])


def test_statistics_are_the_means_of_those_of_all_batches_without_dropout():
    model, data = random_batches(5)
    model.requires_grad_(False)
    weights = {name: p.clone() for name, p in model.named_parameters()}
    for norm in (model.masked, model.plain):  # of another network
        norm.running_mean.fill_(7)
        norm.running_var.fill_(70)
    update_batch_norm(model, data.batches(2), torch.device("cpu"), lambda b: model(b.inputs))
    assert data.loaded == 5
    assert not any(module.training for module in model.modules())
    assert (model.masked.momentum, model.plain.momentum) == (0.1, 0.2)
    assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters())

    hidden = [model.first(x) for x in data.inputs]
    mean = torch.stack([h.mean(dim=(0, 1)) for h in hidden]).mean(dim=0)
    var = torch.stack([h.flatten(0, 1).var(dim=0) for h in hidden]).mean(dim=0)
    torch.testing.assert_close(model.masked.running_mean, mean)
    torch.testing.assert_close(model.masked.running_var, var)
    # The second one sees what the first makes of each batch by that batch's own statistics.
    scaled = [(h - h.mean((0, 1))) / (h.var((0, 1), unbiased=False) + 1e-5).sqrt() for h in hidden]
    last = [model.second(x.relu()) for x in scaled]
    torch.testing.assert_close(
        model.plain.running_mean, torch.stack([y.mean(dim=(0, 1)) for y in last]).mean(dim=0)
    )


def test_no_more_batches_are_loaded_than_are_used(monkeypatch):
    monkeypatch.setattr(checkpoints, "MAX_BATCHES", 2)
    model, data = random_batches(5)
    update_batch_norm(model, data.batches(2), torch.device("cpu"), lambda b: model(b.inputs))
    assert data.loaded == 2


def test_nothing_is_loaded_for_a_model_without_batch_normalisation():
    data = random_batches(2)[1]
    update_batch_norm(nn.Linear(3, 3), data.batches(2), torch.device("cpu"), None)
    assert data.loaded == 0


def test_momenta_are_restored_after_an_exception():
    model, data = random_batches(2)

    def fail(batch):
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        update_batch_norm(model, data.batches(2), torch.device("cpu"), fail)
    assert (model.masked.momentum, model.plain.momentum) == (0.1, 0.2)
    assert not model.plain.training


@pytest.mark.parametrize("average_epochs", [1, 2])
def test_training_updates_statistics_when_weights_are_averaged(
    make_stores, tmp_path, average_epochs
):
    stores = make_stores([90, 40, 70, 100])
    corpus = Corpus([(stores.features, stores.alignments)], stores.normaliser, 5)
    sampler = ChunkSampler(ChunkConfig(frames=8, chunks_per_batch=4), 0)
    data = CorpusBatches(ShardGroups(corpus, 10_000, 0), sampler, seed=0)
    torch.manual_seed(0)
    model = TdnnfModel(
        TdnnfConfig(12, 5, hidden=8, bottleneck=4, final=4, strides=(1, 0, 3), dropout=0.5)
    )
    config = TrainerConfig(
        epochs=3, initial_rate=1e-2, final_rate=1e-3, average_epochs=average_epochs
    )
    fit(model, cross_entropy, data, config, tmp_path)
    statistics = {name: x.clone() for name, x in model.state_dict().items() if "running" in name}
    update_batch_norm(model, data.batches(2), torch.device("cpu"), partial(cross_entropy, model))
    are_unchanged = all(torch.equal(model.state_dict()[name], x) for name, x in statistics.items())
    assert statistics
    # The last step's weights keep the statistics of the last step.
    assert are_unchanged == (average_epochs == 2)
