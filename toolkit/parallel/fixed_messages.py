"""Threshold compression into messages of a fixed size, without a look at any value (C28).

The host of a GPU that reads a value waits until the GPU has computed it. Here it reads none: a
message has room for a number of elements that the host has chosen before, and tells itself how many
it holds. Its first word is the number of elements beyond the threshold, -1 where a value is not
finite; the others are those of `toolkit.parallel.compression.SPARSE`. What does not fit, the
elements with the highest indices, stays in the residual for the next step.
"""

from collections import deque
from typing import Any

import torch
from torch import Tensor

from toolkit.parallel.compression import MAX_SIZE, PER_WORD
from toolkit.parallel.streams import Streams

STEPS_BEHIND = 2
"""Steps after which the host looks at the numbers of elements; they have long been computed."""
MARGIN = 2.0
"""Room of a message, relative to the fullest one of the step that is known."""
LEAST = 64  # elements


def encode(gradient: Tensor, residual: Tensor, threshold: Tensor, room: int) -> Tensor:
    """Add a gradient to the residual and encode the elements beyond the threshold.

    Args:
      gradient: [W] float32.
      residual: [W] float32, what was not sent yet; changed in place.
      threshold: tau, a scalar on the same device.
      room: C, number of elements that the message has room for.

    Returns:
      [C + 1] int32.
    """
    residual += gradient
    beyond = residual.abs() > threshold
    place = beyond.cumsum(0, dtype=torch.int32)  # of element i in the message, from 1
    sent = beyond & (place <= room)
    minus = residual < 0
    index = torch.arange(len(residual), dtype=torch.int32, device=residual.device)
    words = (index << 1) | minus.int()  # an index has 31 bits, so that the sign bit may be set
    message = torch.zeros(room + 1, dtype=torch.int32, device=residual.device)
    message.scatter_(0, torch.where(sent, place, 0).long(), words)  # what is not sent: to word 0
    message[0] = place[-1].masked_fill(~torch.isfinite(residual.sum()), -1)
    residual -= threshold * (sent.to(residual.dtype) - 2 * (sent & minus).to(residual.dtype))
    return message


def decode(messages: Tensor, threshold: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Sum the messages of all workers.

    Signs are summed before they are multiplied by the threshold, so that the order in which a
    device adds them changes no bit.

    Args:
      messages: [N, C + 1] int32.
      threshold: tau, a scalar on the same device.
      size: W.

    Returns:
      [W] float32, the same on every worker; nan where a worker's gradient was not finite. And [N],
      the number of elements beyond the threshold of each worker.
    """
    numbers, words = messages[:, 0], messages[:, 1:]
    places = torch.arange(words.shape[1], device=messages.device)
    held = places < numbers[:, None]
    words = words.long() & (2 * MAX_SIZE - 1)
    index = (words >> 1) * held
    signs = (1.0 - 2.0 * (words & 1)) * held
    total = torch.zeros(size, device=messages.device)
    total.index_add_(0, index.flatten(), signs.flatten())
    total *= threshold
    return total.masked_fill_((numbers < 0).any(), float("nan")), numbers


class Rooms:
    """How many elements the messages of every bucket have room for.

    A message has room for `MARGIN` times as many elements as the fullest one had `STEPS_BEHIND`
    steps earlier, which all workers know by then. So all choose the same, and none waits. At first,
    and at most, there is room for a 16th of the elements.

    Args:
      sizes: number of elements of every bucket.
      streams: of the device.
    """

    def __init__(self, sizes: list[int], streams: Streams) -> None:
        self._most = [max(LEAST, size // PER_WORD) for size in sizes]
        self._streams = streams
        self._known = list(self._most)
        self._coming: deque[tuple[Tensor, Any]] = deque()

    def next(self) -> list[int]:
        """Return the room of each bucket's messages in the step that begins."""
        if len(self._coming) >= STEPS_BEHIND:
            host, copied = self._coming.popleft()
            copied.synchronize()
            for bucket, number in enumerate(host.tolist()):
                wanted = max(LEAST, int(MARGIN * number))
                self._known[bucket] = min(self._most[bucket], wanted)
        return self._known

    def add(self, numbers: Tensor) -> None:
        """Add what a step has sent.

        Args:
          numbers: the number of elements beyond the threshold of the fullest message of each
            bucket, on the device, float32.
        """
        host = self._streams.buffer(len(numbers))
        host.copy_(numbers, non_blocking=True)
        self._coming.append((host, self._streams.record()))
