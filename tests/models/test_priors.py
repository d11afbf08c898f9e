import json

import pytest
import torch

from toolkit.models.scorer import load_log_priors, log_priors, save_priors
from toolkit.models.store import ModelError


def test_priors_are_relative_frequencies(tmp_path):
    counts = torch.tensor([10, 30, 60])
    save_priors(tmp_path, counts)
    loaded = load_log_priors(tmp_path)
    torch.testing.assert_close(loaded.exp(), torch.tensor([0.1, 0.3, 0.6]))
    assert json.loads((tmp_path / "priors.json").read_text()) == {"counts": [10, 30, 60]}


def test_unseen_targets_get_a_hundredth_of_the_mean():
    log_prior = log_priors(torch.tensor([0, 1, 2999, 1000]))
    torch.testing.assert_close(log_prior.exp(), torch.tensor([10, 10, 2999, 1000]) / 4019)


@pytest.mark.parametrize(
    "content",
    [
        *(None, "{", "[]", '{"counts": []}', '{"counts": "x"}'),
        *('{"counts": [1, NaN]}', '{"counts": [1, 1e300]}'),
    ],
)
def test_missing_or_damaged_priors_are_an_error(tmp_path, content):
    if content is not None:
        (tmp_path / "priors.json").write_text(content)
    with pytest.raises(ModelError, match=r"priors\.json"):
        load_log_priors(tmp_path)
