"""The LSTM that predicts words: padding, states, exact log-likelihoods."""

import pytest
import torch

from toolkit.models.config import WordLstmConfig
from toolkit.models.lstm import WordLstm


@pytest.fixture
def model():
    torch.manual_seed(1)
    return WordLstm(WordLstmConfig(vocabulary=7, hidden=4, layers=2, dropout=0.4)).eval()


def test_padding_on_the_right_changes_nothing(model):
    words = torch.tensor([[0, 4, 5, 6], [0, 3, 1, 1]])
    logits, _ = model(words[1:, :2])
    batch_logits, _ = model(words)
    torch.testing.assert_close(batch_logits[1:, :2], logits)


def test_it_continues_from_a_state(model):
    words = torch.randint(7, (3, 6))
    whole, last = model(words)
    first, state = model(words[:, :2])
    second, end = model(words[:, 2:], state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole)
    torch.testing.assert_close(end, last)


def test_word_vectors_are_the_weights_of_the_softmax(model):
    hidden, _ = model(torch.tensor([[2, 3]]))
    (gradient,) = torch.autograd.grad(hidden.sum(), model.output.weight)
    assert (gradient.abs().sum(dim=1) > 0).tolist() == [False, False, True, True, *[False] * 3]


def test_dropout_is_active_in_training_only(model):
    words = torch.tensor([[0, 4, 5]])
    assert torch.equal(model(words)[0], model(words)[0])
    model.train()
    torch.manual_seed(0)
    assert not torch.equal(model(words)[0], model(words)[0])


@pytest.mark.parametrize("change", [{"vocabulary": 0}, {"layers": 0}, {"dropout": 1.0}])
def test_impossible_sizes_are_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        WordLstmConfig(**change)
