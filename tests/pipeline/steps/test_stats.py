import torch

from toolkit.features.normalise import estimate_normaliser
from toolkit.features.shards import FeatureStore
from toolkit.pipeline.config import StatsConfig
from toolkit.pipeline.steps.stats import Stats, merge_stats, plan_shards


def test_statistics_equal_those_of_the_recipe(shards, here, store, tmp_path):
    out = str(tmp_path / "out")
    results = here.run(Stats(StatsConfig(prior_frames=50)), plan_shards(shards), out)
    refs = [ref for result in results for ref in result.outputs]
    normaliser = merge_stats(reversed(refs), store)
    expected = estimate_normaliser(FeatureStore(tmp_path / "in"), prior_frames=50)
    assert normaliser.prior_frames == 50
    torch.testing.assert_close(normaliser.prior_mean, expected.prior_mean, rtol=1e-13, atol=0)
    torch.testing.assert_close(normaliser.residual.mean, expected.residual.mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(normaliser.residual.std, expected.residual.std, rtol=1e-12, atol=0)
    assert merge_stats(refs, store).to_json() == normaliser.to_json()
