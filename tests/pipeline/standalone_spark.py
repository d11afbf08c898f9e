"""A standalone Spark cluster on this machine: a master, and workers of one core each."""

import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from ceph_server import free_port

SECONDS = 90.0
"""Time that the cluster may take to start on a busy machine."""


class StandaloneSpark:
    """A cluster that starts at once and ends with `stop`.

    Args:
      folder: for logs and the workers' scratch.
      workers: their number.
    """

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder, self._running = folder, []
        port, page = free_port(), free_port()
        self.url = f"spark://127.0.0.1:{port}"
        # Executors run where the workers do, with the Python of the driver.
        self._environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
        here = ("--host", "127.0.0.1")
        try:
            self._start("master.Master", *here, "--port", f"{port}", "--webui-port", f"{page}")
            for number in range(workers):
                scratch = folder / f"worker{number}"
                limits = ("--cores", "1", "--memory", "1g", "--webui-port", "0")
                self._start("worker.Worker", *here, *limits, "--work-dir", str(scratch), self.url)
            self._until_alive(f"http://127.0.0.1:{page}/json/", workers)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End master and workers; executors end with their worker."""
        for process in reversed(self._running):
            process.terminate()
            process.wait()

    def _start(self, program: str, *arguments: str) -> None:
        import pyspark

        start = Path(pyspark.__path__[0], "bin", "spark-class")
        log = (self._folder / f"{len(self._running)}.log").open("wb")
        self._running.append(
            subprocess.Popen(
                [start, f"org.apache.spark.deploy.{program}", *arguments],
                env=self._environment, stdout=log, stderr=log,
            )
        )  # fmt: skip

    def _until_alive(self, page: str, workers: int) -> None:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            try:
                with urllib.request.urlopen(page, timeout=5) as answer:
                    if answer.read().decode().count('"ALIVE"') == workers + 1:
                        return
            except OSError:
                pass
            time.sleep(0.5)
        raise RuntimeError(f"Spark has not started; see {self._folder}")
