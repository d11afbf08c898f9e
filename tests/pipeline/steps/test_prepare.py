import json

import pytest
import torch

from toolkit.features.frontend import FrontendConfig
from toolkit.features.normalise import Normaliser, estimate_normaliser
from toolkit.features.store import FeatureStore
from toolkit.pipeline.attempt_store import plain_name
from toolkit.pipeline.lake import open_lake
from toolkit.pipeline.local import LocalExecutor
from toolkit.pipeline.prepare import PrepareConfig, prepare_features
from toolkit.pipeline.shards import shards_of, write_manifests
from toolkit.pipeline.steps.extract import Extract, ExtractConfig, plan_extract
from toolkit.pipeline.steps.sample import SelectConfig
from toolkit.pipeline.steps.select import select
from toolkit.pipeline.steps.shuffle import Shuffle, ShuffleConfig, plan_shuffle

CONFIG = PrepareConfig(
    SelectConfig(hours=0.01, hours_per_file=0.003), FrontendConfig(num_mel_bins=8)
)


def data(contents):
    """Files of the steps by the names that they have given, without the executor's own."""
    names = {}
    for name in contents:
        out, _, inside = name.partition("/")
        names[name] = f"{out}/{plain_name(f'/{inside}', '')}"
    return {
        given: contents[name]
        for name, given in names.items()
        if not any(part.startswith("_") for part in given.split("/"))
    }


def test_from_lake_to_normalised_features(lake, here, store, tmp_path):
    made, normaliser = prepare_features(lake, CONFIG, here, store, str(tmp_path / "out"))
    found = FeatureStore(made.url)
    assert len(made.shards) == 3
    assert sum(shard.hours for shard in made.shards) == pytest.approx(0.01, rel=0.06)
    expected = estimate_normaliser(found)
    torch.testing.assert_close(normaliser.residual.std, expected.residual.std, rtol=1e-12, atol=0)
    torch.testing.assert_close(normaliser.prior_mean, expected.prior_mean, rtol=1e-13, atol=0)
    stored = Normaliser.load(f"{made.url}/normaliser.json")
    assert stored.to_json() == normaliser.to_json()
    assert made.failures == []


def test_fused_steps_write_what_single_steps_write(lake, here, store, tmp_path, contents):
    base = str(tmp_path / "out")
    made, _ = prepare_features(lake, CONFIG, here, store, base)
    files = select(lake, CONFIG.select, here, store, base)
    extract = Extract(ExtractConfig(lake.url, CONFIG.frontend))
    results = here.run(extract, plan_extract(files), f"{base}/single")
    plan = plan_shuffle(shards_of(ref for r in results for ref in r.outputs), ShuffleConfig())
    shuffled = here.run(Shuffle(ShuffleConfig()), plan, f"{base}/shuffled")
    write_manifests(store, f"{base}/shuffled", shuffled, CONFIG.frontend)
    fused = contents(made.url)
    del fused["normaliser.json"]
    assert fused == contents(f"{base}/shuffled")


def test_processes_and_order_do_not_change_a_byte(lake, here, store, tmp_path, contents):
    class Backwards:
        def run(self, step, partitions, out):
            results = here.run(step, partitions[::-1], out)
            return results[::-1]

    one, _ = prepare_features(lake, CONFIG, Backwards(), store, str(tmp_path / "one"))
    with LocalExecutor(slots=("cpu", "cpu")) as executor:
        two, _ = prepare_features(
            open_lake(store, lake.url), CONFIG, executor, store, str(tmp_path / "two")
        )
    first, second = contents(tmp_path / "one"), data(contents(tmp_path / "two"))
    assert first == second
    assert one.url.removeprefix(str(tmp_path / "one")) == two.url.removeprefix(
        str(tmp_path / "two")
    )
    assert json.loads(first[next(n for n in first if n.endswith("features.json"))])["failed"] == 0
