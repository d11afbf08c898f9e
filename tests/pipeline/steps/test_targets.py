import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.ssl.target_store import TargetStore
from toolkit.features.config import FrontendConfig
from toolkit.features.low_frame_rate import low_rate_length, stack
from toolkit.features.shards import FeatureStore
from toolkit.models.config import BlstmConfig, LstmConfig
from toolkit.models.lstm import BlstmModel, LstmModel
from toolkit.models.scorer import log_posteriors
from toolkit.models.store import save_model
from toolkit.pipeline.config import RepartitionConfig, StatsConfig
from toolkit.pipeline.prepare import ShardSet, prepare_targets, repartition
from toolkit.pipeline.steps.stats import Stats, merge_stats, plan_shards
from toolkit.pipeline.steps.targets import Targets, TargetsConfig, Teacher, batches

SENONES = 23


@pytest.fixture(params=["blstm", "lstm"])
def teacher(request, shards, here, store, tmp_path):
    """An untrained model and the shards' own normaliser: (model, normaliser, refs)."""
    torch.manual_seed(0)
    if request.param == "blstm":
        model = BlstmModel(BlstmConfig(12, SENONES, hidden=8, layers=1))
    else:
        model = LstmModel(LstmConfig(12, SENONES, hidden=8, layers=1, lookahead=2))
    model.output.weight.data *= 5
    save_model(tmp_path / "model", model)
    results = here.run(Stats(StatsConfig()), plan_shards(shards), str(tmp_path / "stats"))
    normaliser = merge_stats((ref for r in results for ref in r.outputs), store)
    normaliser.save(tmp_path / "normaliser.json")
    refs = Teacher.at(
        store, tmp_path / "model", tmp_path / "normaliser.json", str(tmp_path / "teacher")
    )
    return model, normaliser, refs


@pytest.fixture
def features(shards, tmp_path):
    return ShardSet(str(tmp_path / "in"), shards, ())


def full(teacher, features, name, offset=0):
    model, normaliser, _ = teacher
    stacked = stack(normaliser.apply(features.load(name), features.cmn_state(name)), offset)
    return log_posteriors(model, [stacked])[0]


@pytest.mark.parametrize("offset", [0, 2])
def test_targets_with_all_senones_equal_the_teachers_posteriors(
    teacher, features, here, store, tmp_path, offset
):
    config = TargetsConfig(teacher[2], k=SENONES, offset=offset, batch_frames=300)
    shard_set = prepare_targets(features, config, here, store, str(tmp_path / "out"))
    targets, utterances = TargetStore(shard_set.url), FeatureStore(features.url)
    assert targets.ids == utterances.ids
    for name in utterances.ids[::17]:
        best = targets.load(name)
        assert len(best) == low_rate_length(utterances.num_frames(name), offset)
        expected = full(teacher, utterances, name, offset).exp()
        rebuilt = best.rebuild(targets.num_senones).softmax(dim=-1)
        torch.testing.assert_close(rebuilt, expected, rtol=2**-7, atol=2**-12)
    assert targets.manifest["tail_mass"] == 0


def test_the_manifest_has_the_tail_mass_and_the_bytes(teacher, features, here, store, tmp_path):
    config = TargetsConfig(teacher[2], k=4)
    shard_set = prepare_targets(features, config, here, store, str(tmp_path / "out"))
    targets, utterances = TargetStore(shard_set.url), FeatureStore(features.url)
    assert targets.manifest["frames"] == sum(
        low_rate_length(utterances.num_frames(name)) for name in utterances.ids
    )
    total = frames = 0.0
    for name in utterances.ids:
        top_mass = full(teacher, utterances, name).exp().topk(4, dim=-1).values.sum(dim=-1)
        total, frames = total + float((1 - top_mass).sum()), frames + len(top_mass)
    assert targets.manifest["tail_mass"] == pytest.approx(total / frames, rel=1e-3)
    sizes = [
        ref.size for shard in shard_set.shards for f, ref in shard.objects.items() if f == "targets"
    ]
    assert targets.manifest["bytes"] == sum(sizes)
    assert targets.manifest["senones"] == SENONES


def test_repartition_keeps_features_and_targets_together(teacher, features, here, store, tmp_path):
    from lhotse import CutSet

    config = TargetsConfig(teacher[2], k=4)
    labelled = prepare_targets(features, config, here, store, str(tmp_path / "out"))
    hours = sum(shard.hours for shard in labelled.shards) / 5
    frontend = FrontendConfig(num_mel_bins=4)
    final = repartition(
        labelled.shards, RepartitionConfig(hours), frontend, here, store, str(tmp_path / "out"),
        targets=labelled.url,
    )  # fmt: skip
    targets, final_targets = TargetStore(labelled.url), TargetStore(final.url)
    assert final_targets.ids == targets.ids == FeatureStore(final.url).ids
    assert len(final.shards) == 5
    for name in targets.ids[::13]:
        assert final_targets.load(name).pack().tobytes() == targets.load(name).pack().tobytes()
    cuts = list(CutSet.from_shar(in_dir=f"{final.url}/shards"))
    assert [cut.id for cut in cuts] == targets.ids
    for cut in cuts[::37]:
        assert np.array_equal(cut.load_targets(), targets.load(cut.id).pack())


def test_targets_are_reproducible(teacher, features, here, store, tmp_path, contents):
    config = TargetsConfig(teacher[2], k=4, batch_frames=100)
    step, plan = Targets(config), plan_shards(features.shards[:3])
    here.run(step, plan, str(tmp_path / "one"))
    here.run(step, plan[::-1], str(tmp_path / "two"))
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_another_teacher_has_another_digest(teacher, store, tmp_path):
    model = teacher[0]
    model.output.bias.data += 1
    save_model(tmp_path / "other", model)
    other_teacher = Teacher.at(store, tmp_path / "other", tmp_path / "normaliser.json")
    assert other_teacher.weights.digest != teacher[2].weights.digest
    assert other_teacher.config.digest == teacher[2].config.digest
    assert json.loads(store.get(other_teacher.config))["kind"] in ("lstm", "blstm")


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 120))
def test_batches_have_every_row_once_within_the_frame_limit(lengths, frames):
    planned = batches(lengths, frames)
    rows = [row for batch in planned for row in batch]
    assert sorted(rows) == [row for row, length in enumerate(lengths) if length]
    for batch in planned:
        longest = max(lengths[row] for row in batch)
        assert len(batch) == 1 or longest * len(batch) <= frames
