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


def test_shuffle_permutes_files_and_utterances_within_files(
    shards, here, store, tmp_path, same_rows
):
    config = ShuffleConfig(seed=3)
    out = str(tmp_path / "out")
    results = here.run(Shuffle(config), plan_shuffle(shards, config), out)
    write_manifests(store, out, results, FRONTEND)
    input_store, shuffled_store = FeatureStore(tmp_path / "in"), FeatureStore(out)
    same_rows(tmp_path / "in", out)
    places = file_order(3, FILES)
    assert sorted(places) == list(range(FILES))
    assert places != list(range(FILES))
    orders = []
    for old, new in enumerate(places):
        assert sorted(shuffled_store.shards[new]) == sorted(input_store.shards[old])
        orders.append([input_store.shards[old].index(name) for name in shuffled_store.shards[new]])
    assert len({tuple(order) for order in orders}) == FILES
    assert all(order != sorted(order) for order in orders)
    # positions after the shuffle are uniform: of 12 draws at the mean 19.5, deviation 11.5
    assert abs(np.mean([order[0] for order in orders]) - 19.5) < 4 * 11.5 / FILES**0.5
    speakers = [shuffled_store.speaker(name) for name in shuffled_store.ids]
    unshuffled = [input_store.speaker(name) for name in input_store.ids]
    assert mixing(speakers, 10).distance < 0.4 < mixing(unshuffled, 10).distance


def test_a_shuffled_store_has_the_same_speaker_sums(shards, here, store, tmp_path):
    config, out = ShuffleConfig(), str(tmp_path / "out")
    results = here.run(Shuffle(config), plan_shuffle(shards, config), out)
    write_manifests(store, out, results, FRONTEND)
    input_store, shuffled_store = FeatureStore(tmp_path / "in"), FeatureStore(out)
    for speaker in input_store.speakers:
        assert torch.equal(
            input_store.speaker_total(speaker).sum, shuffled_store.speaker_total(speaker).sum
        )
