import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.features.config import FrontendConfig
from toolkit.features.shards import FeatureStore
from toolkit.pipeline.config import RepartitionConfig
from toolkit.pipeline.objects import ObjectRef
from toolkit.pipeline.shards import Shard, write_manifests
from toolkit.pipeline.steps.shuffle import Repartition, equal_parts, plan_repartition

FRONTEND = FrontendConfig(num_mel_bins=4)  # as in conftest


@pytest.mark.parametrize("parts", [5, 30])
def test_repartition_makes_near_equal_shards_of_the_same_rows(
    shards, here, store, tmp_path, same_rows, parts
):
    hours = sum(shard.hours for shard in shards)
    config, out = RepartitionConfig(hours / parts), str(tmp_path / "out")
    results = here.run(Repartition(config), plan_repartition(shards, config), out)
    repartitioned = write_manifests(store, out, results, FRONTEND)
    same_rows(tmp_path / "in", out)
    assert FeatureStore(out).ids == FeatureStore(tmp_path / "in").ids
    assert [shard.index for shard in repartitioned] == list(range(parts))
    assert sum(shard.hours for shard in repartitioned) == pytest.approx(hours)
    longest = 2 / 3600  # of an utterance, in hours
    for shard in repartitioned:
        assert abs(shard.hours - hours / parts) < longest + 0.05 * hours / parts
        assert shard.frames == pytest.approx(shard.hours * 360000)


def shard(index, hours):
    about = {"hours": hours, "utterances": 1, "frames": 1, "field": "cuts", "shard": index}
    return Shard(index, {"cuts": ObjectRef(f"c{index}", 1, "x", about)})


def test_shards_of_five_hours_in_pairs_make_two_hours_each():
    plan = plan_repartition([shard(n, 5.01) for n in range(20)], RepartitionConfig(2.0))
    assert [len(partition.inputs) for partition in plan] == [2] * 10
    assert [partition.about["count"] for partition in plan] == [5] * 10
    assert [partition.about["first"] for partition in plan] == list(range(0, 50, 5))


@given(st.lists(st.floats(0.2, 9), min_size=1, max_size=60), st.floats(0.5, 4))
def test_plans_of_any_lengths(lengths, target_hours):
    plan = plan_repartition(
        [shard(n, h) for n, h in enumerate(lengths)], RepartitionConfig(target_hours)
    )
    paths = [ref.path for partition in plan for ref in partition.inputs]
    assert paths == [f"c{n}" for n in range(len(lengths))]
    first = 0
    for partition in plan:
        assert partition.about["first"] == first
        first += partition.about["count"]
        hours = partition.about["hours"] / partition.about["count"]
        assert hours <= 1.5 * target_hours + 1e-9
        if sum(lengths) > target_hours and partition is not plan[-1]:
            assert hours >= 0.4 * target_hours or len(partition.inputs) == 16


@given(st.lists(st.integers(1, 100), min_size=1, max_size=80), st.integers(1, 8))
def test_equal_parts(sizes, count):
    lengths = equal_parts(sizes, count)
    assert sum(lengths) == len(sizes)
    assert len(lengths) == count
    position = 0
    for length in lengths:
        part = sizes[position : position + length]
        position += length
        assert abs(sum(part) - sum(sizes) / count) <= max(sizes)
