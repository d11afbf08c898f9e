"""Copies between a device and the host that the training does not wait for.

A GPU works through a stream of operations in order. Copies and averaging go to streams beside the
one in which the training computes; events say which of them must be done before which. On the CPU
every operation is done when its call returns, and none of this is needed.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor


class Streams(Protocol):
    """What is needed of a device's streams."""

    def new(self) -> Any:
        """Make a stream beside that of the training."""

    def use(self, stream: Any) -> AbstractContextManager[Any]:
        """Return a context in which this thread's operations go to a stream."""

    def record(self) -> Any:
        """Return an event that is over when all operations of the present stream so far are."""

    def wait(self, event: Any) -> None:
        """Let later operations of the present stream wait for an event; the caller goes on."""

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
        """See `Streams`."""
        return torch.cuda.Stream(self._device)

    def use(self, stream: torch.cuda.Stream) -> AbstractContextManager[Any]:
        """See `Streams`."""
        return torch.cuda.stream(stream)

    def record(self) -> torch.cuda.Event:
        """See `Streams`."""
        return torch.cuda.current_stream(self._device).record_event()

    def wait(self, event: torch.cuda.Event) -> None:
        """See `Streams`."""
        torch.cuda.current_stream(self._device).wait_event(event)

    def buffer(self, size: int) -> Tensor:
        """See `Streams`."""
        return torch.empty(size, pin_memory=True)


class _Done:
    """The event of what is done already."""

    def synchronize(self) -> None:
        """Nothing to wait for."""


class HostStreams:
    """The CPU: every operation is done when its call returns."""

    def new(self) -> None:
        """See `Streams`."""

    def use(self, stream: None) -> AbstractContextManager[Any]:
        """See `Streams`."""
        return nullcontext()

    def record(self) -> _Done:
        """See `Streams`."""
        return _Done()

    def wait(self, event: _Done) -> None:
        """See `Streams`."""

    def buffer(self, size: int) -> Tensor:
        """See `Streams`."""
        return torch.empty(size)


def streams_of(device: torch.device) -> Streams:
    """Return the streams of a device."""
    return CudaStreams(device) if device.type == "cuda" else HostStreams()


class Turns:
    """Order of the operations of several threads, each with its stream, on the same tensors.

    Args:
      streams: of the device that holds the tensors.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._lock = threading.Lock()
        self._last = streams.record()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Context of operations that come after all earlier ones, and before all later ones."""
        with self._lock:
            self._streams.wait(self._last)
            yield
            self._last = self._streams.record()


class Channel:
    """Copies of tensors of P values between a device and the host, for one thread.

    Only the thread that uses the channel waits for its copies. Two buffers take turns, so that a
    copy never overwrites what is still being sent.

    Args:
      streams: of the device.
      size: P.
      device: that of the tensors.
    """

    def __init__(self, streams: Streams, size: int, device: torch.device | str) -> None:
        self._streams, self._device = streams, device
        self._stream = streams.new()
        # The CPU's tensors are on the host: they need no buffers.
        number = 0 if isinstance(streams, HostStreams) else 2
        self._out = [streams.buffer(size) for _ in range(number)]
        self.copies = 0
        """How many tensors were brought to the host."""

    def stream(self) -> AbstractContextManager[Any]:
        """Return a context in which this thread's operations go to the channel's own stream.

        Operations on tensors that other streams change need `Turns`.
        """
        return self._streams.use(self._stream)

    def to_host(self, tensor: Tensor) -> Tensor:
        """Copy [P] to the host and wait until it is there; it is valid until the next but one."""
        self.copies += 1
        if not self._out:
            return tensor
        buffer = self._out[self.copies % 2]
        buffer.copy_(tensor, non_blocking=True)
        self._streams.record().synchronize()
        return buffer

    def to_device(self, buffer: Tensor) -> Tensor:
        """Begin to copy a pinned [P] to the device; for operations of the same stream."""
        return buffer.to(self._device, non_blocking=True)
