"""Requests and replies of flat tensors between workers, beside what their main threads do."""

import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from toolkit.parallel.launch import Workers

PATIENCE = timedelta(days=30)  # who is lost, the watch finds out; who is slow may be so
REQUEST, BYE = range(2)
GOODBYE = 10.0  # seconds that a rank waits for the goodbyes of all its clients
TAGS = 2**30  # gloo's tags have 32 bits

Answer = Callable[[Tensor, float], Tensor]
"""Makes the reply [P] to a request [P] with a number attached."""


class Exchange:
    """Point-to-point messages of P float32 values in a gloo group of their own.

    A rank that serves has a thread for each client, and answers one request at a time; who asks
    waits for the reply. As long as no answer needs an answer, nobody can wait in a circle. Every
    request has tags of its own, and one lock per server keeps its messages in order.

    All ranks must make one at the same time, since a group is made by all.

    Args:
      workers: the ranks.
      size: P, values of a request and of a reply.
    """

    def __init__(self, workers: Workers, size: int) -> None:
        self._workers = workers
        self._size = size
        self._group = dist.new_group(backend="gloo", timeout=PATIENCE)
        self._locks = [threading.Lock() for _ in range(workers.ranks)]
        self._numbers = [0] * workers.ranks
        self._turn = threading.Lock()
        self._counting = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._error: Exception | None = None
        self.sent = 0
        """Bytes sent; from one rank to another, so each message once."""

    def serve(self, clients: Iterable[int], answer: Answer) -> None:
        """Answer the requests of `clients` in threads, until each has said goodbye."""
        for client in clients:
            self.start(lambda client=client: self._serve(client, answer))

    def start(self, work: Callable[[], None]) -> None:
        """Do something in a thread of which `check` and `close` know."""

        def run() -> None:
            try:
                work()
            except Exception as error:
                self._error = self._error or error

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def request(self, server: int, payload: Tensor, number: float = 0.0) -> Tensor:
        """Ask a rank that serves this one, and wait for its reply.

        Args:
          server: its rank.
          payload: [P] float32 on the CPU.
          number: goes with it.

        Returns:
          [P]: the reply.
        """
        reply = torch.empty(self._size)
        with self._locks[server], self._workers.exchange():
            tag = _tag(self._numbers[server])
            self._numbers[server] += 1
            self._send(_header(REQUEST, number), server, 0)
            self._send(payload, server, tag)
            dist.recv(reply, server, group=self._group, tag=tag + 1)
        return reply

    def check(self) -> None:
        """Raise what went wrong in a thread, such as `WorkerLostError`."""
        if self._error is not None:
            raise self._error

    def close(self, servers: Iterable[int]) -> None:
        """Say goodbye to `servers`, and wait a little until this rank's clients have done so.

        After an exception there is nothing to close: the threads go with the process.
        """
        for server in servers:
            with self._locks[server], self._workers.exchange():
                self._send(_header(BYE), server, 0)
        end = time.monotonic() + GOODBYE
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        self._threads.clear()

    def _serve(self, client: int, answer: Answer) -> None:
        header, payload, number = _header(BYE), torch.empty(self._size), 0
        while True:
            with self._workers.exchange():
                dist.recv(header, client, group=self._group, tag=0)
                if header[0] == BYE:
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
    """Tag of a request; its reply has the next one, headers have 0."""
    return 1 + 2 * (number % TAGS)
