import io
import json
import shutil
import tarfile

import numpy as np
import pytest
import torch

from tests.ssl.target_store import TargetStore
from toolkit.features.low_frame_rate import low_rate_length
from toolkit.models.config import LstmConfig
from toolkit.models.lstm import LstmModel
from toolkit.ssl.config import SelectionConfig
from toolkit.ssl.targets import TargetError
from toolkit.ssl.unlabelled import (
    Selection,
    TeacherShards,
    score_threshold,
    select,
    selection_score,
)


@pytest.fixture(scope="module")
def synthetic(make_synthetic, normaliser):
    """22 utterances in 3 shards with an untrained teacher's targets."""
    data = make_synthetic(22, shards=3)
    torch.manual_seed(0)
    model = LstmModel(LstmConfig(15, 6, hidden=8, layers=1, lookahead=1))
    model.output.weight.data *= 20
    data.label(model, normaliser, k=3, offset=1)
    return data


def test_teacher_shards_hold_the_contents_of_the_stores(synthetic):
    shards, store, targets = (
        TeacherShards(synthetic.folder),
        synthetic.store,
        TargetStore(synthetic.folder),
    )
    assert (shards.num_senones, shards.offset, shards.dimension) == (6, 1, 5)
    assert shards.frames_per_hour == 360_000
    for number, names in enumerate(store.shards):
        assert shards.utterances[number] == len(names)
        assert shards.frames[number] == sum(map(store.num_frames, names))
        examples = list(shards.read(number))
        assert [example.name for example in examples] == names
        for example in examples:
            assert torch.equal(example.features, store.load(example.name))
            state = store.cmn_state(example.name)
            assert example.state.frames == state.frames
            assert torch.equal(example.state.sum, state.sum)
            best = targets.load(example.name)
            assert example.targets.pack().tobytes() == best.pack().tobytes()
            assert len(best) == low_rate_length(len(example.features), 1)


def test_ranks_share_a_shard(synthetic):
    shards = TeacherShards(synthetic.folder)
    parts = [[e.name for e in shards.read(0, rank, 3)] for rank in range(3)]
    assert sorted(name for part in parts for name in part) == sorted(synthetic.store.shards[0])
    assert {len(part) for part in parts} <= {2, 3}


def test_faults_name_the_shard_and_the_utterance(synthetic, tmp_path, truncate):
    with pytest.raises(TargetError, match="not a folder of targets"):
        TeacherShards(tmp_path)
    copy = shutil.copytree(synthetic.folder, tmp_path / "copy")
    truncate(copy / "shards/targets.000001.tar")
    with pytest.raises(TargetError, match=r"shard 1 of .*copy cannot be read"):
        list(TeacherShards(copy).read(1))
    assert list(TeacherShards(copy).read(0))
    manifest = json.loads((copy / "targets.json").read_text())
    (copy / "targets.json").write_text(json.dumps(manifest | {"offset": 2, "senones": 6}))
    with pytest.raises(TargetError, match=r"u\d+: the \d+ frames .* match the \d+ raw frames"):
        list(TeacherShards(copy).read(0))
    (copy / "targets.json").write_text(json.dumps(manifest | {"senones": 2}))
    with pytest.raises(TargetError, match=r"u000: the targets contain senone \d, but .* only 2"):
        list(TeacherShards(copy).read(0))
    with tarfile.open(copy / "shards/targets.000002.tar", "w") as tar:  # of another kind
        for name in synthetic.store.shards[2]:
            array = io.BytesIO()
            np.save(array, np.zeros((3, 4), np.float32))
            for suffix, content in (("npy", array.getvalue()), ("json", b"{}")):
                member = tarfile.TarInfo(f"{name}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    with pytest.raises(TargetError, match=r"shard 2 of .*float32 and shape \(3, 4\) cannot"):
        list(TeacherShards(copy).read(2))
    (copy / "features.json").unlink()
    with pytest.raises(TargetError, match="features with targets"):
        TeacherShards(copy)


def test_the_confidence_is_the_mean_of_the_best_posteriors(synthetic):
    example = next(TeacherShards(synthetic.folder).read(0))
    logits = example.targets.logits.astype(np.float64)
    assert example.confidence == pytest.approx(np.exp(logits).max(axis=1).mean())
    assert 1 / 6 < example.confidence < 1


@pytest.mark.parametrize("by", ["uniform", "confidence"])
def test_selection_takes_the_highest_scores_until_the_share_is_reached(synthetic, tmp_path, by):
    shards, config = TeacherShards(synthetic.folder), SelectionConfig(by, share=0.4)
    chosen = select(shards, config)
    rows = [(number, e) for number in range(3) for e in shards.read(number)]
    rows.sort(key=lambda row: -selection_score(config, row[1]))
    frames_wanted, selected = 0.4 * shards.frames.sum(), []
    while sum(len(e.features) for _, e in selected) < frames_wanted:
        selected.append(rows[len(selected)])
    assert {e.name for _, e in rows if chosen.takes(e)} == {e.name for _, e in selected}
    for number in range(3):
        num_frames = [len(e.features) for shard, e in selected if shard == number]
        assert (chosen.frames[number], chosen.utterances[number]) == (
            sum(num_frames),
            len(num_frames),
        )
    if by == "confidence":
        confidences = [e.confidence for _, e in rows[len(selected) :]]
        assert min(e.confidence for _, e in selected) > max(confidences)
    chosen.save(tmp_path / "selection.json")
    again = Selection.load(tmp_path / "selection.json")
    assert (again.config, again.threshold) == (config, chosen.threshold)
    assert np.array_equal(again.frames, chosen.frames)
    for damage in ('{"config', "{}"):
        (tmp_path / "selection.json").write_text(damage)
        with pytest.raises(TargetError, match=r"selection.json: damaged .*remove it"):
            Selection.load(tmp_path / "selection.json")


def test_a_full_share_is_selected_without_reading(synthetic):
    shards = TeacherShards(synthetic.folder)
    shards.read = None
    chosen = select(shards, SelectionConfig())
    assert np.array_equal(chosen.frames, shards.frames)


def test_the_score_threshold_is_that_of_the_last_selected_utterance():
    assert score_threshold([0.1, 0.9, 0.5], [10, 10, 10], 10) == 0.9
    assert score_threshold([0.1, 0.9, 0.5], [10, 10, 10], 11) == 0.5
    assert score_threshold([0.1, 0.9, 0.5], [10, 10, 10], 99) == 0.1


@pytest.mark.parametrize("wrong", [{"share": 0.0}, {"share": 1.1}, {"by": "hand"}])
def test_impossible_selections_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SelectionConfig(**wrong)
