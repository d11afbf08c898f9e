"""A lake, all that the steps write and what training reads on Ceph, the executor a Spark cluster.

In each step the executor, the driver or the server of S3 is killed; the digests are those of local
processes on a local disk, where nobody dies. By hand: `PIPELINE_PROOFS=1 LAKE_HOURS=20 pytest -s
tests/pipeline/steps/test_spark_on_ceph.py`, in the environment of `make test-cluster`.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from all_steps import STEPS, digests, run_all
from killed_steps import KILLED, NAMED, KillingExecutor, attempts

from tests.pipeline.synthetic_lake import SyntheticLakeConfig, make_lake
from toolkit.pipeline.local import LocalExecutor, cpu_slots

HERE = Path(__file__).parents[1]
HOURS = float(os.environ.get("LAKE_HOURS", "20"))
FILES = 40

DRIVER = """
import json
import os
import sys
from pathlib import Path
sys.path.insert(0, {here!r})
import toolkit
from all_steps import digests, run_all
from killed_steps import NAMED, KillingExecutor
from toolkit.pipeline.executor import ExecutorConfig
from toolkit.pipeline.objects import ObjectStore, StoreConfig
from toolkit.pipeline.spark import SparkConfig, SparkExecutor
if __name__ == "__main__":
    config = ExecutorConfig(StoreConfig({{"endpoint_url": {endpoint!r}}}))
    if {who!r} == "driver":
        Path({ledger!r}, NAMED).write_text(str(os.getpid()))
    shipped = tuple(str(Path({here!r}, name)) for name in ("sample_steps.py", "killed_steps.py"))
    spark = SparkConfig(master={master!r}, executor_memory="512m", packages=shipped)
    with SparkExecutor(config, spark) as executor:
        killer = KillingExecutor(executor, {ledger!r}, {fault!r})
        run_all({lake!r}, killer, ObjectStore(config.store), {base!r}, *{size!r})
    print(json.dumps(digests(killer.runs)))
"""


@pytest.fixture
def spark(tmp_path):
    pytest.importorskip("pyspark")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    from standalone_spark import StandaloneSpark

    cluster = StandaloneSpark(tmp_path)
    yield cluster
    cluster.stop()


def keep_alive(server, ledger, ended):
    """Start the gateway again whenever it has been killed, and write its process id."""
    while not ended.wait(0.1):
        if server.gateway.poll() is not None:
            time.sleep(1.0)
            server.restart_gateway()
        (ledger / "new").write_text(str(server.gateway.pid))
        (ledger / "new").replace(ledger / NAMED)


@pytest.mark.timeout(0)
@pytest.mark.skipif("PIPELINE_PROOFS" not in os.environ, reason="takes a quarter of an hour")
@pytest.mark.parametrize("s3_server", ["ceph"], indirect=True)
def test_kills_of_executor_driver_and_server_change_no_output(noises, spark, s3, store, tmp_path):
    config = SyntheticLakeConfig(hours=HOURS, buckets=2)
    size = 0.98 * HOURS, HOURS / FILES
    (tmp_path / "calm").mkdir()
    local = make_lake(noises, store, str(tmp_path / "lake"), config)
    with LocalExecutor(slots=cpu_slots(2)) as executor:
        calm = KillingExecutor(executor, tmp_path / "calm", "")
        run_all(local.url, calm, store, str(tmp_path / "out"), *size)
    expected = digests(calm.runs)
    assert tuple(expected) == STEPS
    counts = {name: count for name, (_, count, _) in calm.runs.items()}
    print(f"\n{HOURS:g} h, partitions: {counts}")

    lake = make_lake(noises, s3.store, f"{s3.base}/lake", config)
    paths = (str(HERE.parents[1]), os.environ.get("PYTHONPATH", ""))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    for who, fault in [
        ("executor", "kill-executor"),
        ("driver", "kill-named"),
        ("server", "kill-named"),
    ]:
        ledger, ended = tmp_path / who, threading.Event()
        ledger.mkdir()
        script = tmp_path / f"{who}.py"
        places = {"here": str(HERE), "ledger": str(ledger), "endpoint": s3.url, "who": who}
        places |= {"master": spark.url, "lake": lake.url, "base": f"{s3.base}/{who}"}
        script.write_text(DRIVER.format(**places, fault=fault, size=size))
        if who == "server":
            keeper = threading.Thread(target=keep_alive, args=(s3.server, ledger, ended))
            keeper.start()
        start, codes = time.monotonic(), []
        while not codes or codes[-1] == -9:
            driver = subprocess.run(
                [sys.executable, script], env=environment, stdout=subprocess.PIPE, text=True
            )
            codes.append(driver.returncode)
        ended.set()
        assert codes == [-9] * (len(STEPS) if who == "driver" else 0) + [0]
        assert json.loads(driver.stdout.splitlines()[-1]) == expected
        again = {name: attempts(ledger, name) - count for name, count in counts.items()}
        print(f"{who} killed in every step: {time.monotonic() - start:.0f} s, repeated: {again}")
        if who == "executor":
            assert min(again.values()) >= 1
        else:
            assert attempts(ledger, KILLED.strip()) == len(STEPS)
