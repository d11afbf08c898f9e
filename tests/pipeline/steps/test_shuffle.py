import numpy as np
import torch

from tests.pipeline.mixing import mixing
from toolkit.features.config import FrontendConfig
from toolkit.features.shards import FeatureStore
from toolkit.pipeline.config import ShuffleConfig
from toolkit.pipeline.shards import write_manifests
from toolkit.pipeline.steps.shuffle import Shuffle, file_order, plan_shuffle

FRONTEND = FrontendConfig(num_mel_bins=4)  # as in conftest
FILES = 12


def test_shuffle_moves_whole_files_and_utterances_within(shards, here, store, tmp_path, same_rows):
    config = ShuffleConfig(seed=3)
    out = str(tmp_path / "out")
    results = here.run(Shuffle(config), plan_shuffle(shards, config), out)
    write_manifests(store, out, results, FRONTEND)
    before, after = FeatureStore(tmp_path / "in"), FeatureStore(out)
    same_rows(tmp_path / "in", out)
    places = file_order(3, FILES)
    assert sorted(places) == list(range(FILES))
    assert places != list(range(FILES))
    orders = []
    for old, new in enumerate(places):
        assert sorted(after.shards[new]) == sorted(before.shards[old])
        orders.append([before.shards[old].index(name) for name in after.shards[new]])
    assert len({tuple(order) for order in orders}) == FILES
    assert all(order != sorted(order) for order in orders)
    # positions after the shuffle are uniform: of 12 draws at the mean 19.5, deviation 11.5
    assert abs(np.mean([order[0] for order in orders]) - 19.5) < 4 * 11.5 / FILES**0.5
    speakers = [after.speaker(name) for name in after.ids]
    unshuffled = [before.speaker(name) for name in before.ids]
    assert mixing(speakers, 10).distance < 0.4 < mixing(unshuffled, 10).distance


def test_a_shuffled_store_has_the_same_speaker_sums(shards, here, store, tmp_path):
    config, out = ShuffleConfig(), str(tmp_path / "out")
    results = here.run(Shuffle(config), plan_shuffle(shards, config), out)
    write_manifests(store, out, results, FRONTEND)
    before, after = FeatureStore(tmp_path / "in"), FeatureStore(out)
    for speaker in before.speakers:
        assert torch.equal(before.speaker_total(speaker).sum, after.speaker_total(speaker).sum)
