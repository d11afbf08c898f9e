"""Cross entropy of the next word, over all words or a sample of them."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from toolkit.models.word_lstm import WordLstm
from toolkit.train.batches import Batch

SMOOTHING = 0.75
"""Exponent of the counts with which words are drawn: rare words are drawn more often than they
occur."""


class NextWord:
    """Minus the log-probability of the words, summed; `stats` holds `weight`, their number.

    With more than `samples` words in the vocabulary the softmax is estimated in training: its
    denominator is the word's own exponential plus an unbiased estimate of all others', by words
    drawn once for the batch. The drawn words' exponentials are divided by how often the word is
    expected among them. Held-out text is always scored exactly.

    Args:
      counts: [V] of the words in the text.
      samples: words drawn for a batch.
    """

    def __init__(self, counts: Tensor, samples: int) -> None:
        self._samples = samples
        noise = (counts.double() + 1) ** SMOOTHING
        self._noise = (noise / noise.sum()).float()

    def __call__(self, model: WordLstm, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """See `toolkit.train.objectives.Objective`."""
        hidden, _ = model(batch.inputs)
        hidden, targets = hidden.flatten(0, 1), batch.targets.flatten()
        weights = batch.weights.flatten()
        if model.training and self._samples < len(self._noise):
            self._noise = self._noise.to(hidden.device)
            drawn = torch.multinomial(self._noise, self._samples, replacement=True)
            losses = sampled_losses(model, hidden, targets, drawn, self._noise)
        else:
            logits = model.output(hidden).float()
            losses = functional.cross_entropy(logits, targets, reduction="none")
        return (losses * weights).sum(), {"weight": weights.sum()}


def sampled_losses(
    model: WordLstm, hidden: Tensor, targets: Tensor, drawn: Tensor, noise: Tensor
) -> Tensor:
    """Estimate minus the log-probability of each target.

    Args:
      model: whose output layer is used.
      hidden: [N, H].
      targets: [N] words.
      drawn: [S] words drawn independently from `noise`.
      noise: [V] probabilities.
    """
    weight, bias = model.output.weight, model.output.bias
    own = (hidden * functional.embedding(targets, weight)).sum(dim=1) + bias[targets]
    expected = noise[drawn].log() + math.log(len(drawn))
    others = torch.addmm(bias[drawn] - expected, hidden, functional.embedding(drawn, weight).t())
    others = others.float().masked_fill(targets[:, None] == drawn, -math.inf)
    return torch.logaddexp(own.float(), torch.logsumexp(others, dim=1)) - own.float()
