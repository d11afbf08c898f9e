"""Scores of sentences by the LSTM language model, against the network word by word."""

import itertools
import math

import numpy as np
import pytest
import torch

from toolkit.models import neural_lm
from toolkit.models.config import LstmConfig, WordLstmConfig
from toolkit.models.lstm import LstmModel, WordLstm
from toolkit.models.neural_lm import NeuralLm, Shortlist, ShortlistError
from toolkit.models.store import ModelError, save_model

COUNTS = {"A": 4, "B": 3, "C": 2}


@pytest.fixture
def lm():
    torch.manual_seed(0)
    model = WordLstm(WordLstmConfig(vocabulary=5, hidden=6, layers=2, dropout=0.5))
    with torch.no_grad():
        for weights in model.parameters():
            weights.copy_(torch.randn_like(weights))
    return NeuralLm(model, Shortlist.of(COUNTS, ["A", "B", "C", "D"], 2))


def one_by_one(lm, words):
    """Return ln p of every word and of the end, from one pass over the whole sentence."""
    lm.model.eval()
    ids = lm.shortlist.ids(["<s>", *words, "</s>"])
    with torch.inference_mode():
        hidden, _ = lm.model(torch.tensor([ids[:-1]]))
        logits = lm.model.output(hidden)[0].double()
    scores = logits.log_softmax(dim=1)[range(len(ids) - 1), ids[1:]].numpy()
    return scores + np.array([*lm.shortlist.log_shares(words), 0.0])


@pytest.mark.parametrize("at_once", [(1000, 512), (3, 2)])
def test_scores_do_not_depend_on_the_batch(lm, monkeypatch, at_once):
    monkeypatch.setattr(neural_lm, "SENTENCES_AT_ONCE", at_once[0])
    monkeypatch.setattr(neural_lm, "ROWS_OF_LOGITS", at_once[1])
    sentences = [
        *(["A", "B", "A"], ["A", "B"], ["A", "B", "A", "C", "B"], [], ["B"], ["A", "B", "A"]),
        *(["C", "A"], ["D", "A"], ["WHAT"], []),
    ]
    for words, scores in zip(sentences, lm.score(sentences), strict=True):
        assert scores.dtype == np.float64
        np.testing.assert_allclose(scores, one_by_one(lm, words), atol=1e-5)
    assert lm.score([]) == []


def test_common_prefixes_are_computed_once(lm):
    rows = []
    hook = lm.model.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    lm.score([["A", "B", "A"], ["A", "B", "B"], ["A", "A"], ["B"]])
    hook.remove()
    assert rows == [1, 2, 2, 2]


def test_probabilities_add_up_to_one(lm):
    words = [*lm.shortlist.words[3:], "<UNK>"]
    for history in ([], ["A"], ["B", "C", "A"]):
        first = len(history)
        word_scores = lm.score([[*history, word] for word in [*words, "<s>"]])
        total = sum(math.exp(scores[first]) for scores in word_scores)
        total += math.exp(lm.score([history])[0][-1])
        assert total == pytest.approx(1, abs=1e-5)
        # The words that share <UNK> sum to less than it: it stands for other words too.
        shared = lm.score([[*history, word] for word in ("C", "D")])
        unknown = math.exp(word_scores[words.index("<UNK>")][first])
        assert 0 < sum(math.exp(scores[first]) for scores in shared) < unknown


def test_probabilities_of_all_sentences_add_up_to_less_than_one(lm):
    sentences = [list(s) for n in range(6) for s in itertools.product(("A", "B"), repeat=n)]
    sums = [math.exp(scores.sum()) for scores in lm.score(sentences)]
    assert 0 < sum(sums) < 1


def test_save_and_load_round_trip(lm, tmp_path):
    lm.save(tmp_path)
    loaded = NeuralLm.load(tmp_path)
    assert loaded.shortlist == lm.shortlist
    for loaded_scores, scores in zip(
        loaded.score([["A", "C"]]), lm.score([["A", "C"]]), strict=True
    ):
        assert np.array_equal(loaded_scores, scores)
    tied = loaded.model.state_dict()
    assert [name for name, x in tied.items() if x.shape == (5, 6)] == ["output.weight"]


def test_nan_log_probabilities_are_an_error(lm):
    with torch.no_grad():
        lm.model.output.bias.fill_(3e38)
        lm.model.output.weight.fill_(3e38)
    with pytest.raises(ModelError, match="log-probabilities are NaN"):
        lm.score([["A", "B"]])


def test_files_that_do_not_fit_together_are_refused(lm, tmp_path):
    lm.save(tmp_path)
    Shortlist.of(COUNTS, ["A"], 1).save(tmp_path / "shortlist.json")
    with pytest.raises(ModelError, match=r"5 words.*4"):
        NeuralLm.load(tmp_path)
    (tmp_path / "shortlist.json").unlink()
    with pytest.raises(ShortlistError, match="shortlist"):
        NeuralLm.load(tmp_path)
    lm.save(tmp_path)
    save_model(tmp_path, LstmModel(LstmConfig(4, 3, hidden=2, layers=1)))
    with pytest.raises(ModelError, match="no language model"):
        NeuralLm.load(tmp_path)
