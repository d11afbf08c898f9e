"""Fake device streams that log their operations and the order in which these must happen."""

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass
class Operation:
    """An operation that was queued on a stream."""

    name: str
    stream: str
    thread: str
    number: int
    dependencies: list = field(default_factory=list)
    """Operations that must be done before, including the last one of the same stream."""


class FakeStreams:
    """A device that logs all operations: stream, thread, what they wait for."""

    def __init__(self):
        self.log = []
        self._lock = threading.RLock()
        self._current = threading.local()
        self._num_streams = 0
        self._last = {}  # stream -> its last entry
        self.pinned = set()

    @property
    def stream(self):
        return getattr(self._current, "name", "training")

    def note(self, name, dependencies=()):
        with self._lock:
            previous = self._last.get(self.stream)
            thread = threading.current_thread().name
            entry = Operation(name, self.stream, thread, len(self.log), [*dependencies])
            entry.dependencies += [] if previous is None else [previous]
            self.log.append(entry)
            self._last[self.stream] = entry
        return entry

    def new(self):
        self._num_streams += 1
        return f"side {self._num_streams}"

    @contextmanager
    def use(self, stream):
        previous, self._current.name = self.stream, stream
        try:
            yield
        finally:
            self._current.name = previous

    def record(self):
        return Event(self, self.note("record"))

    def wait(self, event):
        self.note("wait", [event.entry])

    def buffer(self, size):
        buffer = torch.empty(size)
        self.pinned.add(buffer.data_ptr())
        return buffer

    def tracing(self):
        """Context in which torch's operations of this thread are logged."""
        return _Tracing(self)

    def named(self, name):
        return [entry for entry in self.log if entry.name == name]


class Event:
    def __init__(self, streams, entry):
        self._streams, self.entry = streams, entry

    def synchronize(self):
        self._streams.note("the host waits", [self.entry])


class _Tracing(TorchDispatchMode):
    def __init__(self, streams):
        super().__init__()
        self._streams = streams

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self._streams.note(str(function).removeprefix("aten.").partition(".")[0])
        return function(*args, **(kwargs or {}))


def comes_after(later, earlier):
    """Whether an entry can only be done after another one."""
    pending, visited = [later], set()
    while pending:
        entry = pending.pop()
        if entry is earlier:
            return True
        if entry.number not in visited:
            visited.add(entry.number)
            pending += entry.dependencies
    return False
