import json
from dataclasses import replace

import numpy as np
import pytest

from toolkit.features.shards import FeatureStore
from toolkit.pipeline.config import RepartitionConfig, ShuffleConfig, StoreConfig
from toolkit.pipeline.markers import AttemptStore
from toolkit.pipeline.objects import ObjectRef
from toolkit.pipeline.shards import (
    Shard,
    ShardRows,
    read_shards,
    shards_of,
    tar_rows,
    write_manifests,
    write_rows,
)
from toolkit.pipeline.step import StepError, StepResult, output_path
from toolkit.pipeline.steps.shuffle import Repartition, Shuffle, plan_repartition
from toolkit.pipeline.steps.stats import plan_shards


def test_manifests_round_trip(shards, store, tmp_path):
    listed = read_shards(store, str(tmp_path / "in"))
    assert listed == shards
    lines = (tmp_path / "in" / "shards.jsonl").read_text().splitlines()
    assert str(tmp_path) not in "".join(lines)
    assert json.loads(lines[3])["index"] == 3


def test_manifests_name_the_objects_of_the_results(shards, store, tmp_path):
    """In a store, also for steps that were fused; on a disk, links have the layout's names."""
    for place in (f"memory://{tmp_path.name}", str(tmp_path)):
        attempt = AttemptStore(StoreConfig(), f"{place}/out", tmp_path / "scratch")
        refs = [
            replace(attempt.put(f"{place}/out/fused/shards/x{n}", b"%d" % n), about=ref.about)
            for n, ref in enumerate(ref for shard in shards for ref in shard.inputs)
        ]
        written = write_manifests(store, f"{place}/out/fused", [StepResult(tuple(refs))], None)
        listed = read_shards(store, f"{place}/out/fused")
        contents = [store.get(ref) for shard in listed for ref in shard.inputs]
        assert contents == [b"%d" % number for number in range(len(refs))]
        cut_paths = [shard.objects["cuts"].path for shard in listed]
        if place.startswith("memory"):
            assert cut_paths == [shard.objects["cuts"].path for shard in written]
        else:
            assert cut_paths[1] == f"{place}/out/fused/shards/cuts.000001.jsonl"


def test_lhotse_reads_repartitioned_shards(shards, here, store, tmp_path):
    from lhotse import CutSet

    config = RepartitionConfig(shards[0].hours * 1.7)
    results = here.run(Repartition(config), plan_repartition(shards, config), str(tmp_path / "o"))
    assert results
    cuts = list(CutSet.from_shar(in_dir=tmp_path / "o" / "shards"))
    input_store = FeatureStore(tmp_path / "in")
    assert [cut.id for cut in cuts] == input_store.ids
    for cut in cuts[::37]:
        assert np.array_equal(cut.load_features(), input_store.load(cut.id).numpy())


def test_rows_are_copied_bit_for_bit(shards, tmp_path, store):
    files = {f: store.local(ref, tmp_path) for f, ref in shards[0].objects.items()}
    rows = ShardRows(files)
    assert len(rows) == 40
    copies = write_rows(tmp_path / "copy", 7, rows.fields, rows.read(range(40)))
    for field, path in copies.items():
        assert path.read_bytes() == files[field].read_bytes()
        assert path.name.split(".")[1] == "000007"
    (tmp_path / "one.jsonl").write_bytes(rows.lines[0])
    with pytest.raises(StepError, match="40 utterances"):
        ShardRows({**files, "cuts": tmp_path / "one.jsonl"})
    assert tar_rows(files["features"])[0][0] == 0


def test_shards_without_cuts_are_refused(shards):
    with pytest.raises(StepError, match="no cuts"):
        shards_of([shards[0].objects["features"]])


def test_output_prefixes_depend_on_configuration_and_content(shards):
    step, plan = Shuffle(ShuffleConfig()), plan_shards(shards)
    assert output_path(step, plan, "/x") == output_path(step, plan, "/x/")
    assert output_path(Shuffle(ShuffleConfig(seed=1)), plan, "/x") != output_path(step, plan, "/x")
    assert output_path(step, plan[:-1], "/x") != output_path(step, plan, "/x")

    def move(ref):
        return ObjectRef(f"/y{ref.path}", ref.size, ref.digest, ref.about)

    moved = [Shard(s.index, {f: move(ref) for f, ref in s.objects.items()}) for s in shards]
    assert output_path(step, plan_shards(moved), "/x") == output_path(step, plan, "/x")
