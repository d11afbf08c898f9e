"""A clock of this process and its children that jumps when a signal comes.

`time.time` and `time.time_ns` are those of all modules that are imported after this one; the times
that the kernel gives to files, and monotonic clocks, do not jump.
"""

import signal
import time
from types import FrameType

JUMP = signal.SIGUSR1
_true, _true_ns = time.time, time.time_ns
_ahead = 0.0  # seconds


def jump_on_signal(seconds: float) -> None:
    """Set the clock forwards by so many seconds, or back, as soon as `JUMP` comes."""

    def jump(number: int, frame: FrameType | None) -> None:
        global _ahead
        _ahead = seconds

    signal.signal(JUMP, jump)


time.time = lambda: _true() + _ahead
time.time_ns = lambda: _true_ns() + int(_ahead * 1e9)
