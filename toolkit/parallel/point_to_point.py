"""Point-to-point requests and replies of flat tensors between workers, in background threads."""

import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from toolkit.parallel.process_group import Workers
from toolkit.parallel.streams import Streams

NO_TIMEOUT = timedelta(days=30)  # the watchdog detects lost workers; slow ones are allowed
REQUEST, CLOSE = range(2)
CLOSE_TIMEOUT = 10.0  # seconds that a rank waits until all its clients have closed
TAGS = 2**30  # gloo's tags have 32 bits

Answer = Callable[[Tensor, float], Tensor]
"""Computes the reply [P] to a request [P] and the number attached to it."""


class PointToPoint:
    """Point-to-point messages of P float32 values in a separate gloo group.

    A serving rank has a thread per client and answers one request at a time; the client blocks
    until the reply. As long as no answer needs a request of its own, no deadlock is possible.
    Every request has its own tags, and one lock per server keeps its messages in order.

    All ranks must construct one at the same time, since creating a group is collective.

    Args:
      workers: the process group.
      size: P, number of values of a request and of a reply.
      streams: of the device from and to which the values are copied.
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
          clients: their ranks.
          make: called for each of them, so that every thread has an `Answer` of its own.
        """
        for client in clients:
            self.start(partial(self._serve, client, make()))

    def start(self, work: Callable[[], None]) -> None:
        """Run `work` in a thread; `check` raises its exception, `close` joins it."""

        def run() -> None:
            try:
                work()
            except Exception as error:
                self._error = self._error or error

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def request(self, server: int, payload: Tensor, number: float = 0.0) -> Tensor:
        """Send a request to a rank that serves this one, and wait for its reply.

        Args:
          server: its rank.
          payload: [P] float32 on the CPU.
          number: sent along with the payload.

        Returns:
          [P]: the reply, pinned where copies to the device need that; valid until the next request.
        """
        if self._reply is None:
            self._reply = self._streams.buffer(self._size)
        reply = self._reply
        with self._locks[server], self._workers.exchange():
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
        header, payload, number = _header(CLOSE), self._streams.buffer(self._size), 0
        while True:
            with self._workers.exchange():
                dist.recv(header, client, group=self._group, tag=0)
                if header[0] == CLOSE:
                    return
                tag = _tag(number)
                dist.recv(payload, client, group=self._group, tag=tag)
            with self._turn:
                reply = answer(payload, float(header[1]))
            with self._workers.exchange():
                self._send(reply, client, tag + 1)
            number += 1

    def _send(self, tensor: Tensor, peer: int, tag: int) -> None:
        dist.send(tensor, peer, group=self._group, tag=tag)
        with self._counting:
            self.sent += tensor.numel() * tensor.element_size()


def _header(kind: int, number: float = 0.0) -> Tensor:
    return torch.tensor([kind, number], dtype=torch.float64)


def _tag(number: int) -> int:
    """Return the tag of a request; its reply has the next tag, headers have tag 0."""
    return 1 + 2 * (number % TAGS)
