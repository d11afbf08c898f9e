"""Streams that write down what is asked of them, and what may only happen after what."""

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass
class Done:
    """Something that a stream does, in the order in which it is given to it."""

    what: str
    stream: str
    thread: str
    number: int
    after: list = field(default_factory=list)
    """What must be done before, besides what the stream was given earlier."""


class FakeStreams:
    """A device of which all operations are written down: stream, thread, what they wait for."""

    def __init__(self):
        self.log = []
        self._lock = threading.RLock()
        self._current = threading.local()
        self._made = 0
        self._last = {}  # stream -> its last entry
        self.pinned = set()

    @property
    def stream(self):
        return getattr(self._current, "name", "training")

    def note(self, what, after=()):
        with self._lock:
            before = self._last.get(self.stream)
            thread = threading.current_thread().name
            entry = Done(what, self.stream, thread, len(self.log), [*after])
            entry.after += [] if before is None else [before]
            self.log.append(entry)
            self._last[self.stream] = entry
        return entry

    def new(self):
        self._made += 1
        return f"side {self._made}"

    @contextmanager
    def use(self, stream):
        before, self._current.name = self.stream, stream
        try:
            yield
        finally:
            self._current.name = before

    def record(self):
        return Event(self, self.note("record"))

    def wait(self, event):
        self.note("wait", [event.entry])

    def buffer(self, size):
        made = torch.empty(size)
        self.pinned.add(made.data_ptr())
        return made

    def tracing(self):
        """Context in which torch's operations of this thread are written down."""
        return _Tracing(self)

    def named(self, what):
        return [entry for entry in self.log if entry.what == what]


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
    waiting, seen = [later], set()
    while waiting:
        entry = waiting.pop()
        if entry is earlier:
            return True
        if entry.number not in seen:
            seen.add(entry.number)
            waiting += entry.after
    return False
