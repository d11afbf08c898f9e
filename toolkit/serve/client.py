"""The conversation with one client: its stream of audio, and its limits."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from toolkit.decode.stream import RecogniserStream, StreamResult
from toolkit.features.frontend import FrontendError
from toolkit.serve import protocol
from toolkit.serve.protocol import AudioFormat, Limits, RefusedError

if TYPE_CHECKING:
    from websockets.asyncio.server import ServerConnection


PIECE = 0.1
"""Seconds of audio that are recognised at a time, as by `toolkit transcribe --stream`."""


class ClientStream:
    """Recognises the audio that a client sends; used in one thread at a time.

    The pieces, and so the words, do not depend on how the audio is cut into messages.

    Args:
      stream: a stream that has not read any audio yet.
      rate: sampling rate in Hz.
    """

    def __init__(self, stream: RecogniserStream, rate: int) -> None:
        self._stream = stream
        self._size = 2 * max(1, round(PIECE * rate))  # bytes of a piece
        self._rest = b""

    def take(self, content: bytes) -> list[StreamResult]:
        """Take more samples, 16 bits each; return the final results, then the newest partial one.

        The partial result is missing if nothing was recognised after the last final result.
        """
        content = self._rest + content
        # Recognise whole pieces; the bytes of an incomplete piece wait for the next message.
        end = len(content) // self._size * self._size
        self._rest = content[end:]
        results: list[StreamResult] = []
        for begin in range(0, end, self._size):
            result = self._stream.push(_samples(content[begin : begin + self._size]))
            # A newer result replaces a partial result that the client has not seen yet.
            if results and results[-1].final is None:
                results.pop()
            results.append(result)
        return results

    def finish(self) -> list[StreamResult]:
        """End the stream; return the final results that are left.

        Raises:
          FrontendError: the stream was shorter than one window.
        """
        results = []
        if self._rest:
            results.append(self._stream.push(_samples(self._rest)))
            self._rest = b""
        results.append(self._stream.finish())
        return [result for result in results if result.final is not None]


def _samples(content: bytes) -> torch.Tensor:
    """Return 16-bit samples as float32 [S] within [-1, 1]."""
    return torch.from_numpy(np.frombuffer(content, "<i2").astype(np.float32) / np.float32(32768))


Result = TypeVar("Result")


class Client:
    """The conversation with one client, from the greeting to the final words.

    The next message is read once the previous one has been recognised. A client that sends faster
    than the machine recognises is thus slowed down by TCP and loses nothing.

    Args:
      connection: the open WebSocket.
      audio: the sample format that the client must use.
      stream: recognises the client's audio.
      pool: the recognition threads; a client has at most one task in their queue, so that clients
        are served in turn.
      limits: limits for this client.
    """

    def __init__(
        self,
        connection: "ServerConnection",
        audio: AudioFormat,
        stream: RecogniserStream,
        pool: Executor,
        limits: Limits,
    ) -> None:
        self._connection, self._audio = connection, audio
        self._stream = ClientStream(stream, audio.rate)
        self._pool, self._limits = pool, limits
        self._since, self._samples = monotonic(), 0

    @property
    def seconds(self) -> float:
        """Seconds of audio received."""
        return self._samples / self._audio.rate

    async def converse(self, system: str) -> None:
        """Recognise a stream.

        Args:
          system: name of the recogniser, as the page shows it.

        Raises:
          RefusedError: the client broke a rule. If the rule limits length or time, all earlier
            words have been sent.
          ConnectionClosed: the client is gone.
        """
        # 1. Both sides declare their format; they must agree.
        await self._send(protocol.hello(self._audio, system))
        self._audio.check(await self._receive())
        # 2. Receive audio until a text message requests the end.
        try:
            while isinstance(message := await self._receive(), bytes):
                self._count(message)
                await self._show(await self._recognise(self._stream.take, message))
            protocol.check_end(message)
        except _LimitError:
            with suppress(FrontendError):
                await self._finish()
            raise
        # 3. Send the last words.
        try:
            await self._finish()
        except FrontendError as error:
            raise RefusedError(f"too little audio: {error}") from error
        await self._send(protocol.done(self.seconds))

    async def _finish(self) -> None:
        """Send the results that are left at the end of the stream."""
        await self._show(await self._recognise(self._stream.finish))

    def _count(self, message: bytes) -> None:
        """Count the samples of a message; raise an error if it breaks a limit."""
        self._samples += protocol.samples_of(message)
        elapsed = monotonic() - self._since
        # A client that sends a file at full speed would keep the threads from other clients.
        if self.seconds > elapsed + self._limits.ahead:
            raise RefusedError(
                f"audio came more than {self._limits.ahead:g} s ahead of real time: send the"
                " audio at the pace at which it is spoken"
            )
        if max(self.seconds, elapsed) > self._limits.longest:
            raise _LimitError(
                f"a stream may last at most {self._limits.longest:g} s: start a new stream"
            )

    async def _receive(self) -> str | bytes:
        """Wait for the client's next message."""
        return await self._within(self._connection.recv(), "no message arrived")

    async def _send(self, message: str) -> None:
        """Send a message to the client."""
        await self._within(self._connection.send(message), "the client read no results")

    async def _within(self, waiting: Awaitable[Result], fault: str) -> Result:
        """Wait for at most `Limits.idle` seconds; raise a `_LimitError` after that."""
        try:
            return await asyncio.wait_for(waiting, self._limits.idle)
        except asyncio.TimeoutError as error:  # TimeoutError itself from Python 3.11 on
            raise _LimitError(f"{fault} for {self._limits.idle:g} s") from error

    async def _recognise(
        self, function: Callable[..., list[StreamResult]], *content: Any
    ) -> list[StreamResult]:
        """Call a function in a recognition thread, and wait for its results."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, function, *content)

    async def _show(self, results: Sequence[StreamResult]) -> None:
        """Send results to the client."""
        for result in results:
            await self._send(protocol.result_message(result))


class _LimitError(RefusedError):
    """A stream was too long or stalled; the client still gets the words recognised so far."""
