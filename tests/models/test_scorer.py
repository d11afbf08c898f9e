import pickle
from types import SimpleNamespace

import pytest
import torch

from toolkit.features.low_frame_rate import stack
from toolkit.features.normalise import Cmvn, GlobalStats
from toolkit.features.shards import CmnState
from toolkit.models.config import LstmConfig
from toolkit.models.lstm import LstmModel
from toolkit.models.scorer import NeuralScorer, save_priors
from toolkit.models.store import ModelError, save_model

COUNTS = torch.tensor([10, 30, 20, 35, 5])


@pytest.fixture
def scorer(tmp_path):
    torch.manual_seed(0)
    model = LstmModel(LstmConfig(12, 5, hidden=8, layers=1, lookahead=1)).eval()
    save_model(tmp_path / "model", model)
    save_priors(tmp_path / "model", COUNTS)
    x = torch.randn(20, 4)
    normaliser = Cmvn(x.double().mean(0), GlobalStats.of(x))
    normaliser.save(tmp_path / "normaliser.json")
    scorer = NeuralScorer(tmp_path / "model", tmp_path / "normaliser.json", tmp_path)
    state = CmnState(50, torch.ones(4).double() * 30)
    scorer.__dict__["store"] = SimpleNamespace(load=lambda u: x, cmn_state=lambda u: state)
    inputs = stack(normaliser.apply(x, state))
    extended = torch.cat([inputs, inputs[-1:]])
    expected = model(extended[None])[0][0].log_softmax(-1) - (COUNTS / 100).log()
    return scorer, expected.detach()


def test_scores_are_posteriors_less_priors_behind_the_speakers_earlier_frames(scorer):
    scorer, expected = scorer
    torch.testing.assert_close(scorer.log_likelihoods("u"), expected)
    assert expected.shape == (7, 5)
    scorer.store.cmn_state = lambda u: None
    assert not torch.allclose(scorer.log_likelihoods("u"), expected, atol=1e-3)


def test_scores_of_selected_pdfs_are_in_the_requested_order(scorer):
    scorer, expected = scorer
    pdfs = torch.tensor([4, 0, 3])
    torch.testing.assert_close(scorer.scores_of("u", pdfs), expected[:, [4, 0, 3]])


def test_a_scorer_pickles_as_paths(scorer):
    scorer, _ = scorer
    fresh = NeuralScorer(scorer.model, scorer.normaliser, scorer.features)
    again = pickle.loads(pickle.dumps(fresh))
    assert (again.model, again.normaliser, again.features) == (
        scorer.model,
        scorer.normaliser,
        scorer.features,
    )
    assert again.frame_shift == 0.03


def test_a_batch_has_the_scores_of_its_utterances(scorer):
    scorer, expected = scorer
    for scores in scorer.batch_log_likelihoods(["u", "u"]):
        torch.testing.assert_close(scores, expected)
        assert scores.device.type == "cpu"


def test_nan_outputs_are_refused(scorer):
    scorer, _ = scorer
    x = scorer.store.load("u").clone()
    x[3, 1] = torch.nan
    scorer.store.load = lambda u: x
    with pytest.raises(ModelError, match="outputs are not finite"):
        scorer.log_likelihoods("u")
