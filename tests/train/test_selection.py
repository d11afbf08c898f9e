import logging

import pytest
import torch
from torch import nn

from toolkit.train.checkpoints import EpochWeights


def model_of(value):
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def history_of(scores):
    return [{"epoch": n + 1, "valid_accuracy": score} for n, score in enumerate(scores)]


def run(tmp_path, scores, average_epochs, average_score, prefer_average=False):
    weights = EpochWeights(tmp_path, average_epochs, prefer_average)
    for epoch in range(len(scores)):
        weights.save(model_of(epoch), history_of(scores[: epoch + 1]))
    stored = sorted(int(path.stem[-4:]) for path in tmp_path.iterdir())
    result = model_of(-1)

    def evaluate():
        return {"accuracy": average_score}

    chosen, metrics = weights.select(result, history_of(scores), evaluate)
    return stored, chosen, metrics["accuracy"], result.weight.item()


@pytest.mark.parametrize(
    ("scores", "average_epochs", "average_score", "stored", "score", "weight"),
    [
        ([0.1, 0.5, 0.4, 0.3], 1, None, [1, 3], 0.5, 1.0),  # the best epoch
        ([0.1, 0.5, 0.4, 0.3], 2, 0.6, [1, 2, 3], 0.6, 2.5),  # the average is better
        ([0.1, 0.5, 0.4, 0.3], 2, 0.4, [1, 2, 3], 0.5, 1.0),  # it is worse
        ([0.0, 0.0, 0.0], 1, None, [1, 2], 0.0, 2.0),  # nothing measured: the last
        ([0.0, 0.0, 0.0], 5, 0.0, [0, 1, 2], 0.0, 1.0),  # or the average of what there is
    ],
)
def test_the_best_epoch_or_average_is_selected(
    tmp_path, scores, average_epochs, average_score, stored, score, weight
):
    selection = run(tmp_path, scores, average_epochs, average_score)
    assert (selection[0], selection[2], selection[3]) == (stored, score, weight)


@pytest.mark.parametrize(
    ("average_score", "score", "weight"),
    [(0.31, 0.31, 2.5), (0.29, 0.5, 1.0)],  # above, and below the worse of epochs 2 and 3, 0.3
)
def test_a_preferred_average_beats_the_worst_of_its_epochs(tmp_path, average_score, score, weight):
    selection = run(tmp_path, [0.1, 0.5, 0.4, 0.3], 2, average_score, prefer_average=True)
    assert selection[2:] == (score, weight)


def test_an_epoch_may_be_repeated_with_a_lower_score(tmp_path):
    weights = EpochWeights(tmp_path, 1)
    for epoch, scores in enumerate(([0.1], [0.1, 0.3], [0.1, 0.3, 0.5])):
        weights.save(model_of(epoch), history_of(scores))
    weights.save(model_of(7), history_of([0.1, 0.3, 0.2]))
    result = model_of(-1)
    selected = weights.select(result, history_of([0.1, 0.3, 0.2]), None)
    assert selected == ("epoch 2", {"accuracy": 0.3})
    assert result.weight.item() == 1.0


def test_the_average_is_evaluated(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    weights = EpochWeights(tmp_path, 2)
    for epoch in range(2):
        weights.save(model_of(epoch), history_of([0.0] * (epoch + 1)))
    model = model_of(-1)
    evaluated = []

    def evaluate():
        evaluated.append(model.weight.item())
        return {"accuracy": 1.0}

    description, _ = weights.select(model, history_of([0.0, 0.0]), evaluate)
    assert description == "average of the last 2 epochs"
    assert evaluated == [0.5]
    assert not caplog.messages  # there is no score to tell of
    assert torch.equal(model.weight, model_of(0.5).weight)
