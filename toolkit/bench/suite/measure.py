"""Runs one benchmark in a process of its own: `python -m toolkit.bench.suite.measure NAME FILE`.

With the third argument `quick` it is as small as a smoke test. A fourth names the device; `-` is
none.
"""

import importlib
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from toolkit.bench import BENCHMARKS
from toolkit.bench.instruments.harness import BenchmarkError, Table
from toolkit.environment import peak_bytes
from toolkit.processes.profiler import py_spy
from toolkit.storage.files import write_atomically


@dataclass(frozen=True)
class Measured:
    """What a benchmark has found."""

    table: Table
    seconds: float
    """Wall time."""
    peak_bytes: int
    """Peak resident size of its process."""

    @classmethod
    def from_json(cls, plain: Any) -> "Measured":
        """Return what `dataclasses.asdict` made plain; see `Table.from_json` for the errors."""
        return cls(Table.from_json(plain["table"]), plain["seconds"], plain["peak_bytes"])


def measure(
    name: str, quick: bool = False, profile: Path | None = None, device: str | None = None
) -> Measured:
    """Run a benchmark in a process of its own, so that none warms or fills the memory of another.

    Args:
      name: one of `BENCHMARKS` whose module defines `benchmark` and `QUICK`.
      quick: measure little, with the arguments `QUICK`: whether it works, not how fast it is.
      profile: a file to draw a flame graph of the benchmark in, by py-spy.
      device: what to measure, for a benchmark that takes a device; None: as it does without.

    Raises:
      BenchmarkError: it failed; the message has the last line of its output.
      NoProfilerError: py-spy, which `profile` needs, is not installed.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "measured.json"
        command = py_spy(profile) if profile else []
        command += [sys.executable, "-m", __name__, name, str(out), "quick" if quick else "full"]
        command += [device or "-"]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if not out.exists():
            lines = (done.stderr or done.stdout).strip().splitlines()
            errors = [line for line in lines if line and not line.startswith("py-spy>")]
            raise BenchmarkError(f"{name}: {errors[-1] if errors else 'no output'}")
        return Measured.from_json(json.loads(out.read_text(encoding="utf-8")))


def _main(name: str, out: str, size: str, device: str) -> None:
    module: Any = importlib.import_module(f"toolkit.bench.{BENCHMARKS[name]}")
    arguments = dict(module.QUICK if size == "quick" else {})
    arguments |= {"device": device} if device != "-" else {}
    before = perf_counter()
    table = module.benchmark(**arguments)
    found = Measured(table, round(perf_counter() - before, 3), peak_bytes())
    write_atomically(Path(out), json.dumps(asdict(found)) + "\n")


if __name__ == "__main__":
    _main(*sys.argv[1:])
