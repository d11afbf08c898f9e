"""The executor for a Spark cluster: `mapPartitions` over lists of objects (C23, C24).

Spark schedules the partitions and replaces lost executors; data moves directly between the workers
and the object store, never through Spark. No group-by, join or shuffle is used (C22). This is the
only module that imports pyspark.
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
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import toolkit
from toolkit.errors import ToolkitError
from toolkit.pipeline.config import ExecutorConfig, SparkConfig
from toolkit.pipeline.executor import Executor
from toolkit.pipeline.local import Task, WorkerProcess
from toolkit.pipeline.markers import TaskResult
from toolkit.pipeline.objects import redact
from toolkit.pipeline.step import Partition, Step

ARCHIVE = "toolkit_project"
POLL_SECONDS = 0.2
CULPRIT = re.compile(r"Task (\d+) in stage [\d.]+ failed (\d+) times")


class SparkError(ToolkitError):
    """Spark is not installed or cannot be reached."""


def check_spark() -> None:
    """Check that this machine can run the Spark driver, which needs Java even for a remote cluster.

    Raises:
      SparkError: pyspark or Java is missing.
    """
    home = os.environ.get("JAVA_HOME")
    programs = {
        "pyspark": find_spec("pyspark"),
        "Java": shutil.which(f"{home}/bin/java" if home else "java"),
    }
    missing = [name for name, where in programs.items() if not where]
    if missing:
        raise SparkError(
            f"Spark cannot start, because {' and '.join(missing)} cannot be found: install "
            "pyspark with `.venv/bin/python -m pip install -e '.[spark]'` and a Java 17 on the "
            "PATH or at JAVA_HOME, or use the local executor"
        )


class SparkExecutor(Executor):
    """Runs partitions as Spark tasks, each in a worker process beside Spark's Python worker.

    The package `toolkit` is shipped to the executors; the packages that it imports have to be
    installed there or be among `packages`. Credentials are not shipped: executors find their own.

    Args:
      config: settings of all executors.
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
        """Start a Spark context, and ship the project and further packages to its executors."""
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
        """Return Spark's properties for the settings."""
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
            # A failed partition is a result, and `_finish` counts such failures. Spark counts only
            # lost executors.
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
    ) -> Iterator[TaskResult]:
        from pyspark.accumulators import AddingAccumulatorParam

        # Results arrive twice: through the accumulator as each task ends, for progress, and through
        # `collect` when all have ended.
        context = self._context
        arrived = context.accumulator([], AddingAccumulatorParam([]))
        rows = [json.dumps(partition.to_dict()) for partition in partitions]
        run_rows = _task((step, out, self.config, self.numeric, repeated), arrived)
        job = _Collection(context.parallelize(rows, len(rows)).mapPartitions(run_rows))
        reported: set[str] = set()
        read = 0
        try:
            while job.is_alive() or read < len(arrived.value):
                job.join(POLL_SECONDS)
                while read < len(arrived.value):
                    # Spark may run a task twice: the first result of a partition counts.
                    attempt = TaskResult.from_dict(json.loads(arrived.value[read]))
                    read += 1
                    if attempt.partition not in reported:
                        reported.add(attempt.partition)
                        yield attempt
        finally:
            if job.is_alive():
                context.cancelAllJobs()
                job.join()
        if job.error is not None:
            yield from _culprit(job.error, partitions)
            return
        # Results whose accumulator update never arrived.
        for row in job.rows:
            attempt = TaskResult.from_dict(json.loads(row))
            if attempt.partition not in reported:
                yield attempt

    def close(self) -> None:
        """Stop Spark and release its executors."""
        self._context.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


class _Collection(threading.Thread):
    """Collects an RDD in a thread while the caller reads the results that have arrived."""

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


def _culprit(error: Exception, partitions: Sequence[Partition]) -> Iterator[TaskResult]:
    """Yield a failed attempt for the partition on which Spark gave up, and nothing for others."""
    message = redact(str(error))
    match = CULPRIT.search(message)
    if match is None:
        raise SparkError(f"Spark gave up: {message[:1000]}") from error
    partition = partitions[int(match[1])]
    reason = f"its executor was lost {match[2]} times"
    yield TaskResult(partition.id, None, reason, message)


def _task(contents: tuple[Any, ...], arrived: Any) -> Any:
    """Make the function for `mapPartitions`.

    It is pickled by value, and imports `toolkit` only after the shipped copy has been put on the
    path; for the same reason the function contains the step as bytes.
    """
    payload = base64.b64encode(pickle.dumps(contents)).decode()
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


_workers: dict[tuple[tuple[str, str], ...], WorkerProcess] = {}
"""Worker processes that this Python worker keeps between tasks, by numeric environment."""


def run_rows(payload: str, rows: Iterable[str], device: str, attempt: int) -> Iterator[str]:
    """Run partitions in an executor's Python worker.

    Args:
      payload: the driver's `contents` of `_task`, pickled and in base64.
      rows: partitions as JSON.
      device: device of the step, such as `cuda:0`.
      attempt: Spark's attempt number, from 0; if above 0, look for markers of earlier attempts.

    Yields:
      `TaskResult`s as JSON.
    """
    step, out, config, numeric, repeated = pickle.loads(base64.b64decode(payload))
    # Runs with different settings may share this Python worker: each gets its own worker process.
    key = tuple(sorted(numeric.items()))
    scratch = config.scratch or os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
    for row in rows:
        worker = _workers.get(key)
        if worker is None or not worker.alive:
            worker = _workers[key] = WorkerProcess(config.threads, numeric, scratch)
        partition = Partition.from_dict(json.loads(row))
        repeats = repeated or attempt > 0
        job = Task(step, partition, out, config.store, device, config.threads, repeats, numeric)
        outcome = worker.run(job, config.timeout)
        if not worker.alive:
            worker.close()
        yield json.dumps(outcome.to_dict())


def _zip_project(folder: Path) -> Path:
    """Zip the package for the executors; the same files give the same bytes."""
    root = Path(toolkit.__file__).parent
    path = folder / "project.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(root.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                name = file.relative_to(root.parent).as_posix()
                archive.writestr(zipfile.ZipInfo(name), file.read_bytes())
    return path
