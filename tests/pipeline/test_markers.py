import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from sample_steps import Reverse, ReverseConfig

from toolkit.pipeline.config import StoreConfig
from toolkit.pipeline.markers import Marker, all_finished, finished, rebuild_damaged
from toolkit.pipeline.objects import DamagedObjectError, ObjectStore
from toolkit.pipeline.step import Partition, StepResult, work_digest


@pytest.fixture
def done(tmp_path):
    """A partition that is done: step, partition, prefix."""
    store, step, out = ObjectStore(), Reverse(), str(tmp_path / "out")
    partition = Partition("p", (store.put(f"{tmp_path}/in/x", b"x"),), {"hours": 1})
    result = StepResult((store.put(f"{out}/shards/x", b"y"),), (("e", "why"),), {"n": 1})
    Marker(work_digest(step, partition), result, {"seconds": 1.0}).commit(store, out, "p")
    return step, partition, out, result


def test_a_marker_round_trips(done):
    step, partition, out, result = done
    marker = finished(ObjectStore(), step, partition, out)
    assert marker.result == result
    assert marker.run == {"seconds": 1.0}


def test_a_marker_counts_after_moving_with_its_outputs(done, tmp_path):
    step, partition, out, _result = done
    shutil.move(out, tmp_path / "moved")
    marker = finished(ObjectStore(), step, partition, str(tmp_path / "moved"))
    assert [ref.path for ref in marker.result.outputs] == [f"{tmp_path}/moved/shards/x"]
    assert finished(ObjectStore(), step, partition, out) is None


def test_a_marker_does_not_count_after_changes(done, tmp_path):
    step, partition, out, _ = done
    store = ObjectStore()
    ref = partition.inputs[0]
    for changed in (
        replace(partition, inputs=(replace(ref, digest="0"),)),
        replace(partition, inputs=(replace(ref, path=f"{tmp_path}/other"),)),
        replace(partition, inputs=()),
        replace(partition, about={"hours": 2}),
    ):
        assert finished(store, step, changed, out) is None
    assert finished(store, Reverse(ReverseConfig(repeat=2)), partition, out) is None
    elsewhere = replace(partition, inputs=(replace(ref, path="s3://lake/x"),))
    assert finished(store, step, elsewhere, out) is not None  # the same content and name
    store.put(f"{out}/shards/x", b"longer")
    assert finished(store, step, partition, out) is None


def test_all_finished_lists_once_and_reads_only_existing_markers(done):
    step, partition, out, _ = done
    new_partitions = [replace(partition, id=f"q{i}") for i in range(5)]
    markers, counts = all_finished(step, [*new_partitions, partition], out, StoreConfig())
    assert set(markers) == {"p"}
    assert (counts.list, counts.get, counts.head, counts.put) == (1, 1, 1, 0)


@pytest.mark.parametrize("name", ["", "a/b", "a?b", "a#"])
def test_ids_must_fit_names(name):
    with pytest.raises(ValueError, match="partition id"):
        Partition(name, ())


def test_outputs_that_the_driver_finds_damaged_are_made_again(done, tmp_path):
    step, partition, out, result = done
    store = ObjectStore()
    (output,) = result.outputs
    store.put(output.path, b"z")
    with (
        pytest.raises(DamagedObjectError, match=r"shards/x.*rebuilds the damaged object"),
        rebuild_damaged(store),
    ):
        store.get(output)
    assert finished(store, step, partition, out) is None
    assert store.get(output.path) == b"z"
    ref = replace(partition.inputs[0], digest="0")
    with pytest.raises(DamagedObjectError) as caught, rebuild_damaged(store):
        store.get(ref)
    assert "rebuilds the damaged object" not in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).path == ref.path


def test_a_marker_in_which_a_digit_has_changed_does_not_count(done):
    step, partition, out, _ = done
    (path,) = Path(out).glob("_done/*")
    path.write_text(
        path.read_text().replace('"hours": 1', '"hours": 7').replace('"n": 1', '"n": 2')
    )
    assert all_finished(step, [partition], out, StoreConfig())[0] == {}
    assert not path.exists()  # it would be in the way


def test_a_marker_that_arrives_damaged_is_read_again(done, monkeypatch):
    step, partition, out, result = done
    get, calls = ObjectStore.get, []

    def damaged_at_first(store, path):
        calls.append(path)
        return get(store, path)[: 50 if len(calls) == 1 else None]

    monkeypatch.setattr(ObjectStore, "get", damaged_at_first)
    assert finished(ObjectStore(), step, partition, out).result == result
