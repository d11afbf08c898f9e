"""LSTM layers for training on the CPU with torch 1.13, and in bfloat16 with any torch.

Torch 1.13 builds the graph of a CPU LSTM frame by frame: its backward pass makes the gradient of
every recurrent weight once per frame and adds them up. Here a layer is one node of the graph and a
weight's gradient one product over all frames. Measured on one core, in float32, against torch
1.13.1: as fast with chunks of 32 frames (768 cells, batch 64), 1.8 times as fast with one utterance
(320 cells), 1.9 times with 4 (800 cells). In float32 torch 2.15's own is faster than either.

In bfloat16 its backward pass, oneDNN's, is slower than products are: of the products' limit
training reaches 0.69 with torch 2.15's and 0.91 here (5 x 768 cells, batch 64, AMD's avx512_bf16).

Between the product of a frame and that of the next one there are compiled loops of cells. Values
are float32 or float64; products in bfloat16 are read and written as its bits, as numpy has no such
type. Each loop has few arrays, so that it is computed many cells at a time.
"""

from functools import cache
from typing import Any

import numpy as np
import torch
from numba import njit, types
from numba.extending import overload
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

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


State = tuple[Tensor, Tensor]
LARGE = 384
"""Cells from which training in bfloat16 is faster here than with torch's LSTM: 1.05 times with 384,
1.25 to 1.3 times with 768, 0.91 to 1.02 times with fewer."""
TYPES = torch.float32, torch.float64
"""Of weights."""
FEW = 4
"""Threads up to which it is: only products are shared among threads."""


def replaces_torch(lstm: nn.Module, inputs: Tensor) -> bool:
    """Whether `run_lstm` is faster than torch, or torch has no LSTM.

    On processors without AVX-512 torch's LSTM fails under autocast to bfloat16: oneDNN has none.
    """
    if not isinstance(lstm, nn.LSTM) or lstm.weight_hh_l0.dtype not in TYPES:
        return False  # such as a quantised one, which has no weights of that name
    if inputs.device.type != "cpu":
        return False
    training, bfloat16 = torch.is_grad_enabled(), _autocast_to_bfloat16()
    if int(torch.__version__.split(".")[0]) < 2 and training:
        return True
    faster = training and lstm.hidden_size >= LARGE and torch.get_num_threads() <= FEW
    return bfloat16 and (faster or not onednn_has_bfloat16())


@cache
def onednn_has_bfloat16() -> bool:
    """Whether oneDNN computes in bfloat16 on this processor."""
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return supported is None or bool(supported())


def run_lstm(
    lstm: nn.LSTM, inputs: Tensor, state: State | None = None, lengths: Tensor | None = None
) -> tuple[Tensor, State]:
    """Compute what `lstm` computes, in time-major layers of `_Layer`.

    Under autocast to bfloat16 the products' factors and results are rounded to it, while everything
    between products stays in the weights' type.

    Args:
      lstm: batch first, one or two directions.
      inputs: [N, T, D].
      state: before the first frame, [layers * directions, N, H] each; None for zeros.
      lengths: [N], needed for two directions: the frames from where the second goes backwards;
        None: T.

    Returns:
      [N, T, directions * H], and the state after the last frame of inputs (or the first).

    Raises:
      TypeError: the weights are not in one of `TYPES`.
    """
    if lstm.weight_hh_l0.dtype not in TYPES:
        raise TypeError(f"weights are {lstm.weight_hh_l0.dtype}, not float32 or float64")
    bfloat16 = _autocast_to_bfloat16()
    hidden, finals = inputs.transpose(0, 1).contiguous(), []
    backwards = None
    if lstm.bidirectional:
        backwards = reversal(hidden.shape[0], hidden.shape[1], lengths)
    for layer in range(lstm.num_layers):
        outputs = []
        for direction in range(1 + lstm.bidirectional):
            index = layer * (1 + lstm.bidirectional) + direction
            x = ordered(hidden, backwards) if direction else hidden
            if state is None:
                before = [x.new_zeros(x.shape[1], lstm.hidden_size)] * 2
            else:
                before = [part[index] for part in state]
            output, last = _Layer.apply(x, *before, *lstm.all_weights[index], bfloat16)
            finals.append((output[-1], last))
            outputs.append(ordered(output, backwards) if direction else output)
        hidden = torch.cat(outputs, dim=2) if lstm.bidirectional else outputs[0]
        if layer + 1 < lstm.num_layers:
            hidden = functional.dropout(hidden, lstm.dropout, lstm.training)
    stacked = (torch.stack(part) for part in zip(*finals, strict=True))
    return hidden.transpose(0, 1), tuple(stacked)


def _autocast_to_bfloat16() -> bool:
    try:
        enabled, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    except (TypeError, AttributeError):  # torch before 2.4
        enabled, dtype = torch.is_autocast_cpu_enabled(), torch.get_autocast_cpu_dtype()
    return enabled and dtype == torch.bfloat16


def reversal(frames: int, rows: int, lengths: Tensor | None) -> Tensor:
    """Index [T, N] of the frame that stands at each place when each row is reversed."""
    place = torch.arange(frames)[:, None].expand(-1, rows)
    if lengths is None:
        return frames - 1 - place
    return torch.where(place < lengths, lengths - 1 - place, place)


def ordered(x: Tensor, index: Tensor) -> Tensor:
    """Put the frames of each row of x [T, N, F] in the order of `index` [T, N]."""
    return x.gather(0, index[:, :, None].expand(-1, -1, x.shape[2]))


def spread_rows(matrix: Tensor) -> Tensor:
    """Copy a matrix by rows that begin 16 values after the end of the one before.

    MKL 2020 multiplies a few rows by it up to twice as fast as by a transposed one (GFLOP/s, 4 rows
    by 512 x 2,048: 36 against 73), and, with rows of 1 KiB or a multiple of it, up to twice as fast
    as without the gaps, which keep the rows out of each other's places in the cache.
    """
    rows, columns = matrix.shape
    spread = matrix.new_empty(rows, columns + 16)[:, :columns]
    return spread.copy_(matrix)


class _Layer(torch.autograd.Function):
    """One layer in one direction: x [T, N, D] to outputs [T, N, H] and the last cell [N, H]."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        h: Tensor,
        c: Tensor,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor,
        b_hh: Tensor,
        bfloat16: bool,
    ) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", enabled=False):
            factor = torch.bfloat16 if bfloat16 else w_hh.dtype
            frames, rows, size = x.shape[0], x.shape[1], w_hh.shape[1]
            x = x.to(factor).flatten(0, 1)
            recurrent = w_hh.to(factor).t() if bfloat16 else spread_rows(w_hh.t())
            given = torch.addmm((b_ih + b_hh).to(factor), x, w_ih.to(factor).t())
            given = given.view(frames, rows, 4 * size)
            gates = given.new_empty(given.shape, dtype=w_hh.dtype) if bfloat16 else given
            cells = gates.new_empty(frames + 1, rows, size)
            outputs = gates.new_empty(frames + 1, rows, size)
            cells[0], outputs[0] = c, h
            factors = outputs.to(factor)
            arrays = [_array(part) for part in (given, gates, cells, outputs, factors)]
            for t, (step, before) in enumerate(zip(given.unbind(0), factors.unbind(0))):  # noqa: B905 - one factor more
                step.addmm_(before, recurrent)
                forward_frame(t, *arrays)
        ctx.save_for_backward(x, w_ih, w_hh, gates, cells, factors)
        return outputs[1:], cells[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_outputs: Tensor, grad_cell: Tensor) -> tuple[Tensor | None, ...]:
        x, w_ih, w_hh, gates, cells, factors = ctx.saved_tensors
        with torch.autocast("cpu", enabled=False):
            factor = factors.dtype
            frames, rows, size = grad_outputs.shape
            recurrent = w_hh.to(factor) if factor != w_hh.dtype else spread_rows(w_hh)
            grads = factors.new_empty(frames, rows, 4 * size)
            dh = factors.new_zeros(rows, size)
            dc = grad_cell.clone(memory_format=torch.contiguous_format)
            db = dc.new_zeros(4 * size, dtype=torch.float64)  # a sum of many rows
            parts = (gates, cells, grad_outputs.contiguous(), dh, dc, grads, db)
            arrays = [_array(part) for part in parts]
            for t in reversed(range(frames)):
                backward_frame(t, *arrays)
                torch.mm(grads[t], recurrent, out=dh)
            flat = grads.flatten(0, 1)
            dx = None
            if ctx.needs_input_grad[0]:
                dx = (flat @ w_ih.to(factor)).to(dc.dtype).view(frames, rows, -1)
            dw_ih = (flat.t() @ x).to(dc.dtype)
            dw_hh = (flat.t() @ factors[:-1].flatten(0, 1)).to(dc.dtype)
            db = db.to(dc.dtype)
        return dx, dh.to(dc.dtype), dc, dw_ih, dw_hh, db, db, None


def _array(x: Tensor) -> np.ndarray:
    """A tensor's memory as numpy knows it: bfloat16 as its bits."""
    if x.dtype == torch.bfloat16:
        return x.detach().view(torch.int16).numpy().view(np.uint16)
    return x.detach().numpy()
