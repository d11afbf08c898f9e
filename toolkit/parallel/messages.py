"""Send weights from worker to worker, and copy them between device and host.

A GPU works through a stream of operations in order. Copies and averaging use other streams than the
training; events define which operations must be complete before others. On the CPU every operation
is complete when its call returns, and none of this is needed.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from toolkit.parallel.workers import Workers

NO_TIMEOUT = timedelta(days=30)  # the watchdog detects lost workers; slow ones are allowed
REQUEST, CLOSE = range(2)
CLOSE_TIMEOUT = 10.0  # seconds that a rank waits for its clients to close
TAGS = 2**30  # gloo's tags have 32 bits
Answer = Callable[[Tensor, float], Tensor]
"""Computes the reply [P] to a request [P] and the number attached to it."""


class Streams(Protocol):
    """Operations on a device's streams; on the CPU they do nothing."""

    def new(self) -> Any:
        """Create a stream in addition to that of the training."""

    def use(self, stream: Any) -> AbstractContextManager[Any]:
        """Return a context in which this thread's operations go to a stream."""

    def record(self) -> Any:
        """Record an event that completes after all operations queued on the current stream."""

    def wait(self, event: Any) -> None:
        """Let later operations of the current stream wait for an event; the host does not wait."""

    def buffer(self, size: int) -> Tensor:
        """Allocate [size] float32 on the host, pinned where copies need that."""


class CudaStreams:
    """The streams of a GPU.

    Args:
      device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def new(self) -> torch.cuda.Stream:
        """Implement `Streams.new`."""
        return torch.cuda.Stream(self._device)

    def use(self, stream: torch.cuda.Stream) -> AbstractContextManager[Any]:
        """Implement `Streams.use`."""
        return torch.cuda.stream(stream)

    def record(self) -> torch.cuda.Event:
        """Implement `Streams.record`."""
        return torch.cuda.current_stream(self._device).record_event()

    def wait(self, event: torch.cuda.Event) -> None:
        """Implement `Streams.wait`."""
        torch.cuda.current_stream(self._device).wait_event(event)

    def buffer(self, size: int) -> Tensor:
        """Implement `Streams.buffer`."""
        return torch.empty(size, pin_memory=True)


class _Done:
    """An event that has already completed."""

    def synchronize(self) -> None:
        """Return at once."""


class HostStreams:
    """The streams of the CPU, where every operation is complete when its call returns."""

    def new(self) -> None:
        """Implement `Streams.new`."""

    def use(self, stream: None) -> AbstractContextManager[Any]:
        """Implement `Streams.use`."""
        return nullcontext()

    def record(self) -> _Done:
        """Implement `Streams.record`."""
        return _Done()

    def wait(self, event: _Done) -> None:
        """Implement `Streams.wait`."""

    def buffer(self, size: int) -> Tensor:
        """Implement `Streams.buffer`."""
        return torch.empty(size)


def streams_of(device: torch.device) -> Streams:
    """Return the streams of a device."""
    return CudaStreams(device) if device.type == "cuda" else HostStreams()


class Turns:
    """Orders the operations of several threads, each with its stream, on the same tensors.

    Args:
      streams: streams of the device that holds the tensors.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._lock = threading.Lock()
        self._last = streams.record()

    @contextmanager
    def ordered(self) -> Iterator[None]:
        """Return a context for operations that come after all earlier and before all later ones."""
        with self._lock:
            self._streams.wait(self._last)
            yield
            self._last = self._streams.record()


class HostCopies:
    """Copies of tensors of P values between a device and the host, for one thread.

    Only the thread that uses this object waits for the copies. Two buffers take turns, so that a
    copy never overwrites what is still being sent.

    Args:
      streams: streams of the device.
      size: P.
      device: the tensors' device.
    """

    def __init__(self, streams: Streams, size: int, device: torch.device | str) -> None:
        self._streams, self._device = streams, device
        self._stream = streams.new()
        # The CPU's tensors are on the host: they need no buffers.
        number = 0 if isinstance(streams, HostStreams) else 2
        self._out = [streams.buffer(size) for _ in range(number)]
        self.count = 0
        """Number of tensors copied to the host."""

    def stream(self) -> AbstractContextManager[Any]:
        """Return a context in which this thread's operations go to a stream of their own.

        Operations on tensors that other streams change need `Turns`.
        """
        return self._streams.use(self._stream)

    def to_host(self, tensor: Tensor) -> Tensor:
        """Copy [P] to the host and wait; the copy stays valid until the end of the next call."""
        self.count += 1
        if not self._out:
            return tensor
        buffer = self._out[self.count % 2]
        buffer.copy_(tensor, non_blocking=True)
        self._streams.record().synchronize()
        return buffer

    def to_device(self, buffer: Tensor) -> Tensor:
        """Begin to copy a pinned [P] to the device, for later operations of the same stream."""
        return buffer.to(self._device, non_blocking=True)


class PointToPoint:
    """Point-to-point messages of P float32 values in a separate gloo group.

    A serving rank has a thread per client and answers one request at a time; the client blocks
    until the reply. As long as no answer needs a request of its own, no deadlock is possible.
    Every request has its own tags, and one lock per server keeps its messages in order.

    All ranks must construct one at the same time, since creating a group is collective.

    Args:
      workers: the process group.
      size: P, number of values of a request and of a reply.
      streams: streams of the device that holds the values.
    """

    def __init__(self, workers: Workers, size: int, streams: Streams) -> None:
        self._workers = workers
        self._size = size
        self._streams = streams
        self._group = dist.new_group(backend="gloo", timeout=NO_TIMEOUT)
        self._locks = [threading.Lock() for _ in range(workers.world_size)]
        self._numbers = [0] * workers.world_size
        self._turn = threading.Lock()
        self._counting = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._error: Exception | None = None
        self._reply: Tensor | None = None
        self.sent = 0
        """Bytes that this rank has sent."""

    def serve(self, clients: Iterable[int], make: Callable[[], Answer]) -> None:
        """Answer the requests of `clients` in threads, until each has closed.

        Args:
          clients: ranks of the clients.
          make: makes an `Answer`; called for each client, so that every thread has its own.
        """
        for client in clients:
            self.start(partial(self._serve, client, make()))

    def start(self, function: Callable[[], None]) -> None:
        """Run `function` in a thread; `check` raises its exception, `close` joins it."""

        def run() -> None:
            try:
                function()
            except Exception as error:
                self._error = self._error or error

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def request(self, server: int, payload: Tensor, number: float = 0.0) -> Tensor:
        """Send a request to a rank that serves this one, and wait for its reply.

        Args:
          server: rank of the server.
          payload: [P] float32 on the CPU.
          number: sent along with the payload.

        Returns:
          [P]: the reply, pinned where copies to the device need that; valid until the next request.
        """
        if self._reply is None:
            self._reply = self._streams.buffer(self._size)
        reply = self._reply
        with self._locks[server], self._workers.exchange():
            # Three messages: header (tag 0), payload (tag), reply (tag + 1); see `_tag`.
            tag = _tag(self._numbers[server])
            self._numbers[server] += 1
            self._send(_header(REQUEST, number), server, 0)
            self._send(payload, server, tag)
            dist.recv(reply, server, group=self._group, tag=tag + 1)
        return reply

    def check(self) -> None:
        """Raise the first exception of a thread, such as `WorkerLostError`."""
        if self._error is not None:
            raise self._error

    def close(self, servers: Iterable[int]) -> None:
        """Close the connections to `servers`; wait briefly until this rank's clients have closed.

        After an exception nothing needs closing: the daemon threads end with the process.
        """
        for server in servers:
            with self._locks[server], self._workers.exchange():
                self._send(_header(CLOSE), server, 0)
        end = time.monotonic() + CLOSE_TIMEOUT
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        self._threads.clear()

    def _serve(self, client: int, answer: Answer) -> None:
        """Answer the requests of a client until it closes; runs in a thread."""
        header, payload, number = _header(CLOSE), self._streams.buffer(self._size), 0
        while True:
            with self._workers.exchange():
                dist.recv(header, client, group=self._group, tag=0)
                if header[0] == CLOSE:
                    return
                tag = _tag(number)
                dist.recv(payload, client, group=self._group, tag=tag)
            with self._turn:  # one request at a time, whichever client it comes from
                reply = answer(payload, float(header[1]))
            with self._workers.exchange():
                self._send(reply, client, tag + 1)
            number += 1

    def _send(self, tensor: Tensor, peer: int, tag: int) -> None:
        """Send a tensor to a rank, and count its bytes."""
        dist.send(tensor, peer, group=self._group, tag=tag)
        with self._counting:
            self.sent += tensor.numel() * tensor.element_size()


def _header(kind: int, number: float = 0.0) -> Tensor:
    """Return the header of a message: its kind and the number attached to it."""
    return torch.tensor([kind, number], dtype=torch.float64)


def _tag(number: int) -> int:
    """Return the tag of a request; its reply has the next tag, headers have tag 0."""
    return 1 + 2 * (number % TAGS)
