"""Threshold compression of gradients into messages, on the CPU and on a GPU (C28).

On the CPU a message is a sequence of 32-bit words (`encode`). The first word gives the format.
`SPARSE`: a word per element sent, its index shifted left by one bit, the lowest bit 1 for -tau and
0 for +tau. `BITMAP`: two bits per element (0: not sent, 1: +tau, 2: -tau), the first of 16 in the
lowest bits. `DENSE`: the values themselves. `NON_FINITE`: a value is not finite, so nothing is
sent. A single compiled pass accumulates, compares, encodes and subtracts, in about the time that
copying the gradient takes.

A host that reads a value from a GPU waits until the GPU has computed it. So on a GPU a message has
a fixed size (`encode_fixed`), which the host has chosen before. Its first word is the number of
elements beyond the threshold, or -1 if a value is not finite; the other words are as in `SPARSE`.
Elements that do not fit, those with the highest indices, stay in the residual for the next step.
"""

from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toolkit.kernels import njit
from toolkit.parallel.messages import Streams

SPARSE, BITMAP, DENSE, NON_FINITE = range(4)
PER_WORD = 16
MAX_SIZE = 1 << 31
BLOCK = 64
LARGEST = np.float32(np.finfo(np.float32).max)
STEPS_BEHIND = 2
"""Steps after which the host reads the numbers of elements, which the GPU has long computed."""
MARGIN = 2.0
"""Capacity of a message, relative to the fullest message of the latest step with known counts."""
MIN_ELEMENTS = 64  # smallest capacity of a message


def encode(gradient: Tensor, residual: Tensor, threshold: float, fallback: bool = True) -> Tensor:
    """Add a gradient to the residual and encode the elements beyond the threshold.

    Args:
      gradient: [W] float32.
      residual: [W] float32, the accumulated gradient not sent yet; changed in place.
      threshold: tau; elements beyond it are sent as +-tau, which is subtracted from the
        residual. 0: all elements are sent unchanged.
      fallback: use the format `BITMAP` where that is shorter.

    Returns:
      The message, int32.
    """
    if len(gradient) > MAX_SIZE:
        raise ValueError(f"the gradient has {len(gradient)} elements; GTC sends at most {MAX_SIZE}")
    if threshold == 0:
        residual += gradient
        message = torch.cat([_header(DENSE, residual), residual.view(torch.int32)])
        if not torch.isfinite(residual.sum()):
            return _header(NON_FINITE, residual)
        residual.zero_()
        return message
    capacity = len(gradient) // PER_WORD if fallback else len(gradient)
    return _encode(gradient, residual, threshold, capacity)


def decode(message: Tensor, threshold: float, total: Tensor) -> int:
    """Add a message's elements to `total` [W], in place; return their number.

    Raises:
      FloatingPointError: the sender's gradient was not finite.
    """
    form, body = int(message[0]), message[1:]
    if form == NON_FINITE:
        raise FloatingPointError("a gradient is not finite")
    if form == DENSE:
        total += body.view(torch.float32)
        return len(body)
    words, values = body.numpy().view(np.uint32), total.numpy()
    add = _add_sparse if form == SPARSE else _add_bitmap
    return int(add(words, np.float32(threshold), values))


def _header(form: int, like: Tensor) -> Tensor:
    """Return the first word of a message, which gives its format, on the device of `like`."""
    return torch.full((1,), form, dtype=torch.int32, device=like.device)


def _encode(gradient: Tensor, residual: Tensor, threshold: float, capacity: int) -> Tensor:
    """Encode as `encode` does; up to `capacity` elements are sent in the format `SPARSE`."""
    size, tau = len(gradient), np.float32(threshold)
    g, r = gradient.contiguous().numpy(), residual.numpy()
    words = np.empty(capacity + 1, dtype=np.uint32)
    words[0] = SPARSE
    count, settled, added, broken = _take_sparse(g, r, tau, words)
    if settled == size and not broken:
        return torch.from_numpy(words[:count].view(np.int32).copy())
    # Too many elements for `SPARSE`: a bitmap of two bits per element and the header is shorter.
    bitmap = np.zeros(1 - (-size // PER_WORD), dtype=np.uint32)
    bitmap[0] = BITMAP
    broken += _take_bitmap(g, r, tau, words[1:count], settled, added, bitmap[1:])
    return _header(NON_FINITE, residual) if broken else torch.from_numpy(bitmap.view(np.int32))


@njit(nogil=True, cache=True)
def _take_sparse(
    gradient: np.ndarray, residual: np.ndarray, tau: float, words: np.ndarray
) -> tuple[int, int, int, int]:
    """Encode elements into `words` from index 1 on; stop when it is full.

    Returns:
      Four numbers: words filled; elements that were encoded (settled); elements whose gradient was
      added to the residual (more than settled after a stop); values that are not finite.
    """
    count, size, broken = 1, len(gradient), 0
    for block in range(-(-size // BLOCK)):
        # Slices tell the compiler that no index is negative: twice as fast.
        begin = block * BLOCK
        values, parts = residual[begin : begin + BLOCK], gradient[begin : begin + BLOCK]
        # r += g, and count |r| > tau; "not <=" counts nan too.
        beyond = np.int32(0)
        for i in range(values.size):
            value = values[i] + parts[i]
            values[i] = value
            beyond += np.int32(not abs(value) <= tau)
        if beyond == 0:
            continue
        if count + beyond > len(words):
            return count, begin, min(size, begin + BLOCK), broken
        for i in range(values.size):
            value = values[i]
            if abs(value) <= tau:
                continue
            # Emit the index and the sign in one word; the residual loses the +-tau that is sent.
            minus = value < 0
            words[count] = np.uint32(2 * (begin + i)) | np.uint32(minus)
            values[i] = value + tau if minus else value - tau
            count += 1
            broken += not abs(value) <= LARGEST
    return count, size, size, broken


@njit(nogil=True, cache=True)
def _take_bitmap(
    gradient: np.ndarray,
    residual: np.ndarray,
    tau: float,
    words: np.ndarray,
    settled: int,
    added: int,
    bitmap: np.ndarray,
) -> int:
    """Continue where `_take_sparse` stopped, and convert its words into a bitmap.

    Returns the number of values that are not finite.
    """
    # Words of `SPARSE` to codes: 1 for +tau, 2 for -tau, two bits each
    for word in words:
        i = word >> np.uint32(1)
        code = np.uint32(1) + (word & np.uint32(1))
        bitmap[i // PER_WORD] |= code << np.uint32(2 * (i % PER_WORD))
    broken = 0
    # Elements below `added` have their gradient in the residual already.
    for i in range(settled, len(gradient)):
        value = residual[i] if i < added else residual[i] + gradient[i]
        code = np.uint32(0)
        if value > tau:
            value -= tau
            code = np.uint32(1)
        elif value < -tau:
            value += tau
            code = np.uint32(2)
        residual[i] = value
        bitmap[i // PER_WORD] |= code << np.uint32(2 * (i % PER_WORD))
        if not abs(value) <= LARGEST:
            broken += 1
    return broken


@njit(nogil=True, cache=True)
def _add_sparse(words: np.ndarray, tau: float, total: np.ndarray) -> int:
    """Add the elements of a sparse message to `total`; return their number."""
    # A word is the index, shifted left by one bit, and the sign.
    for word in words:
        total[word >> np.uint32(1)] += -tau if word & np.uint32(1) else tau
    return len(words)


@njit(nogil=True, cache=True)
def _add_bitmap(words: np.ndarray, tau: float, total: np.ndarray) -> int:
    """Add the elements of a bitmap message to `total`; return their number."""
    count = 0
    for index, word in enumerate(words):
        element = index * PER_WORD
        while word:  # two bits per element; a word of 0 has no further elements
            code = word & np.uint32(3)
            if code:
                total[element] += tau if code == 1 else -tau
                count += 1
            word >>= np.uint32(2)
            element += 1
    return count


def encode_fixed(gradient: Tensor, residual: Tensor, threshold: Tensor, capacity: int) -> Tensor:
    """Add a gradient to the residual; encode the elements beyond the threshold in a fixed size.

    Args:
      gradient: [W] float32.
      residual: [W] float32, what was not sent yet; changed in place.
      threshold: tau, a scalar on the same device.
      capacity: C, number of elements that the message can hold.

    Returns:
      [C + 1] int32.
    """
    residual += gradient
    beyond = residual.abs() > threshold
    place = beyond.cumsum(0, dtype=torch.int32)  # of element i in the message, from 1
    sent = beyond & (place <= capacity)  # the others stay in the residual
    minus = residual < 0
    # [W] the word that each element would be: its index and sign
    index = torch.arange(len(residual), dtype=torch.int32, device=residual.device)
    words = (index << 1) | minus.int()  # an index has 31 bits, so that the sign bit may be set
    message = torch.zeros(capacity + 1, dtype=torch.int32, device=residual.device)
    message.scatter_(0, torch.where(sent, place, 0).long(), words)  # not sent: to word 0
    message[0] = place[-1].masked_fill(~torch.isfinite(residual.sum()), -1)
    # r -= tau for elements sent as +tau, r += tau for those sent as -tau: 1 - 2 * [r < 0]
    residual -= threshold * (sent.to(residual.dtype) - 2 * (sent & minus).to(residual.dtype))
    return message


def decode_fixed(messages: Tensor, threshold: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Sum the messages of all workers.

    Signs are summed before they are multiplied by the threshold, so that the order in which a
    device adds them changes no bit.

    Args:
      messages: [N, C + 1] int32.
      threshold: tau, a scalar on the same device.
      size: W, the number of gradient elements.

    Returns:
      [W] float32, the same on every worker; nan if a worker's gradient was not finite. And [N], the
      number of each worker's elements beyond the threshold, or -1 if not finite.
    """
    numbers, words = messages[:, 0], messages[:, 1:]
    places = torch.arange(words.shape[1], device=messages.device)
    is_used = places < numbers[:, None]  # [N, C]; the rest of a message is padding
    words = words.long() & (2 * MAX_SIZE - 1)  # read as uint32: an index may fill the sign bit
    index = (words >> 1) * is_used
    signs = (1.0 - 2.0 * (words & 1)) * is_used  # the lowest bit is 1 for -tau
    total = torch.zeros(size, device=messages.device)
    total.index_add_(0, index.flatten(), signs.flatten())
    total *= threshold
    return total.masked_fill_((numbers < 0).any(), float("nan")), numbers


class MessageCapacity:
    """How many elements the messages of every bucket can hold.

    A message can hold `MARGIN` times as many elements as the fullest one had `STEPS_BEHIND`
    steps earlier, which all workers know by then. So all choose the same capacity, and none waits.
    The initial and largest capacity is a 16th of the elements.

    Args:
      sizes: number of elements of every bucket.
      streams: streams of the device.
    """

    def __init__(self, sizes: list[int], streams: Streams) -> None:
        self._most = [max(MIN_ELEMENTS, size // PER_WORD) for size in sizes]
        self._streams = streams
        self._capacities = list(self._most)
        self._coming: deque[tuple[Tensor, Any]] = deque()

    def next(self) -> list[int]:
        """Return the capacity of each bucket's messages in the step that begins."""
        if len(self._coming) >= STEPS_BEHIND:
            host, copied = self._coming.popleft()
            copied.synchronize()
            for bucket, number in enumerate(host.tolist()):
                capacity = max(MIN_ELEMENTS, int(MARGIN * number))
                self._capacities[bucket] = min(self._most[bucket], capacity)
        return self._capacities

    def add(self, numbers: Tensor) -> None:
        """Record how many elements were beyond the threshold in a step.

        Args:
          numbers: by bucket, the largest number of elements beyond the threshold that a worker
            had; float32, on the device.
        """
        host = self._streams.buffer(len(numbers))
        host.copy_(numbers, non_blocking=True)
        self._coming.append((host, self._streams.record()))
