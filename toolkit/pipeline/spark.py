"""The executor on a Spark cluster: `mapPartitions` over lists of objects (C23, C24).

Spark deals out the partitions and replaces lost executors; the data goes straight between the
workers and the object store, never through Spark. No group-by, join or shuffle is used (C22).
The only module that imports pyspark.
"""

import base64
import json
import os
import pickle
import re
import shutil
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import toolkit
from toolkit.errors import ToolkitError
from toolkit.pipeline.cell import Attempt, Cell, Job
from toolkit.pipeline.executor import Executor, ExecutorConfig
from toolkit.pipeline.faults import redact
from toolkit.pipeline.step import Partition, Step

ARCHIVE = "toolkit_project"
POLL_SECONDS = 0.2
CULPRIT = re.compile(r"Task (\d+) in stage [\d.]+ failed (\d+) times")


class SparkError(ToolkitError):
    """Spark that is not installed or cannot be reached."""


@dataclass(frozen=True)
class SparkConfig:
    """The cluster and what each executor gets (C23)."""

    master: str = "local-cluster[2,1,1024]"
    """URL of the cluster; `local-cluster[workers,cores,MB]` starts real ones on this machine."""
    executor_cores: int | None = None
    """Cores per executor; None: all of a node's."""
    executor_memory: str = "1g"
    """Heap of an executor's JVM, which only passes lists on; Python's memory comes on top."""
    task_cpus: int = 1
    """Cores per task: the threads that a step computes with."""
    gpus_per_executor: int = 0
    """Devices that an executor asks its node for."""
    gpus_per_task: float = 1.0
    """Devices that a task is given, where executors have any (C20); 0.5 lets two share one."""
    gpu_discovery: str | None = None
    """Script that prints a node's devices for Spark, see its documentation of resources."""
    python: str | None = None
    """Python of the executors; None: this one's path."""
    packages: tuple[str, ...] = ()
    """Archives with the executors' environment (conda-pack, venv-pack), as `path#folder`, or
    further Python files to ship."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Any other property of Spark."""


def check_spark() -> None:
    """See that this machine can drive Spark; with a cluster elsewhere the driver needs Java too.

    Raises:
      SparkError: pyspark or Java is missing.
    """
    home = os.environ.get("JAVA_HOME")
    found = {
        "pyspark": find_spec("pyspark"),
        "Java": shutil.which(f"{home}/bin/java" if home else "java"),
    }
    missing = [name for name, where in found.items() if not where]
    if missing:
        raise SparkError(
            f"Spark cannot start, as {' and '.join(missing)} cannot be found: install pyspark with "
            "`pip install -e '.[spark]'` and a Java 17 on the PATH or at JAVA_HOME, or let the "
            "local executor do the work"
        )


class SparkExecutor(Executor):
    """Runs partitions as Spark tasks, one per task, each in a cell beside the Python worker.

    The package `toolkit` is shipped to the executors; what it imports has to be installed there
    or be among `packages`. Credentials are not: executors find their own.

    Args:
      config: what holds for every executor.
      spark: the cluster.
    """

    def __init__(
        self, config: ExecutorConfig | None = None, spark: SparkConfig | None = None
    ) -> None:
        super().__init__(config)
        check_spark()
        self.spark = spark or SparkConfig()
        self._folder = Path(tempfile.mkdtemp(prefix="spark-project-"))
        self._context = self._connect()

    def _connect(self) -> Any:
        import pyspark

        os.environ["PYSPARK_PYTHON"] = self.spark.python or sys.executable
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        conf = pyspark.SparkConf().setAll(sorted(self._properties().items()))
        try:
            context = pyspark.SparkContext(conf=conf)
        except Exception as error:
            raise SparkError(f"{self.spark.master}: {redact(str(error))[:500]}") from error
        context.setLogLevel("ERROR")
        context.addArchive(f"{_zip_project(self._folder)}#{ARCHIVE}")
        for package in self.spark.packages:
            add = context.addPyFile if package.endswith((".py", ".egg")) else context.addArchive
            add(package)
        return context

    def _properties(self) -> dict[str, str]:
        spark = self.spark
        properties = {
            "spark.master": spark.master,
            "spark.app.name": "toolkit pipeline",
            "spark.executor.memory": spark.executor_memory,
            "spark.task.cpus": str(spark.task_cpus),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.scheduler.mode": "FIFO",
            "spark.python.worker.reuse": "true",
            # A lost executor costs its tasks a failure; a partition's own faults are counted here.
            "spark.task.maxFailures": "4",
            "spark.executorEnv.PYTHONHASHSEED": "0",
        }
        if spark.executor_cores is not None:
            properties["spark.executor.cores"] = str(spark.executor_cores)
        if spark.gpus_per_executor:
            properties["spark.executor.resource.gpu.amount"] = str(spark.gpus_per_executor)
            properties["spark.task.resource.gpu.amount"] = f"{spark.gpus_per_task:g}"
            if spark.gpu_discovery is not None:
                for role in ("worker", "executor"):
                    name = f"spark.{role}.resource.gpu.discoveryScript"
                    properties[name] = spark.gpu_discovery
                properties["spark.worker.resource.gpu.amount"] = str(spark.gpus_per_executor)
        return {**properties, **spark.conf}

    def _attempts(
        self, step: Step, partitions: Sequence[Partition], out: str, repeated: bool
    ) -> Iterator[Attempt]:
        from pyspark.accumulators import AddingAccumulatorParam

        context = self._context
        arrived = context.accumulator([], AddingAccumulatorParam([]))
        rows = [json.dumps(partition.to_dict()) for partition in partitions]
        work = _task(step, out, self.config, repeated, arrived)
        job = _Collection(context.parallelize(rows, len(rows)).mapPartitions(work))
        seen: set[str] = set()
        read = 0
        try:
            while job.is_alive() or read < len(arrived.value):
                job.join(POLL_SECONDS)
                while read < len(arrived.value):
                    attempt = Attempt.from_dict(json.loads(arrived.value[read]))
                    read += 1
                    if attempt.partition not in seen:
                        seen.add(attempt.partition)
                        yield attempt
        finally:
            if job.is_alive():
                context.cancelAllJobs()
                job.join()
        if job.error is not None:
            yield from _blame(job.error, partitions)
            return
        for row in job.rows:  # whose update never arrived
            attempt = Attempt.from_dict(json.loads(row))
            if attempt.partition not in seen:
                yield attempt

    def close(self) -> None:
        """Give the executors back."""
        self._context.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


class _Collection(threading.Thread):
    """Collects an RDD while the caller watches what arrives."""

    def __init__(self, rdd: Any) -> None:
        super().__init__(daemon=True)
        self.rows: list[str] = []
        self.error: Exception | None = None
        self._rdd = rdd
        self.start()

    def run(self) -> None:
        try:
            self.rows = self._rdd.collect()
        except Exception as error:
            self.error = error


def _blame(error: Exception, partitions: Sequence[Partition]) -> Iterator[Attempt]:
    """Find the partition for which Spark gave up; the others in flight are not at fault."""
    message = redact(str(error))
    found = CULPRIT.search(message)
    if found is None:
        raise SparkError(f"Spark gave up: {message[:1000]}") from error
    partition = partitions[int(found[1])]
    reason = f"its executor was lost {found[2]} times"
    yield Attempt(partition.id, None, reason, message)


def _task(step: Step, out: str, config: ExecutorConfig, repeated: bool, arrived: Any) -> Any:
    """Make the function for `mapPartitions`.

    It is pickled by value and imports `toolkit` only where the shipped copy has been put on the
    path; the step travels as bytes inside it for the same reason.
    """
    payload = base64.b64encode(pickle.dumps((step, out, config, repeated))).decode()
    archive = ARCHIVE

    def work(rows: Iterable[str]) -> Iterator[str]:
        import sys

        from pyspark import SparkFiles, TaskContext

        project = SparkFiles.get(archive)
        if project not in sys.path:
            sys.path.insert(0, project)
        from toolkit.pipeline.spark import run_rows

        context = TaskContext.get()
        gpus = context.resources().get("gpu")
        device = "cpu" if gpus is None else f"cuda:{gpus.addresses[0]}"
        for line in run_rows(payload, rows, device, context.attemptNumber()):
            arrived.add([line])
            yield line

    return work


_cells: dict[int, Cell] = {}
"""The Python worker's own, kept from task to task."""


def run_rows(payload: str, rows: Iterable[str], device: str, attempt: int) -> Iterator[str]:
    """Run partitions in an executor's Python worker.

    Args:
      payload: from the driver.
      rows: partitions as JSON.
      device: for the step.
      attempt: 0 at the first; later ones look for a marker of the ones before.

    Yields:
      `Attempt`s as JSON.
    """
    step, out, config, repeated = pickle.loads(base64.b64decode(payload))
    scratch = config.scratch or os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
    for row in rows:
        cell = _cells.get(config.threads)
        if cell is None or not cell.alive:
            cell = _cells[config.threads] = Cell(config.threads, scratch)
        partition = Partition.from_dict(json.loads(row))
        job = Job(
            step, partition, out, config.store, device, config.threads, repeated or attempt > 0
        )
        outcome = cell.run(job, config.timeout)
        if not cell.alive:
            cell.close()
        yield json.dumps(outcome.to_dict())


def _zip_project(folder: Path) -> Path:
    """Pack the package for the executors, the same bytes for the same files."""
    root = Path(toolkit.__file__).parent
    path = folder / "project.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(root.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                name = file.relative_to(root.parent).as_posix()
                archive.writestr(zipfile.ZipInfo(name), file.read_bytes())
    return path
