"""Kill -9 in the middle of a partition, in every real step: the same bytes, and little repeated.

A worker is killed in the suite; what takes minutes is done by hand, as nothing else runs whole
pipelines again and again: `PIPELINE_PROOFS=1 pytest tests/pipeline/steps/test_kills.py`.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from all_steps import STEPS, digests, run_all
from killed_steps import KillingExecutor, attempts

from toolkit.pipeline.local import LocalExecutor

pytestmark = pytest.mark.long

HERE = Path(__file__).parents[1]
PROOFS = pytest.mark.skipif("PIPELINE_PROOFS" not in os.environ, reason="takes minutes")
WORKERS = 2


@pytest.fixture
def expected(lake, here, store, tmp_path):
    """The digest of each step's output when nobody dies, and its number of partitions."""
    (tmp_path / "calm-ledger").mkdir()
    calm = KillingExecutor(here, tmp_path / "calm-ledger", "")
    run_all(lake.url, calm, store, str(tmp_path / "calm"))
    assert tuple(calm.runs) == STEPS
    return digests(calm.runs), {name: count for name, (_, count, _) in calm.runs.items()}


@pytest.fixture
def ledger(tmp_path):
    (tmp_path / "ledger").mkdir()
    return tmp_path / "ledger"


def test_a_worker_killed_in_every_step_changes_no_output(lake, expected, ledger, store, tmp_path):
    with LocalExecutor(slots=("cpu",) * WORKERS) as executor:
        storm = KillingExecutor(executor, ledger, "kill")
        run_all(lake.url, storm, store, str(tmp_path / "storm"))
    assert digests(storm.runs) == expected[0]
    assert storm.repeated == dict.fromkeys(STEPS, 1)  # the partition that was in flight
    assert not list((tmp_path / "storm").rglob("*.tmp"))


DRIVER = """
import sys
sys.path.insert(0, {here!r})
import toolkit
from killed_steps import KillingExecutor
from all_steps import digests, run_all
from toolkit.pipeline.local import LocalExecutor
from toolkit.pipeline.objects import ObjectStore
if __name__ == "__main__":
    with LocalExecutor(slots=("cpu",) * {workers}) as executor:
        killer = KillingExecutor(executor, {ledger!r}, "kill-driver")
        run_all({lake!r}, killer, ObjectStore(), {base!r})
    for name, digest in digests(killer.runs).items():
        print(name, digest)
"""


@PROOFS
def test_a_driver_killed_in_every_step_changes_no_output(lake, expected, ledger, tmp_path):
    script, base = tmp_path / "driver.py", str(tmp_path / "storm")
    settings = {"here": str(HERE), "workers": WORKERS, "ledger": str(ledger), "lake": lake.url}
    script.write_text(DRIVER.format(**settings, base=base))
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    for number in range(len(STEPS) + 1):
        driver = subprocess.Popen(
            [sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, text=True
        )
        stdout, _ = driver.communicate(timeout=600)
        assert driver.returncode == (-9 if number < len(STEPS) else 0), number
        orphans = [p for p in psutil.process_iter(["cmdline"]) if _is_orphan(p, driver.pid)]
        assert not psutil.wait_procs(orphans, timeout=20)[1]  # workers do not outlive their driver
    assert dict(line.split() for line in stdout.splitlines()) == expected[0]
    for name, count in expected[1].items():
        assert count < attempts(ledger, name) <= count + WORKERS, name  # those in flight
    assert not list((tmp_path / "storm").rglob("*.tmp"))


def _is_orphan(process, driver):
    """Whether a process is a worker that the driver started."""
    return any(f"parent_pid={driver}," in part for part in process.info["cmdline"] or ())


@PROOFS
def test_a_spark_executor_killed_in_every_step_changes_no_output(
    lake, expected, ledger, store, tmp_path
):
    pytest.importorskip("pyspark")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    from toolkit.pipeline.config import SparkConfig
    from toolkit.pipeline.spark import SparkExecutor

    shipped = tuple(str(HERE / name) for name in ("sample_steps.py", "killed_steps.py"))
    config = SparkConfig(executor_memory="512m", packages=shipped)
    with SparkExecutor(spark=config) as executor:
        storm = KillingExecutor(executor, ledger, "kill-executor")
        run_all(lake.url, storm, store, str(tmp_path / "storm"))
    assert digests(storm.runs) == expected[0]
    # An executor has one task in flight.
    assert storm.repeated == dict.fromkeys(STEPS, 1)
