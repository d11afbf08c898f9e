"""The loss against brute force, and its estimate against its expectation."""

import itertools
import math

import pytest
import torch

from toolkit.models.config import WordLstmConfig
from toolkit.models.lstm import WordLstm
from toolkit.models.neural_lm import NeuralLm, Shortlist
from toolkit.train.language_model import (
    SampledSoftmaxLoss,
    SentenceBatches,
    Sentences,
    sampled_losses,
)

WORDS = ["A", "B", "C"]
SENTENCES = [["A", "B", "C"], ["C"], [], ["B", "B", "A", "A"]]


@pytest.fixture
def lm():
    torch.manual_seed(2)
    model = WordLstm(WordLstmConfig(vocabulary=6, hidden=4, layers=1, dropout=0.0))
    return NeuralLm(model, Shortlist.of(dict.fromkeys(WORDS, 1), WORDS, None))


@pytest.fixture
def batch(lm):
    sentences = Sentences.of(map(lm.shortlist.ids, SENTENCES))
    (batch,) = SentenceBatches(sentences, 1000, seed=0)
    return batch


@pytest.mark.parametrize("training", [True, False])
def test_the_loss_is_that_of_the_sentences_one_by_one(lm, batch, training):
    brute = 0.0
    with torch.no_grad():
        for words in SENTENCES:
            ids = lm.shortlist.ids(["<s>", *words, "</s>"])
            for end in range(1, len(ids)):
                hidden, _ = lm.model(torch.tensor([ids[:end]]))
                logits = lm.model.output(hidden[0, -1]).double()
                brute -= math.log(logits[ids[end]].exp() / logits.exp().sum())
    lm.model.train(training)
    loss, stats = SampledSoftmaxLoss(torch.ones(6), samples=6)(lm.model, batch)
    assert stats["weight"] == sum(len(words) + 1 for words in SENTENCES)
    assert loss.item() == pytest.approx(brute, rel=1e-5)
    scored = -sum(scores.sum() for scores in lm.score(SENTENCES))
    assert scored == pytest.approx(brute, rel=1e-5)


def test_padding_does_not_count(lm, batch):
    objective = SampledSoftmaxLoss(torch.ones(6), samples=6)
    loss, _ = objective(lm.model, batch)
    padded = batch.weights == 0
    assert padded.any()
    batch.inputs[padded], batch.targets[padded] = 4, 5
    assert objective(lm.model, batch)[0].item() == pytest.approx(loss.item(), rel=1e-6)


def test_the_denominator_of_a_sample_is_unbiased(lm):
    """Averaged over all samples of two words, weighted by their probability."""
    hidden, targets = torch.randn(3, 4).double(), torch.tensor([1, 3, 5])
    model = lm.model.double()
    noise = torch.tensor([0.1, 0.2, 0.3, 0.1, 0.1, 0.2]).double()
    logits = model.output(hidden)
    target_logits = logits[range(3), targets]
    mean = torch.zeros(3, dtype=torch.float64)
    for drawn in itertools.product(range(6), repeat=2):
        losses = sampled_losses(model, hidden, targets, torch.tensor(drawn), noise)
        mean += noise[list(drawn)].prod() * (losses + target_logits).exp()
    torch.testing.assert_close(mean, logits.exp().sum(dim=1), rtol=1e-5, atol=1e-5)


def test_a_large_sample_is_near_the_exact_loss_and_held_out_text_is_exact(lm, batch):
    counts = torch.tensor([0, 4, 0, 3, 3, 1])
    exact, _ = SampledSoftmaxLoss(counts, samples=6)(lm.model, batch)
    sampled = SampledSoftmaxLoss(counts, samples=5)
    lm.model.eval()
    assert sampled(lm.model, batch)[0].item() == pytest.approx(exact.item(), rel=1e-6)
    lm.model.train()
    torch.manual_seed(0)
    losses = torch.stack([sampled(lm.model, batch)[0] for _ in range(300)])
    assert losses.std() > 0.01
    assert losses.mean().item() == pytest.approx(exact.item(), rel=0.05)
    (losses[0] / batch.frames).backward()
    assert lm.model.output.weight.grad.isfinite().all()
