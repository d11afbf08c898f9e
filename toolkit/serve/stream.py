"""The stream of one client: its bytes are cut into pieces, which are recognised one by one."""

import numpy as np
import torch

from toolkit.decode.stream import Streaming, StreamResult
from toolkit.serve.settings import PIECE


class ClientStream:
    """Recognises what a client sends; used in one thread at a time.

    The pieces, and so the words, do not depend on how the audio is cut into messages.

    Args:
      recogniser: one that has not read any audio yet.
      rate: sampling rate in Hz.
    """

    def __init__(self, recogniser: Streaming, rate: int) -> None:
        self._recogniser = recogniser
        self._size = 2 * max(1, round(PIECE * rate))  # bytes of a piece
        self._rest = b""

    def take(self, content: bytes) -> list[StreamResult]:
        """Take more samples, 16 bits each; return the final results, then the newest partial one.

        The partial one is missing where nothing was recognised after the last final one.
        """
        content = self._rest + content
        whole = len(content) // self._size * self._size
        self._rest = content[whole:]
        results: list[StreamResult] = []
        for begin in range(0, whole, self._size):
            result = self._recogniser.push(_samples(content[begin : begin + self._size]))
            if results and results[-1].final is None:
                results.pop()
            results.append(result)
        return results

    def finish(self) -> list[StreamResult]:
        """End the stream; return the final results that are left.

        Raises:
          FrontendError: it was shorter than one window.
        """
        results = []
        if self._rest:
            results.append(self._recogniser.push(_samples(self._rest)))
            self._rest = b""
        results.append(self._recogniser.finish())
        return [result for result in results if result.final is not None]


def _samples(content: bytes) -> torch.Tensor:
    """Samples [S] float32 within [-1, 1]."""
    return torch.from_numpy(np.frombuffer(content, "<i2").astype(np.float32) / np.float32(32768))
