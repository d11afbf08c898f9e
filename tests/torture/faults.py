"""Faults that disturb a run: signals, full disks, file size limits, folders, the clock."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.torture.clock import JUMP
from tests.torture.forked import Forked

FAULTS = ("kill", "term", "int", "stop", "full", "limit", "unwritable", "clock")
STATUS = {"kill": -signal.SIGKILL, "stop": -signal.SIGKILL, "term": 143, "int": 130, "clock": 0}
"""Exit status of the command that each of them disturbed; of the others 1, an error."""
YEARS = 365.0 * 86400
FILLER = "filler"
ALONE = 0.8
"""Share of the runs with one process, whose start takes no time."""


@dataclass(frozen=True)
class Fault:
    """One fault with its randomly drawn parameters."""

    kind: str
    moment: float
    """Share of the stage's duration after which it comes."""
    limit: int | None = None
    """For "limit": bytes that a file may have, from the start on."""
    free: int = 0
    """For "full": bytes that stay free on the disk."""
    jump: float = 0.0
    """For "clock": seconds."""
    jobs: int = 1
    """Processes of the run that it disturbs."""

    @property
    def status(self) -> int:
        """Exit status of a command after this fault; 0 for "clock", which stops nothing."""
        return STATUS.get(self.kind, 1)


def draw(kind: str, chance: random.Random) -> Fault:
    """Return a fault of a kind, at a moment anywhere in the stage, for one process or two."""
    fault = Fault(kind, chance.random(), jobs=1 if chance.random() < ALONE else 2)
    if kind == "limit":
        return replace(fault, limit=int(10 ** chance.uniform(3.5, 6)))
    if kind == "full":
        return replace(fault, free=int(10 ** chance.uniform(0, 5.5)))
    if kind == "clock":
        return replace(fault, jump=chance.choice((-1, 1)) * 10 ** chance.uniform(0, 8.5))
    return fault


@dataclass
class Place:
    """A run directory that faults come to, on a disk of its own if `own_disk`."""

    exp: Path
    own_disk: bool
    _modes: dict[Path, int] = field(default_factory=dict)

    def strike(self, fault: Fault, process: Forked) -> None:
        """Apply the fault to a process of this run directory."""
        if fault.kind == "kill":
            process.send(signal.SIGKILL)
        elif fault.kind == "term":
            os.kill(process.pid, signal.SIGTERM)
        elif fault.kind == "int":
            process.send(signal.SIGINT)
        elif fault.kind == "stop":
            process.send(signal.SIGSTOP)
            time.sleep(0.02)
            process.send(signal.SIGKILL)
        elif fault.kind == "clock":
            os.kill(process.pid, JUMP)
        elif fault.kind == "full":
            self._fill(fault.free)
        elif fault.kind == "unwritable":
            for top in (self.exp / ".partial", self.exp / "stages"):
                for folder in [top, *(Path(p) for p, _, _ in os.walk(top))]:
                    with contextlib.suppress(FileNotFoundError):
                        self._modes.setdefault(folder, folder.stat().st_mode)
                        folder.chmod(0o555)

    def repair(self) -> None:
        """Undo the effects of a fault that outlive the process."""
        (self.exp.parent / FILLER).unlink(missing_ok=True)
        for folder, mode in self._modes.items():
            with contextlib.suppress(FileNotFoundError):
                folder.chmod(mode)
        self._modes.clear()

    def _fill(self, free: int) -> None:
        if not self.own_disk:
            raise ValueError("a disk that others use is not to be filled")
        with open(self.exp.parent / FILLER, "wb") as file:
            size = max(0, shutil.disk_usage(self.exp).free - free)
            with contextlib.suppress(OSError):  # what the run has written meanwhile
                os.posix_fallocate(file.fileno(), 0, size)


def mount_disk(folder: Path, size: int) -> bool:
    """Mount a disk of `size` bytes, in memory, in a folder; False where that is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    options = f"size={size},mode=755"
    command = ["mount", "-t", "tmpfs", "-o", options, "torture", str(folder)]
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    return False
