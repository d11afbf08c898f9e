"""Measures a stage at several sizes in a process: `python -m toolkit.bench.growth.measure`.

Its arguments are the stage's name, the units of the smallest size and the file to write.
"""

import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time

from toolkit.bench.instruments.harness import BenchmarkError
from toolkit.config.fields import read_plain
from toolkit.storage.files import write_atomically

FACTORS = (1, 2, 4, 8)
"""Sizes, relative to the smallest."""
ROUNDS = 3
"""Of each size the quickest round counts."""


@dataclass(frozen=True)
class Growth:
    """What a stage took at each of `FACTORS`."""

    stage: str
    units: int
    """At the smallest size; 1 for a recipe's runs."""
    seconds: tuple[float, ...]
    """Processor time; wall time of a recipe's runs."""
    peak_bytes: tuple[int, ...]
    """Peak resident size of the process, everything that it has imported included; of a recipe's
    runs that of the process and its workers."""

    @property
    def of_time(self) -> float:
        """The exponent e of time in proportion to size^e."""
        return exponent(self.seconds)

    @property
    def of_memory(self) -> float:
        """The exponent of memory."""
        return exponent(self.peak_bytes)


def exponent(values: Sequence[float]) -> float:
    """Fit e in value = c size^e to values at `FACTORS`, by least squares of the logarithms."""
    sizes = [math.log(factor) for factor in FACTORS]
    return statistics.linear_regression(sizes, [math.log(value) for value in values]).slope


def measure(stage: str, units: int) -> Growth:
    """Measure a stage in a process of its own.

    Args:
      stage: one of `toolkit.bench.growth.stages.STAGES`.
      units: at the smallest size.

    Raises:
      BenchmarkError: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "growth.json"
        command = [sys.executable, "-m", __name__, stage, str(units), str(out)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["no output"]
            raise BenchmarkError(f"{stage}: {last[0]}")
        return read_plain(out, Growth, BenchmarkError, "measure again")


def _main(stage: str, units: int, out: Path) -> None:
    from toolkit.bench.growth.stages import STAGES
    from toolkit.processes.devices import one_thread
    from toolkit.processes.memory import MemoryWatch

    seconds, peaks = [math.inf] * len(FACTORS), []
    with one_thread(), tempfile.TemporaryDirectory() as folder:
        work = STAGES[stage](Path(folder), units * FACTORS[-1])
        work(units)  # compiles kernels
        for turn in range(ROUNDS):  # of all sizes in turns: a machine's speed changes
            for size, factor in enumerate(FACTORS):
                with MemoryWatch() as memory:
                    before = process_time()
                    work(units * factor)
                    seconds[size] = min(seconds[size], process_time() - before)
                if turn == 0:  # later the process holds what the largest left
                    peaks.append(memory.peak_bytes)
    found = Growth(stage, units, tuple(seconds), tuple(peaks))
    write_atomically(out, json.dumps(asdict(found)) + "\n")


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
