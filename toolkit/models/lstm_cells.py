"""Compiled loops of LSTM cells: what lies between the products of a frame and of the next one.

Values are float32 or float64; products in bfloat16 are read and written as its bits, as numpy has
no such type. Each loop has few arrays, so that it is computed many cells at a time.
"""

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

Array = np.ndarray
# 2^y for y in [-0.5, 0.5]: the polynomial whose largest error relative to it is smallest, 2e-9.
EXP2 = (1.0, 0.693147206, 0.240226469, 0.0555032878, 0.00961848896, 0.00133999314, 0.00015345812)
LARGEST = np.float32(126.0)
ROUNDS = np.float32(1.5 * 2**23)
"""Added to a float32 of at most 2^22 and subtracted again, it leaves the nearest integer."""
NAN = 0x7FC0
UNCHECKED = {"error_model": "numpy"}
"""Divisions that raise nothing, so that they are computed many at a time."""
ZERO = int(ROUNDS.view(np.int32))


@njit(cache=True, nogil=True)
def forward_frame(
    frame: int, given: Array, gates: Array, cells: Array, outputs: Array, factors: Array
) -> None:
    """Compute cells and outputs of a frame: N rows, H cells each.

    Args:
      frame: t, of T.
      given: [T, N, 4 H] gates before their functions: input, forget, cell, output. Bits of bfloat16
        or as `gates`, which it then may be.
      gates: [T, N, 4 H]; those of frame t are written.
      cells: [T + 1, N, H]; frame t is read, t + 1 written.
      outputs: [T + 1, N, H]; frame t + 1 is written.
      factors: the same in the type of the next products; may be `outputs`.
    """
    size = cells.shape[2]
    before = np.empty(4 * size, gates.dtype)
    for row in range(cells.shape[1]):
        copy_numbers(given[frame, row], before)
        after = gates[frame, row]
        _sigmoids(before[: 2 * size], after[: 2 * size])
        _tanhs(before[2 * size : 3 * size], after[2 * size : 3 * size])
        _sigmoids(before[3 * size :], after[3 * size :])
        i, f = after[:size], after[size : 2 * size]
        g, o = after[2 * size : 3 * size], after[3 * size :]
        old, new, output = cells[frame, row], cells[frame + 1, row], outputs[frame + 1, row]
        for k in range(size):
            new[k] = f[k] * old[k] + i[k] * g[k]
        for k in range(size):
            output[k] = o[k] * tanh(new[k])
        copy_numbers(output, factors[frame + 1, row])


@njit(cache=True, nogil=True)
def backward_frame(
    frame: int,
    gates: Array,
    cells: Array,
    above: Array,
    back: Array,
    by_cell: Array,
    by_gates: Array,
    by_bias: Array,
) -> None:
    """Compute a frame's gradients.

    Args:
      frame: t, of T.
      gates, cells: what `forward_frame` has written.
      above: [T, N, H] gradient by the outputs of the layer.
      back: [N, H] gradient by the output of frame t that comes from frame t + 1, in the type of
        products.
      by_cell: [N, H] gradient by the cells after the frame; becomes that before it.
      by_gates: [T, N, 4 H] in the type of products; frame t is written.
      by_bias: [4 H] float64, to which the gradient by the bias is added.
    """
    size = cells.shape[2]
    by_output, squashed = np.empty(size, cells.dtype), np.empty(size, cells.dtype)
    found = np.empty(4 * size, cells.dtype)
    by_i, by_f = found[:size], found[size : 2 * size]
    by_g, by_o = found[2 * size : 3 * size], found[3 * size :]
    for row in range(cells.shape[1]):
        now = gates[frame, row]
        i, f, g, o = now[:size], now[size : 2 * size], now[2 * size : 3 * size], now[3 * size :]
        old, new, rising = cells[frame, row], cells[frame + 1, row], by_cell[row]
        copy_numbers(back[row], by_output)
        incoming = above[frame, row]
        for k in range(size):
            by_output[k] += incoming[k]
        for k in range(size):
            squashed[k] = tanh(new[k])
        for k in range(size):
            by_o[k] = by_output[k] * squashed[k] * o[k] * (1 - o[k])
        for k in range(size):
            rising[k] += by_output[k] * o[k] * (1 - squashed[k] * squashed[k])
        for k in range(size):
            by_i[k] = rising[k] * g[k] * i[k] * (1 - i[k])
        for k in range(size):
            by_g[k] = rising[k] * i[k] * (1 - g[k] * g[k])
        for k in range(size):
            by_f[k] = rising[k] * old[k] * f[k] * (1 - f[k])
        for k in range(size):
            rising[k] *= f[k]
        for k in range(4 * size):
            by_bias[k] += found[k]
        copy_numbers(found, by_gates[frame, row])


@njit(cache=True, nogil=True)
def _sigmoids(before: Array, after: Array) -> None:
    for k in range(len(before)):
        after[k] = sigmoid(before[k])


@njit(cache=True, nogil=True)
def _tanhs(before: Array, after: Array) -> None:
    for k in range(len(before)):
        after[k] = tanh(before[k])


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)); for kernels only."""
    raise NotImplementedError


def tanh(x: Any) -> Any:
    """The hyperbolic tangent; for kernels only."""
    raise NotImplementedError


def widened(x: Any) -> Any:
    """A number itself, or that of which bits of bfloat16 are given; for kernels only."""
    raise NotImplementedError


def copy_numbers(given: Any, into: Any) -> Any:
    """Copy numbers, from or to bits of bfloat16; for kernels only."""
    raise NotImplementedError


@overload(sigmoid, jit_options=UNCHECKED)
def _sigmoid(x: Any) -> Any:
    return _sigmoid32 if x == types.float32 else _sigmoid64


def _sigmoid32(x: Any) -> Any:
    return np.float32(1.0) / (np.float32(1.0) + _exp(-x))


def _sigmoid64(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


@overload(tanh, jit_options=UNCHECKED)
def _tanh(x: Any) -> Any:
    return _tanh32 if x == types.float32 else _tanh64


def _tanh32(x: Any) -> Any:  # to 1e-7, not relative to itself
    return np.float32(2.0) / (np.float32(1.0) + _exp(np.float32(-2.0) * x)) - np.float32(1.0)


def _tanh64(x: Any) -> Any:
    return np.tanh(x)


@njit(cache=True, nogil=True)
def _exp(x: float) -> float:
    """Compute exp(x) in float32, 2^-126 to 2^126, without a branch; of nan it is nan."""
    y = x * np.float32(1.44269504)
    y = LARGEST if y > LARGEST else y
    y = -LARGEST if y < -LARGEST else y
    shifted = y + ROUNDS
    whole = shifted - ROUNDS
    rest = y - whole
    power = np.float32(EXP2[6])
    power = power * rest + np.float32(EXP2[5])
    power = power * rest + np.float32(EXP2[4])
    power = power * rest + np.float32(EXP2[3])
    power = power * rest + np.float32(EXP2[2])
    power = power * rest + np.float32(EXP2[1])
    power = power * rest + np.float32(EXP2[0])
    exponent = np.float32(shifted).view(np.int32) - ZERO + 127
    return power * np.int32(exponent << 23).view(np.float32)


@overload(widened)
def _widened(x: Any) -> Any:
    return _bits_widened if isinstance(x, types.Integer) else _itself


def _itself(x: Any) -> Any:
    return x


def _bits_widened(x: Any) -> Any:
    return np.uint32(np.uint32(x) << 16).view(np.float32)


@overload(copy_numbers)
def _copied(given: Any, into: Any) -> Any:
    if isinstance(into.dtype, types.Integer):
        return _to_bits
    return _to_numbers


def _to_numbers(given: Any, into: Any) -> Any:
    for k in range(len(given)):
        into[k] = widened(given[k])


def _to_bits(given: Any, into: Any) -> Any:
    for k in range(len(given)):  # to the nearest, of two the even one
        bits = np.float32(given[k]).view(np.uint32)
        rounded = np.uint32(bits + 0x7FFF + (bits >> 16 & 1))
        into[k] = np.uint16(rounded >> 16 if given[k] == given[k] else NAN)
