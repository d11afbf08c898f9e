"""LSTM layers for training on the CPU with torch 1.13, or in bfloat16 with any torch.

Torch 1.13 builds the graph of a CPU LSTM frame by frame: its backward pass computes the gradient of
every recurrent weight once per frame and adds the results. Here a layer is one node of the graph,
and a weight's gradient is one product over all frames. Measured on one core, in float32, against
torch 1.13.1: as fast with chunks of 32 frames (768 cells, batch 64), 1.8 times as fast with one
utterance (320 cells), 1.9 times with 4 (800 cells). In float32, torch 2.15's own LSTM is faster
than either.

In bfloat16, torch's backward pass (oneDNN's) takes longer than its matrix products need. Training
reaches 0.69 of the products' speed with torch 2.15's LSTM, and 0.91 here (5 x 768 cells, batch 64,
AMD's avx512_bf16).

Between the matrix products of two frames, compiled loops compute the cells. Values are float32 or
float64; operands and results of bfloat16 products are read and written as bits, as numpy has no
such type. Each loop has few arrays, so that the compiler can vectorise it.
"""

from functools import cache
from typing import Any

import numpy as np
import torch
from numba import types
from numba.extending import overload
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from toolkit.kernels import njit

State = tuple[Tensor, Tensor]
MIN_CELLS = 512
"""Number of cells from which training in bfloat16 is at least a fifth faster here than with torch's
LSTM, see `docs/packages/models.md`."""
WEIGHT_TYPES = torch.float32, torch.float64
MAX_THREADS = 4
"""Number of threads up to which training is faster here: only matrix products use several."""

Array = np.ndarray
# 2^y for y in [-0.5, 0.5]: the polynomial with the smallest maximal relative error, 2e-9.
EXP2 = (1.0, 0.693147206, 0.240226469, 0.0555032878, 0.00961848896, 0.00133999314, 0.00015345812)
LARGEST = np.float32(126.0)
ROUNDS = np.float32(1.5 * 2**23)
"""Adding it to a float32 of at most 2^22 and subtracting it again leaves the nearest integer."""
NAN = 0x7FC0
UNCHECKED = {"error_model": "numpy"}
"""Divisions do not raise errors, so that the compiler can vectorise them."""
ZERO = int(ROUNDS.view(np.int32))


@njit(cache=True, nogil=True)
def forward_frame(
    frame: int,
    preactivations: Array,
    gates: Array,
    cells: Array,
    outputs: Array,
    gemm_operands: Array,
) -> None:
    """Compute a frame's cells and outputs for N rows with H cells each.

    Args:
      frame: t, of T.
      preactivations: [T, N, 4 H] gates before their activation functions: input, forget, cell,
        output. Bits of bfloat16, or numbers of the type of `gates`; in the second case it may be
        the array `gates` itself.
      gates: [T, N, 4 H]; those of frame t are written.
      cells: [T + 1, N, H]; frame t is read, t + 1 written.
      outputs: [T + 1, N, H]; frame t + 1 is written.
      gemm_operands: `outputs` in the type of the next product; may be the array `outputs` itself.
    """
    size = cells.shape[2]
    # z_t = W_ih x_t + W_hh h_(t-1) + b of one row, in the gates' type: [4 H]
    z = np.empty(4 * size, gates.dtype)
    for row in range(cells.shape[1]):
        copy_numbers(preactivations[frame, row], z)
        activations = gates[frame, row]
        # torch's order of the gates: i, f, g, o; i, f and o have sigmoids, g has tanh.
        _sigmoids(z[: 2 * size], activations[: 2 * size])
        _tanhs(z[2 * size : 3 * size], activations[2 * size : 3 * size])
        _sigmoids(z[3 * size :], activations[3 * size :])
        i, f = activations[:size], activations[size : 2 * size]
        g, o = activations[2 * size : 3 * size], activations[3 * size :]
        old, new, output = cells[frame, row], cells[frame + 1, row], outputs[frame + 1, row]
        for k in range(size):  # c_t = f c_(t-1) + i g
            new[k] = f[k] * old[k] + i[k] * g[k]
        for k in range(size):  # h_t = o tanh(c_t)
            output[k] = o[k] * tanh(new[k])
        copy_numbers(output, gemm_operands[frame + 1, row])


@njit(cache=True, nogil=True)
def backward_frame(
    frame: int,
    gates: Array,
    cells: Array,
    grad_outputs: Array,
    grad_recurrent: Array,
    grad_cells: Array,
    grad_gates: Array,
    grad_bias: Array,
) -> None:
    """Compute a frame's gradients; called from the last frame to the first.

    Args:
      frame: t, of T.
      gates, cells: what `forward_frame` has written.
      grad_outputs: [T, N, H] gradient with respect to the outputs of the layer.
      grad_recurrent: [N, H] the part of the gradient with respect to the output of frame t that
        comes from frame t + 1, in the type of products.
      grad_cells: [N, H] gradient with respect to the cells after the frame; overwritten with the
        gradient with respect to the cells before the frame.
      grad_gates: [T, N, 4 H] gradient with respect to `preactivations`, in the type of products;
        frame t is written.
      grad_bias: [4 H] float64, to which the gradient with respect to the bias is added.
    """
    size = cells.shape[2]
    grad_h, tanh_c = np.empty(size, cells.dtype), np.empty(size, cells.dtype)
    grads = np.empty(4 * size, cells.dtype)
    grad_i, grad_f = grads[:size], grads[size : 2 * size]
    grad_g, grad_o = grads[2 * size : 3 * size], grads[3 * size :]
    for row in range(cells.shape[1]):
        activations = gates[frame, row]
        i, f = activations[:size], activations[size : 2 * size]
        g, o = activations[2 * size : 3 * size], activations[3 * size :]
        # c_(t-1) and c_t; dc_t, to which the later frames have contributed
        old, new, grad_c = cells[frame, row], cells[frame + 1, row], grad_cells[row]
        copy_numbers(grad_recurrent[row], grad_h)
        from_output = grad_outputs[frame, row]
        # dh_t = dL/dh_t + W_hh^T dz_(t+1): from the output, and from the gates of frame t + 1
        for k in range(size):
            grad_h[k] += from_output[k]
        for k in range(size):
            tanh_c[k] = tanh(new[k])
        # h = o tanh(c): dz_o = dh tanh(c) o (1 - o), with the sigmoid's derivative o (1 - o)
        for k in range(size):
            grad_o[k] = grad_h[k] * tanh_c[k] * o[k] * (1 - o[k])
        # dc_t = f_(t+1) dc_(t+1) + dh_t o (1 - tanh(c)^2)
        for k in range(size):
            grad_c[k] += grad_h[k] * o[k] * (1 - tanh_c[k] * tanh_c[k])
        # c_t = f c_(t-1) + i g: dz_i = dc g i (1 - i)
        for k in range(size):
            grad_i[k] = grad_c[k] * g[k] * i[k] * (1 - i[k])
        for k in range(size):  # dz_g = dc i (1 - g^2)
            grad_g[k] = grad_c[k] * i[k] * (1 - g[k] * g[k])
        for k in range(size):  # dz_f = dc c_(t-1) f (1 - f)
            grad_f[k] = grad_c[k] * old[k] * f[k] * (1 - f[k])
        for k in range(size):  # the part of dc_(t-1) that comes through c_t: f dc_t
            grad_c[k] *= f[k]
        for k in range(4 * size):  # db = sum over frames and rows of dz_t
            grad_bias[k] += grads[k]
        copy_numbers(grads, grad_gates[frame, row])


@njit(cache=True, nogil=True)
def _sigmoids(values: Array, out: Array) -> None:
    """Apply `sigmoid` to each value."""
    for k in range(len(values)):
        out[k] = sigmoid(values[k])


@njit(cache=True, nogil=True)
def _tanhs(values: Array, out: Array) -> None:
    """Apply `tanh` to each value."""
    for k in range(len(values)):
        out[k] = tanh(values[k])


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(-x)); callable in kernels only."""
    raise NotImplementedError


def tanh(x: Any) -> Any:
    """Return the hyperbolic tangent; callable in kernels only."""
    raise NotImplementedError


def widened(x: Any) -> Any:
    """Convert bfloat16 bits to float32, other numbers unchanged; callable in kernels only."""
    raise NotImplementedError


def copy_numbers(source: Any, target: Any) -> Any:
    """Copy an array, converting from or to bfloat16 bits; callable in kernels only."""
    raise NotImplementedError


@overload(sigmoid, jit_options=UNCHECKED)
def _sigmoid(x: Any) -> Any:
    """Choose the implementation of `sigmoid` by the type of x."""
    return _sigmoid32 if x == types.float32 else _sigmoid64


def _sigmoid32(x: Any) -> Any:
    """Return the sigmoid in float32."""
    return np.float32(1.0) / (np.float32(1.0) + _exp(-x))


def _sigmoid64(x: Any) -> Any:
    """Return the sigmoid in float64."""
    return 1.0 / (1.0 + np.exp(-x))


@overload(tanh, jit_options=UNCHECKED)
def _tanh(x: Any) -> Any:
    """Choose the implementation of `tanh` by the type of x."""
    return _tanh32 if x == types.float32 else _tanh64


def _tanh32(x: Any) -> Any:
    """Return the hyperbolic tangent in float32."""
    # tanh(x) = 2 / (1 + exp(-2 x)) - 1; the absolute error is below 1e-7.
    return np.float32(2.0) / (np.float32(1.0) + _exp(np.float32(-2.0) * x)) - np.float32(1.0)


def _tanh64(x: Any) -> Any:
    """Return the hyperbolic tangent in float64."""
    return np.tanh(x)


@njit(cache=True, nogil=True)
def _exp(x: float) -> float:
    """Compute exp(x) in float32 without branches, limited to 2^-126 to 2^126; NaN stays NaN."""
    y = x * np.float32(1.44269504)  # log2(e): exp(x) = 2^y
    y = LARGEST if y > LARGEST else y
    y = -LARGEST if y < -LARGEST else y
    # Adding 1.5 * 2^23 rounds to an integer, which then stands in the mantissa's lowest bits.
    shifted = y + ROUNDS
    integer = shifted - ROUNDS
    fraction = y - integer  # in [-0.5, 0.5]
    power = np.float32(EXP2[6])  # Horner's scheme for 2^fraction
    power = power * fraction + np.float32(EXP2[5])
    power = power * fraction + np.float32(EXP2[4])
    power = power * fraction + np.float32(EXP2[3])
    power = power * fraction + np.float32(EXP2[2])
    power = power * fraction + np.float32(EXP2[1])
    power = power * fraction + np.float32(EXP2[0])
    # 2^integer is the float32 whose exponent is the integer, with a bias of 127.
    exponent = np.float32(shifted).view(np.int32) - ZERO + 127
    return power * np.int32(exponent << 23).view(np.float32)


@overload(widened)
def _widened(x: Any) -> Any:
    """Choose the implementation of `widened` by the type of x."""
    return _bits_widened if isinstance(x, types.Integer) else _itself


def _itself(x: Any) -> Any:
    """Return x unchanged."""
    return x


def _bits_widened(x: Any) -> Any:
    """Convert bfloat16 bits to float32."""
    # bfloat16 is the upper half of a float32.
    return np.uint32(np.uint32(x) << 16).view(np.float32)


@overload(copy_numbers)
def _copy_numbers(source: Any, target: Any) -> Any:
    """Choose the implementation of `copy_numbers` by the type of the target."""
    if isinstance(target.dtype, types.Integer):
        return _to_bits
    return _to_numbers


def _to_numbers(source: Any, target: Any) -> Any:
    """Copy to an array of floats."""
    for k in range(len(source)):
        target[k] = widened(source[k])


def _to_bits(source: Any, target: Any) -> Any:
    """Copy to an array of bfloat16 bits."""
    # bfloat16 is the upper half of a float32, rounded to the nearest; of two, to the even one.
    for k in range(len(source)):
        bits = np.float32(source[k]).view(np.uint32)
        rounded = np.uint32(bits + 0x7FFF + (bits >> 16 & 1))
        target[k] = np.uint16(rounded >> 16 if source[k] == source[k] else NAN)


def is_faster_than_torch(lstm: nn.Module, inputs: Tensor) -> bool:
    """Return whether `run_lstm` is faster than torch's LSTM, or torch's does not work here.

    On processors without AVX-512 torch's LSTM fails under autocast to bfloat16, as oneDNN has no
    bfloat16 kernels there.
    """
    if not isinstance(lstm, nn.LSTM) or lstm.weight_hh_l0.dtype not in WEIGHT_TYPES:
        return False  # such as a quantised one, which has no weights of that name
    if inputs.device.type != "cpu":
        return False
    training, bfloat16 = torch.is_grad_enabled(), _autocast_to_bfloat16()
    if int(torch.__version__.split(".")[0]) < 2 and training:
        return True
    faster = training and lstm.hidden_size >= MIN_CELLS and torch.get_num_threads() <= MAX_THREADS
    return bfloat16 and (faster or not onednn_has_bfloat16())


@cache
def onednn_has_bfloat16() -> bool:
    """Return whether oneDNN supports bfloat16 on this processor."""
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return supported is None or bool(supported())


def run_lstm(
    lstm: nn.LSTM, inputs: Tensor, state: State | None = None, lengths: Tensor | None = None
) -> tuple[Tensor, State]:
    """Compute the outputs of `lstm` with the layers of `_Layer`.

    Under autocast to bfloat16, operands and results of matrix products are rounded to it, while
    everything between products stays in the weights' type.

    Args:
      lstm: batch first, one or two directions.
      inputs: [N, T, D].
      state: before the first frame, [layers * directions, N, H] each; None for zeros.
      lengths: [N], real frames of each row; the second direction starts from the last of them. Not
        used with one direction. None: T for every row.

    Returns:
      [N, T, directions * H], and the state after the last frame that each direction reads.

    Raises:
      TypeError: the weights are not in one of `WEIGHT_TYPES`.
    """
    if lstm.weight_hh_l0.dtype not in WEIGHT_TYPES:
        raise TypeError(f"LSTM weights are {lstm.weight_hh_l0.dtype}, not float32 or float64")
    bfloat16 = _autocast_to_bfloat16()
    hidden, finals = inputs.transpose(0, 1).contiguous(), []
    backwards = None
    if lstm.bidirectional:
        backwards = reversal(hidden.shape[0], hidden.shape[1], lengths)
    for layer in range(lstm.num_layers):
        outputs = []
        # The second direction reads each row's frames in reverse, and its outputs are turned back.
        # States and weights are numbered as PyTorch's: layer by layer, the directions in turn.
        for direction in range(1 + lstm.bidirectional):
            index = layer * (1 + lstm.bidirectional) + direction
            x = ordered(hidden, backwards) if direction else hidden
            if state is None:
                initial_state = [x.new_zeros(x.shape[1], lstm.hidden_size)] * 2
            else:
                initial_state = [part[index] for part in state]
            output, last = _Layer.apply(x, *initial_state, *lstm.all_weights[index], bfloat16)
            finals.append((output[-1], last))
            outputs.append(ordered(output, backwards) if direction else output)
        hidden = torch.cat(outputs, dim=2) if lstm.bidirectional else outputs[0]
        if layer + 1 < lstm.num_layers:
            hidden = functional.dropout(hidden, lstm.dropout, lstm.training)
    stacked = (torch.stack(part) for part in zip(*finals, strict=True))
    return hidden.transpose(0, 1), tuple(stacked)


def _autocast_to_bfloat16() -> bool:
    """Return whether autocast to bfloat16 is enabled on the CPU."""
    try:
        enabled, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    except (TypeError, AttributeError):  # torch before 2.4
        enabled, dtype = torch.is_autocast_cpu_enabled(), torch.get_autocast_cpu_dtype()
    return enabled and dtype == torch.bfloat16


def reversal(frames: int, rows: int, lengths: Tensor | None) -> Tensor:
    """Return the source frame [T, N] of each frame when the first `lengths` frames are reversed."""
    frame = torch.arange(frames)[:, None].expand(-1, rows)
    if lengths is None:
        return frames - 1 - frame
    return torch.where(frame < lengths, lengths - 1 - frame, frame)  # padding stays in its place


def ordered(x: Tensor, index: Tensor) -> Tensor:
    """Reorder the frames of each row of x [T, N, F] by `index` [T, N]."""
    return x.gather(0, index[:, :, None].expand(-1, -1, x.shape[2]))


def spread_rows(matrix: Tensor) -> Tensor:
    """Copy a matrix with a gap of 16 values after each row, for faster multiplication by MKL.

    MKL 2020 multiplies a few rows by such a copy up to twice as fast as by a transposed matrix (4
    rows by 512 x 2,048: 73 against 36 GFLOP/s). The gaps keep rows from competing for places in the
    cache: if rows take a multiple of 1 KiB, this is up to twice as fast as without the gaps.
    """
    rows, columns = matrix.shape
    spread = matrix.new_empty(rows, columns + 16)[:, :columns]
    return spread.copy_(matrix)


class _Layer(torch.autograd.Function):
    """One LSTM layer in one direction: x [T, N, D] to outputs [T, N, H] and last cells [N, H].

    Forward, with the gates' preactivations z_t = W_ih x_t + W_hh h_(t-1) + b, see `forward_frame`:
    c_t = f c_(t-1) + i g; h_t = o tanh(c_t). Backward, from the last frame to the first, see
    `backward_frame`: dh_(t-1) gets W_hh^T dz_t, and the weights' gradients are the sums over frames
    dW_ih = sum_t dz_t x_t^T, dW_hh = sum_t dz_t h_(t-1)^T, db = sum_t dz_t.
    """

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
            gemm_type = torch.bfloat16 if bfloat16 else w_hh.dtype
            frames, rows, size = x.shape[0], x.shape[1], w_hh.shape[1]
            x = x.to(gemm_type).flatten(0, 1)  # [T N, D]
            recurrent = w_hh.to(gemm_type).t() if bfloat16 else spread_rows(w_hh.t())
            # The inputs' part of all frames' gates in one product: [T, N, 4 H].
            bias = (b_ih + b_hh).to(gemm_type)
            input_projection = torch.addmm(bias, x, w_ih.to(gemm_type).t())
            input_projection = input_projection.view(frames, rows, 4 * size)
            gates = input_projection
            if bfloat16:
                gates = gates.new_empty(gates.shape, dtype=w_hh.dtype)
            cells = gates.new_empty(frames + 1, rows, size)
            outputs = gates.new_empty(frames + 1, rows, size)
            cells[0], outputs[0] = c, h
            gemm_operands = outputs.to(gemm_type)  # `outputs` itself unless in bfloat16
            buffers = (input_projection, gates, cells, outputs, gemm_operands)
            arrays = [_array(part) for part in buffers]
            for t in range(frames):
                input_projection[t].addmm_(gemm_operands[t], recurrent)  # + h_(t-1) W_hh^T
                forward_frame(t, *arrays)
        ctx.save_for_backward(x, w_ih, w_hh, gates, cells, gemm_operands)
        return outputs[1:], cells[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_outputs: Tensor, grad_cell: Tensor) -> tuple[Tensor | None, ...]:
        x, w_ih, w_hh, gates, cells, gemm_operands = ctx.saved_tensors
        with torch.autocast("cpu", enabled=False):
            gemm_type = gemm_operands.dtype
            frames, rows, size = grad_outputs.shape
            recurrent = w_hh.to(gemm_type) if gemm_type != w_hh.dtype else spread_rows(w_hh)
            grad_gates = gemm_operands.new_empty(frames, rows, 4 * size)
            dh = gemm_operands.new_zeros(rows, size)
            dc = grad_cell.clone(memory_format=torch.contiguous_format)
            db = dc.new_zeros(4 * size, dtype=torch.float64)  # a sum of many rows
            buffers = (gates, cells, grad_outputs.contiguous(), dh, dc, grad_gates, db)
            arrays = [_array(part) for part in buffers]
            for t in reversed(range(frames)):
                backward_frame(t, *arrays)
                torch.mm(grad_gates[t], recurrent, out=dh)  # dh_(t-1) += W_hh^T dz_t
            # A weight's gradient is one product over all frames: [4 H, T N] by [T N, D or H].
            flat = grad_gates.flatten(0, 1)  # dz [T N, 4 H]
            dx = None
            if ctx.needs_input_grad[0]:
                dx = (flat @ w_ih.to(gemm_type)).to(dc.dtype).view(frames, rows, -1)
            dw_ih = (flat.t() @ x).to(dc.dtype)
            dw_hh = (flat.t() @ gemm_operands[:-1].flatten(0, 1)).to(dc.dtype)
            db = db.to(dc.dtype)
        return dx, dh.to(dc.dtype), dc, dw_ih, dw_hh, db, db, None


def _array(x: Tensor) -> np.ndarray:
    """Return a numpy view of a tensor; bfloat16 appears as uint16 bits."""
    if x.dtype == torch.bfloat16:
        return x.detach().view(torch.int16).numpy().view(np.uint16)
    return x.detach().numpy()
