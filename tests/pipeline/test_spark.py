import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time

import psutil
import pytest

pytest.importorskip("pyspark")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java", allow_module_level=True)

import itertools
from pathlib import Path

from sample_steps import ReverseConfig, Unlike

from toolkit.pipeline.config import ExecutorConfig, SparkConfig
from toolkit.pipeline.executor import FailedPartitionsError, outputs_digest
from toolkit.pipeline.local import LocalExecutor
from toolkit.pipeline.markers import OBJECTS
from toolkit.pipeline.spark import SparkExecutor

STEPS = str(Path(__file__).with_name("sample_steps.py"))


@pytest.fixture
def spark():
    """spark(config, **conf): an executor on `local-cluster[2,1,1024]`; one at a time."""
    executors = []

    def start(config=None, **settings):
        settings = {"master": "local-cluster[2,1,1024]", "packages": (STEPS,), **settings}
        executors.append(SparkExecutor(config, SparkConfig(executor_memory="512m", **settings)))
        return executors[-1]

    yield start
    for executor in executors:
        executor.close()


def test_spark_gives_the_digests_of_local_processes_through_kills_and_poison(
    tmp_path, spark, s3, make_step, make_partitions
):
    partitions = make_partitions(6, bad={2})
    local = LocalExecutor().run(make_step(), partitions, str(tmp_path / "local"))
    expected = outputs_digest(str(tmp_path / "local"), local)

    executor = spark(ExecutorConfig(store=s3.config, tries=2, timeout=20.0))
    faults = {"p001": "kill-executor-once", "p003": "kill-once", "p004": "raise-once"}
    step = make_step(faults=faults)
    results = executor.run(step, partitions, str(tmp_path / "spark"))
    assert outputs_digest(str(tmp_path / "spark"), results) == expected
    assert [result.failures for result in results] == [result.failures for result in local]
    # One more attempt per fault; with the executor goes what else was in flight: at most one.
    begun = len(make_step.attempts(step))
    assert 9 <= begun <= 10
    assert executor.run(step, partitions, str(tmp_path / "spark")) == results
    assert len(make_step.attempts(step)) == begun

    # The same executors, on S3 in a storm.
    lake = make_partitions(6, f"{s3.base}/in", bad={2}, store=s3.store)
    s3.faults.latency, s3.faults.error, s3.faults.reset = 0.05, 0.05, 0.05
    s3.faults.lost = s3.faults.truncate = 0.05
    stormy = executor.run(make_step(), lake, f"{s3.base}/out")
    assert outputs_digest(f"{s3.base}/out", stormy) == expected

    with pytest.raises(FailedPartitionsError, match=r"1 of 3 partitions failed 2 times.*p002"):
        executor.run(make_step(faults={"p002": "kill"}), partitions[:3], str(tmp_path / "poison"))
    summary = json.loads((tmp_path / "poison/_summary.json").read_text())
    assert summary["poisoned"][0]["reason"] == "the worker process died (signal 9)"
    assert summary["done"] == 2


def test_a_lost_executor_leaves_nothing_in_the_output(tmp_path, spark, s3, make_partitions):
    """Its attempt has written an object with other bytes than the second attempt writes."""
    (tmp_path / "ledger").mkdir()
    faults = {"p001": "kill-executor"}
    step = Unlike(ReverseConfig(ledger=str(tmp_path / "ledger"), faults=faults))
    partitions, out = make_partitions(3, f"{s3.base}/in", store=s3.store), f"{s3.base}/out"
    results = spark(ExecutorConfig(store=s3.config)).run(step, partitions, out)
    contents = [[s3.store.get(ref) for ref in result.outputs] for result in results]
    assert contents[1] == [b"attempt 2"] * 2
    assert all(first == second for first, second in contents)
    named = sorted(ref.path for result in results for ref in result.outputs)
    assert [ref.path for ref in s3.store.list(f"{out}/{OBJECTS}")] == named


def test_spark_runs_one_task_per_simulated_gpu(tmp_path, spark, make_step, make_partitions):
    script = tmp_path / "devices.sh"
    script.write_text('#!/bin/sh\necho \'{"name": "gpu", "addresses": ["0", "1"]}\'\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    executor = spark(
        master="local-cluster[1,4,1024]", gpus_per_executor=2, gpu_discovery=str(script)
    )
    seconds = 0.4
    step = make_step(seconds=seconds)
    executor.run(step, make_partitions(8), str(tmp_path / "out"))
    by_device = {}
    for _, start, _, device in make_step.attempts(step):
        by_device.setdefault(device, []).append(int(start) / 1e9)
    assert set(by_device) == {"cuda_0", "cuda_1"}
    for starts in by_device.values():  # four cores, yet no device has two tasks at a time
        starts.sort()
        assert all(b - a >= seconds for a, b in itertools.pairwise(starts))


DRIVER = """
import sys
sys.path.insert(0, {tests!r})
from sample_steps import Reverse, ReverseConfig
from toolkit.pipeline.objects import ObjectStore
from toolkit.pipeline.spark import SparkConfig, SparkExecutor
from toolkit.pipeline.step import Partition
if __name__ == "__main__":
    store = ObjectStore()
    refs = [store.put("{base}/lake/%d" % i, b"content %d" % i) for i in range(6)]
    partitions = [Partition("p%d" % i, (ref,)) for i, ref in enumerate(refs)]
    step = Reverse(ReverseConfig(seconds=0.5, ledger="{base}/ledger"))
    with SparkExecutor(spark=SparkConfig(packages=("{tests}/sample_steps.py",))) as executor:
        executor.run(step, partitions, "{base}/out")
"""


def test_a_killed_driver_loses_no_finished_partition(tmp_path):
    (tmp_path / "ledger").mkdir()
    script = tmp_path / "driver.py"
    script.write_text(DRIVER.format(tests=str(Path(__file__).parent), base=tmp_path))
    paths = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    driver = subprocess.Popen([sys.executable, str(script)], env=environment)
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("out/_done/*.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    children = psutil.Process(driver.pid).children(recursive=True)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive  # neither Java nor workers outlive their driver
    done = len(list(tmp_path.glob("out/_done/*.json")))
    begun = len(list(tmp_path.glob("ledger/*")))
    assert 2 <= done < 6
    assert begun - done <= 2  # those in flight
    subprocess.run([sys.executable, str(script)], env=environment, check=True)
    assert len(list(tmp_path.glob("ledger/*"))) == begun + 6 - done
    contents = {path.name: path.read_bytes() for path in tmp_path.glob("out/_objects/p*/*/*")}
    assert contents == {str(i): b"%d tnetnoc" % i for i in range(6)}
