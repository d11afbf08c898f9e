from toolkit.pipeline.config import ExecutorConfig, StoreConfig
from toolkit.pipeline.local import LocalExecutor, Task, attempt
from toolkit.pipeline.markers import OBJECTS, AttemptStore, MarkerError, marker_path, plain_name
from toolkit.pipeline.objects import ObjectStore


def run(step, partitions, out):
    return LocalExecutor(ExecutorConfig()).run(step, partitions, str(out))


def objects(out):
    return sorted(ref.path for ref in ObjectStore().list(f"{out}/{OBJECTS}"))


def test_only_objects_that_no_marker_names_are_removed(tmp_path, make_step, make_partitions):
    out, partitions = str(tmp_path / "out"), make_partitions(3)
    run(make_step(), partitions, out)
    paths = objects(out)
    ObjectStore().put(f"{out}/own", b"a user's")
    lost = AttemptStore(StoreConfig(), out, tmp_path / "scratch")
    lost.put(f"{out}/p000/0-0.bin", b"of an attempt that was killed")
    assert len(objects(out)) == len(paths) + 1
    (result,) = run(make_step(repeat=2), partitions[:1], out)
    result_paths = {ref.path for ref in result.outputs}
    assert objects(out) == sorted(
        result_paths | {path for path in paths if not plain_name(path, out).startswith("p000/")}
    )
    assert len(list(tmp_path.glob("out/_done/*"))) == 3
    assert not [path for path in tmp_path.glob("out/_objects/*/*") if not list(path.iterdir())]
    assert (tmp_path / "out/own").exists()
    assert run(make_step(), partitions[1:], out)[0].outputs[0].path in paths


def test_a_run_in_another_numeric_environment_keeps_its_objects(
    tmp_path, make_step, make_partitions
):
    """Another number of threads may change the last bits, and both runs may be active."""
    out, partitions, step = str(tmp_path / "out"), make_partitions(3), make_step()
    two_threads = LocalExecutor(ExecutorConfig(threads=2))
    begun = two_threads.run(step, partitions[:2], out)
    run(step, partitions, out)
    done = len(make_step.attempts(step))
    assert LocalExecutor(ExecutorConfig(threads=2)).run(step, partitions[:2], out) == begun
    assert len(make_step.attempts(step)) == done


def test_plain_names_below_a_prefix_and_elsewhere(tmp_path):
    out = str(tmp_path / "out")
    store = AttemptStore(StoreConfig(), out, tmp_path / "out" / "scratch")
    for name in ("x", "a/x", "a/b/x"):
        ref = store.put(f"{out}/{name}", b"content")
        assert ref.path.endswith(f"/{ref.digest}/x")
        assert plain_name(ref.path, out) == name
    for path in (f"{out}/scratch/x", f"{tmp_path}/x", f"{out}er/x"):
        assert store.put(path, b"content").path == path


def test_an_unreadable_marker_is_no_result(tmp_path, make_step, make_partitions):
    step, (partition,), out = make_step(), make_partitions(1), str(tmp_path / "out")
    job = Task(step, partition, out, StoreConfig(), "cpu", 1, False, {})
    ObjectStore().put(marker_path(step, partition, out, {}), b"{")
    outcome = attempt(job, tmp_path / "scratch")
    assert outcome.result is None
    assert MarkerError.__name__ in outcome.reason
    assert "same command" in outcome.reason
    numeric = LocalExecutor().numeric
    ObjectStore().put(marker_path(step, partition, out, numeric), b"{")
    assert run(step, [partition], out)[0].outputs
