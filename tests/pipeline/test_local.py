import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from sample_steps import Breaking, Environment, Hungry

from toolkit import startup
from toolkit.pipeline.config import ExecutorConfig, StoreConfig
from toolkit.pipeline.executor import ExecutorError, FailedPartitionsError, outputs_digest
from toolkit.pipeline.local import LocalExecutor, Task, attempt, cpu_slots
from toolkit.pipeline.markers import OBJECTS, plain_name
from toolkit.pipeline.step import Partition
from toolkit.startup import BLAS_VARIABLE
from toolkit.storage.files import LinkError


def run(step, partitions, out, workers=2, **settings):
    return LocalExecutor(ExecutorConfig(**settings), cpu_slots(workers)).run(
        step, partitions, str(out)
    )


def stored(folder, pattern="p*/*/*"):
    """Paths of a step's objects by the names that the step chose."""
    paths = sorted(Path(folder, OBJECTS).glob(pattern))
    return {plain_name(str(path), str(folder)): path for path in paths}


def files_below(folder):
    return {name: path.read_bytes() for name, path in stored(folder).items()}


def test_results_are_in_order_and_do_not_depend_on_the_number_of_workers(
    tmp_path, make_step, make_partitions
):
    partitions = make_partitions(5, bad={3})
    one_worker = run(make_step(), partitions, tmp_path / "one", workers=1)
    three_workers = run(make_step(), partitions[::-1], tmp_path / "three", workers=3)
    assert [len(result.outputs) for result in one_worker] == [2, 2, 2, 1, 2]
    assert one_worker[3].failures == (("3-1.bin", "holds\nbad"),)
    assert files_below(tmp_path / "one") == files_below(tmp_path / "three")
    assert files_below(tmp_path / "one")["p001/1-1.bin"] == b"dnoces 1"
    assert outputs_digest(str(tmp_path / "one"), one_worker) == outputs_digest(
        str(tmp_path / "three"), three_workers
    )
    assert (tmp_path / "one/_failures.tsv").read_text() == "p003\t3-1.bin\tholds bad\n"
    summary = json.loads((tmp_path / "one/_summary.json").read_text())
    assert summary["hours"] == 2.5
    assert summary["elements_failed"] == 1
    assert summary["about"]["bytes"] == sum(len(b) for b in files_below(tmp_path / "one").values())
    assert summary["calls"]["get"] == 10  # one per object, and no marker is read
    assert summary["peak_bytes"] > 1e6


def test_finished_partitions_are_reused_unless_something_changed(
    tmp_path, make_step, make_partitions
):
    partitions = make_partitions(3)
    step = make_step()
    first = run(step, partitions, tmp_path / "out", workers=1)
    assert len(make_step.attempts(step)) == 3
    assert run(step, partitions, tmp_path / "out", workers=1) == first
    assert len(make_step.attempts(step)) == 3
    os.unlink(stored(tmp_path / "out")["p001/1-0.bin"])
    (marker,) = tmp_path.glob("out/_done/p002.*.json")
    marker.write_text("{")
    assert run(step, partitions, tmp_path / "out", workers=1) == first
    assert sorted(a[0] for a in make_step.attempts(step)) == [
        "p000", "p001", "p001", "p002", "p002",
    ]  # fmt: skip
    repeated = run(make_step(repeat=2), partitions[:1], tmp_path / "out", workers=1)
    assert repeated[0].outputs[0].size == 2 * first[0].outputs[0].size


def test_the_partition_of_a_killed_worker_is_run_again(tmp_path, make_step, make_partitions):
    partitions = make_partitions(4)
    expected = run(make_step(), partitions, tmp_path / "calm")
    step = make_step(faults={"p001": "kill-once"})
    results = run(step, partitions, tmp_path / "storm")
    assert outputs_digest(str(tmp_path / "storm"), results) == outputs_digest(
        str(tmp_path / "calm"), expected
    )
    assert len(make_step.attempts(step)) == 5
    assert not list(tmp_path.glob("storm/**/*.tmp"))


def test_a_stalled_partition_is_run_again_by_another_worker(tmp_path, make_step, make_partitions):
    step = make_step(faults={"p000": "hang-once"})
    partitions = make_partitions(2)
    results = run(step, partitions, tmp_path / "out", timeout=8.0)
    assert all(len(result.outputs) == 2 for result in results)
    pids = [pid for name, _, pid, _ in make_step.attempts(step) if name == "p000"]
    assert len(set(pids)) == 2


def test_a_poisoned_partition_is_set_aside_and_listed(tmp_path, make_step, make_partitions):
    step = make_step(faults={"p001": "raise", "p002": "kill"})
    with pytest.raises(
        FailedPartitionsError, match=r"2 of 4 partitions failed 2 times.*p001, p002"
    ):
        run(step, make_partitions(4), tmp_path / "out", tries=2)
    summary = json.loads((tmp_path / "out/_summary.json").read_text())
    assert summary["done"] == 2
    reasons = {entry["partition"]: entry["reason"] for entry in summary["poisoned"]}
    assert reasons["p001"] == "RuntimeError: p001 is beyond help, password=***"
    assert reasons["p002"] == "the worker process died (signal 9)"
    assert "misbehave" in summary["poisoned"][0]["trace"]
    assert "hunter2" not in json.dumps(summary)
    assert len(make_step.attempts(step)) == 2 + 2 * 2
    healed = run(make_step(), make_partitions(4), tmp_path / "healed")
    assert len(healed) == 4


def test_every_device_has_a_slot(tmp_path, make_step, make_partitions):
    step = make_step(seconds=0.2)
    executor = LocalExecutor(slots=("cuda:0", "cuda:1"))
    executor.run(step, make_partitions(6), str(tmp_path / "out"))
    by_device = {}
    for _, start, pid, device in make_step.attempts(step):
        by_device.setdefault(device, []).append((int(start), pid))
    assert set(by_device) == {"cuda_0", "cuda_1"}
    for entries in by_device.values():
        starts = sorted(start for start, _ in entries)
        assert all(b - a >= 0.2e9 for a, b in itertools.pairwise(starts))
        assert len({pid for _, pid in entries}) == 1


def flip(path):
    """Change a byte of a file, but neither its size nor its times."""
    content, status = bytearray(Path(path).read_bytes()), os.stat(path)
    content[len(content) // 2] ^= 1
    Path(path).write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_flipped_byte_in_an_intermediate_is_made_again(tmp_path, make_step, make_partitions):
    first, second = make_step(), make_step(name="second")
    lake = make_partitions(3)

    def both():
        results = run(first, lake, tmp_path / "first", workers=1)
        parts = [Partition(p.id, r.outputs) for p, r in zip(lake, results, strict=True)]
        return run(second, parts, tmp_path / "second", workers=1, tries=1)

    damaged = stored(tmp_path / "first")["p001/1-0.bin"] if both() else None
    expected = files_below(tmp_path / "first"), files_below(tmp_path / "second")
    shutil.rmtree(tmp_path / "second")
    flip(damaged)
    with pytest.raises(FailedPartitionsError, match=r"1-0\.bin.*it rebuilds the damaged object"):
        both()
    both()
    assert (files_below(tmp_path / "first"), files_below(tmp_path / "second")) == expected
    assert [a[0] for a in make_step.attempts(first)].count("p001") == 2
    assert len(make_step.attempts(first)) == 4


def test_nothing_is_removed_behind_a_link(tmp_path, make_step, make_partitions):
    step, lake, out = make_step(), make_partitions(2), tmp_path / "out"
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "thesis.txt").write_text("mine")
    out.mkdir()
    (out / OBJECTS).symlink_to(outside)
    with pytest.raises(LinkError, match=f"{OBJECTS}` is a link"):
        run(step, lake, out, workers=1)
    assert [path.name for path in outside.iterdir()] == ["thesis.txt"]


def test_a_damaged_input_from_outside_is_not_removed(tmp_path, make_step, make_partitions):
    lake = make_partitions(1)
    flip(lake[0].inputs[0].path)
    content = Path(lake[0].inputs[0].path).read_bytes()
    with pytest.raises(FailedPartitionsError, match="to try again"):
        run(make_step(), lake, tmp_path / "out", tries=1)
    assert Path(lake[0].inputs[0].path).read_bytes() == content


@pytest.mark.parametrize(("vendor", "expected"), [("AuthenticAMD", "5"), ("GenuineIntel", "")])
def test_workers_have_the_numeric_environment_whatever_the_driver_imported(
    tmp_path, make_partitions, monkeypatch, vendor, expected
):
    """The driver has imported torch already; workers may have other processors."""
    monkeypatch.setattr(startup, "cpu_field", lambda name: vendor)
    monkeypatch.delenv(BLAS_VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "torch", sys.modules.get("torch", startup))
    step = Environment(BLAS_VARIABLE, "OMP_NUM_THREADS")
    run(step, make_partitions(1), tmp_path / "out", workers=1, threads=1)
    variables = {BLAS_VARIABLE: expected, "OMP_NUM_THREADS": "1"}
    assert stored(tmp_path / "out", "*/p000")["p000"].read_text() == repr(variables)
    assert BLAS_VARIABLE not in os.environ


def test_outputs_of_another_numeric_environment_are_made_again(
    tmp_path, make_step, make_partitions, monkeypatch
):
    step, partitions = make_step(), make_partitions(2)
    monkeypatch.setenv(BLAS_VARIABLE, "4")
    run(step, partitions, tmp_path / "out", workers=1)
    (marker,) = tmp_path.glob("out/_done/p000.*.json")
    assert json.loads(marker.read_text())["numeric"][BLAS_VARIABLE] == "4"
    monkeypatch.setenv(BLAS_VARIABLE, "")
    run(step, partitions, tmp_path / "out", workers=1)
    assert sorted(a[0] for a in make_step.attempts(step)) == ["p000", "p000", "p001", "p001"]


def test_equal_ids_are_refused(tmp_path, make_step, make_partitions):
    with pytest.raises(ExecutorError, match="same id"):
        run(make_step(), make_partitions(1) * 2, tmp_path / "out")


DRIVER = """
import sys
sys.path.insert(0, {tests!r})
from sample_steps import Reverse, ReverseConfig
from toolkit.pipeline.local import LocalExecutor
from toolkit.pipeline.objects import ObjectStore
from toolkit.pipeline.step import Partition
if __name__ == "__main__":
    store = ObjectStore()
    refs = [store.put("{base}/lake/%d" % i, b"content %d" % i) for i in range(6)]
    partitions = [Partition("p%d" % i, (ref,)) for i, ref in enumerate(refs)]
    step = Reverse(ReverseConfig(seconds=0.3, ledger="{base}/ledger"))
    LocalExecutor(slots=("cpu", "cpu")).run(step, partitions, "{base}/out")
"""


def test_a_killed_driver_loses_no_finished_partition(tmp_path):
    (tmp_path / "ledger").mkdir()
    script = tmp_path / "driver.py"
    script.write_text(DRIVER.format(tests=str(Path(__file__).parent), base=tmp_path))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    driver = subprocess.Popen([sys.executable, str(script)], env=environment)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("out/_done/*.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    workers = psutil.Process(driver.pid).children(recursive=True)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    _, left = psutil.wait_procs(workers, timeout=20)
    assert not left  # workers do not outlive their driver
    done = len(list(tmp_path.glob("out/_done/*.json")))
    begun = len(list(tmp_path.glob("ledger/*")))
    assert 2 <= done < 6
    subprocess.run([sys.executable, str(script)], env=environment, check=True)
    assert len(list(tmp_path.glob("ledger/*"))) == begun + 6 - done
    assert begun - done <= 2  # those in flight
    contents = {path.name: path.read_bytes() for path in tmp_path.glob("out/_objects/p*/*/*")}
    assert contents == {str(i): b"%d tnetnoc" % i for i in range(6)}
    assert not list(tmp_path.glob("out/**/*.tmp"))


def test_workers_are_reused_by_the_next_step(tmp_path, make_step, make_partitions):
    first, second, third = (make_step(name=name) for name in ("one", "two", "three"))
    with LocalExecutor(slots=cpu_slots(2)) as executor:
        for number, step in enumerate((first, second)):
            executor.run(step, make_partitions(4), str(tmp_path / str(number)))
        pids = [{int(a[2]) for a in make_step.attempts(step)} for step in (first, second)]
        assert len(pids[0] | pids[1]) <= 2
        for pid in pids[1]:  # while they wait
            psutil.Process(pid).kill()
        executor.run(third, make_partitions(4), str(tmp_path / "2"))
        new_pids = {int(a[2]) for a in make_step.attempts(third)}
        assert not new_pids & pids[1]
        assert all(psutil.pid_exists(pid) for pid in new_pids)
    assert not any(psutil.pid_exists(pid) for pid in new_pids)


def test_a_failed_partition_is_run_again_in_another_process(tmp_path, make_partitions):
    run(Breaking(str(tmp_path)), make_partitions(2), tmp_path / "out", workers=1)
    summary = json.loads((tmp_path / "out/_summary.json").read_text())
    assert (summary["done"], summary["attempts_failed"]) == (2, 1)


def test_a_closed_executor_leaves_no_process(tmp_path, make_step, make_partitions):
    executor = LocalExecutor()
    for number in range(2):
        step = make_step(name=f"step{number}")
        executor.run(step, make_partitions(1), str(tmp_path / f"{number}"))
        executor.close()
        ((_, _, pid, *_),) = make_step.attempts(step)
        assert not psutil.pid_exists(int(pid))


def test_a_missing_scratch_folder_is_made(tmp_path, make_step, make_partitions):
    run(make_step(), make_partitions(2), tmp_path / "out", scratch=tmp_path / "disk/scratch")
    assert len(files_below(tmp_path / "out")) == 4


def test_an_unusable_scratch_folder_is_named_as_the_reason(tmp_path, make_step, make_partitions):
    (tmp_path / "file").touch()
    (partition,) = make_partitions(1)
    job = Task(make_step(), partition, str(tmp_path / "out"), StoreConfig(), "cpu", 1, False)
    assert attempt(job, tmp_path / "file").reason.startswith("NotADirectoryError")


@pytest.mark.skipif(sys.platform != "linux", reason="peaks are forgotten through /proc")
def test_memory_is_counted_for_each_partition(tmp_path, make_partitions):
    run(Hungry(), make_partitions(2), tmp_path, workers=1)
    peaks = [json.loads(path.read_text())["run"]["peak_bytes"] for path in marker_paths(tmp_path)]
    assert peaks[0] > 200e6
    assert peaks[1] < peaks[0] - 150e6


def marker_paths(out):
    return sorted((out / "_done").glob("*.json"))
