"""Where the time of Python code goes: stacks of all threads, sampled, of workers too.

The result is a mapping from stacks, tuples of frames from the outermost in, to seconds.
"""

import inspect
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from types import FrameType

from toolkit.storage.files import write_atomically

Stacks = Mapping[tuple[str, ...], float]
INTERVAL = 0.01  # seconds
VARIABLE = "TOOLKIT_PROFILED"
"""Environment variable that tells worker processes the folder in which to leave their stacks."""
WAITING = ("threading.py", "queue.py", "selectors.py", "connection.py", "thread.py", "process.py")
"""Files in which threads other than the main one wait; such samples are left out."""


class StackSampler:
    """Samples the threads of this process from `start` to `stop`, by wall time.

    A sample counts for the time since the one before: where a kernel holds the interpreter's lock,
    samples come late, not less.

    Args:
      root: outermost frame of all stacks.
      base: the frame of the calling thread down to which stacks are of no interest.
    """

    def __init__(self, root: str, base: FrameType) -> None:
        self.stacks: Counter[tuple[str, ...]] = Counter()
        self._root = root
        self._stop = threading.Event()
        self._main = threading.get_ident()
        self._skipped = len(_frames(base))
        self._thread = threading.Thread(target=self._watch, name="sampler", daemon=True)

    def start(self) -> None:
        """Begin to sample; the calling thread is the main one."""
        self._thread.start()

    def stop(self) -> Stacks:
        """Return the seconds of each stack."""
        self._stop.set()
        self._thread.join()
        return self.stacks

    def _watch(self) -> None:
        before = perf_counter()
        while not self._stop.wait(INTERVAL):
            now = perf_counter()
            self._sample(now - before)
            before = now

    def _sample(self, seconds: float) -> None:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            if ident == self._main:
                stack = (self._root, *_frames(frame)[self._skipped :])
            elif ident != self._thread.ident and not _waits(frame):
                name = names.get(ident) or "a thread"
                stack = (self._root, f"thread {name}", *_frames(frame))
            else:
                continue
            self.stacks[stack] += seconds


def _waits(frame: FrameType) -> bool:
    return os.path.basename(frame.f_code.co_filename) in WAITING


def _user(frame: FrameType) -> FrameType:
    """Return the frame with the `with` statement, of that of a context manager or one around it."""
    while frame.f_code.co_flags & inspect.CO_GENERATOR:
        frame = frame.f_back.f_back  # past contextlib's __enter__
    return frame


def _frames(frame: FrameType | None) -> list[str]:
    """Return the functions of a frame and those that called it, the outermost first."""
    found = []
    while frame is not None:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)  # from Python 3.11 on
        place = "/".join(Path(code.co_filename).parts[-2:])
        found.append(f"{name} ({place}:{code.co_firstlineno})")
        frame = frame.f_back
    return found[::-1]


@contextmanager
def sampled() -> Iterator[Counter[tuple[str, ...]]]:
    """Sample this process, and the workers that it starts, in a `with` block.

    The counter that the block gets is filled when the block is left.
    """
    found: Counter[tuple[str, ...]] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = folder
        sampler = StackSampler("this process", _user(sys._getframe()))
        sampler.start()
        try:
            yield found
        finally:
            found.update(sampler.stop())
            os.environ.pop(VARIABLE)
            if before is not None:
                os.environ[VARIABLE] = before
            for path in sorted(Path(folder).glob("*.folded")):
                found.update(unfolded(path.read_text(encoding="utf-8")))


def sample_worker() -> None:
    """Sample this worker process until it ends, if the one that started it is sampled."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return
    from multiprocessing.util import Finalize

    sampler = StackSampler("workers", sys._getframe(2))
    sampler.start()

    def leave() -> None:
        if os.path.isdir(folder):
            write_atomically(Path(folder) / f"{os.getpid()}.folded", folded(sampler.stop()))

    Finalize(None, leave, exitpriority=10)


def folded(stacks: Stacks) -> str:
    """Return stacks as text, a line `frame;frame;frame microseconds` for each.

    It is the form that flame graph programs read.
    """
    lines = (f"{';'.join(stack)} {round(1e6 * t)}\n" for stack, t in sorted(stacks.items()))
    return "".join(lines)


def unfolded(text: str) -> Stacks:
    """Return the stacks of `folded`."""
    found: Counter[tuple[str, ...]] = Counter()
    for line in text.splitlines():
        frames, _, microseconds = line.rpartition(" ")
        found[tuple(frames.split(";"))] += int(microseconds) / 1e6
    return found
