"""LSTM layers for training on the CPU with torch 1.13, and in bfloat16 where torch has none.

That version builds the graph of a CPU LSTM frame by frame: its backward pass makes the gradient of
every recurrent weight once per frame and adds them up. Here a layer is one node of the graph and a
weight's gradient one product over all frames. Measured on one core, frames per second against
torch 1.13.1: 1.1 times with chunks of 32 frames (768 cells, batch 64), 1.4 times with 8 utterances
and 1.8 times with one (320 cells), 2.5 times with 4 (800 cells). Torch 2.13's own is faster than
either.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

State = tuple[Tensor, Tensor]


def replaces_torch(inputs: Tensor) -> bool:
    """Whether `run_lstm` is faster than torch, or torch has no LSTM.

    On processors without AVX-512 torch's LSTM fails under autocast to bfloat16: oneDNN has none.
    """
    if inputs.device.type != "cpu":
        return False
    old = int(torch.__version__.split(".")[0]) < 2
    return (old and torch.is_grad_enabled()) or (_autocast_to_bfloat16() and not _has_bfloat16())


@cache
def _has_bfloat16() -> bool:
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
    """
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
            x_factor = x.to(factor).flatten(0, 1)
            recurrent = w_hh.to(factor).t() if bfloat16 else spread_rows(w_hh.t())
            gates = torch.addmm((b_ih + b_hh).to(factor), x_factor, w_ih.to(factor).t())
            gates = gates.to(w_hh.dtype).view(frames, rows, 4 * size)
            cells = gates.new_empty(frames + 1, rows, size)
            outputs = gates.new_empty(frames + 1, rows, size)
            cells[0], outputs[0] = c, h
            steps = gates.unbind(0)
            sigmoids = gates[:, :, : 2 * size].unbind(0), gates[:, :, 3 * size :].unbind(0)
            i, f, g, o = (part.unbind(0) for part in gates.split(size, dim=2))
            c, h = cells.unbind(0), outputs.unbind(0)
            for t in range(frames):
                if bfloat16:
                    steps[t].add_(h[t].to(factor) @ recurrent)
                else:
                    steps[t].addmm_(h[t], recurrent)
                sigmoids[0][t].sigmoid_()
                g[t].tanh_()
                sigmoids[1][t].sigmoid_()
                torch.mul(f[t], c[t], out=c[t + 1])
                c[t + 1].addcmul_(i[t], g[t])
                torch.tanh(c[t + 1], out=h[t + 1])
                h[t + 1].mul_(o[t])
        ctx.save_for_backward(x_factor, w_ih, w_hh, gates, cells, outputs)
        ctx.bfloat16 = bfloat16
        return outputs[1:], cells[-1].clone()

    @staticmethod
    def backward(ctx: Any, grad_outputs: Tensor, grad_cell: Tensor) -> tuple[Tensor | None, ...]:
        x, w_ih, w_hh, gates, cells, outputs = ctx.saved_tensors
        with torch.autocast("cpu", enabled=False):
            factor = torch.bfloat16 if ctx.bfloat16 else w_hh.dtype
            frames, rows, size = grad_outputs.shape
            recurrent = w_hh.to(factor) if ctx.bfloat16 else spread_rows(w_hh)
            i, f, g, o = gates.split(size, dim=2)
            squashed = cells[1:].tanh()
            # First the derivative of each gate's part, of all frames at once; then, frame by frame,
            # times what comes back.
            grads = gates.new_empty(frames, rows, 4 * size)
            di, df, dg, do = grads.split(size, dim=2)
            for grad, sigmoid, other in ((di, i, g), (df, f, cells[:-1]), (do, o, squashed)):
                torch.addcmul(sigmoid, sigmoid, sigmoid, value=-1, out=grad).mul_(other)
            torch.addcmul(i, i, g.square(), value=-1, out=dg)
            through = torch.addcmul(o, o, squashed.square_(), value=-1).unbind(0)  # h by c
            dh, dc = torch.zeros_like(grad_cell), grad_cell.clone()
            by_cell = grads.view(frames, rows, 4, size)[:, :, :3].unbind(0)
            steps, above, do, f = (x.unbind(0) for x in (grads, grad_outputs, do, f))
            for t in reversed(range(frames)):
                dh = dh.add_(above[t])
                do[t].mul_(dh)
                dc.addcmul_(dh, through[t])
                by_cell[t].mul_(dc[:, None])
                dc.mul_(f[t])
                dh = (steps[t].to(factor) @ recurrent).to(grads.dtype)
            flat = grads.flatten(0, 1)
            flat_factor = flat.to(factor)
            dx = None
            if ctx.needs_input_grad[0]:
                dx = (flat_factor @ w_ih.to(factor)).to(flat.dtype).view(frames, rows, -1)
            dw_ih = (flat_factor.t() @ x).to(flat.dtype)
            dw_hh = (flat_factor.t() @ outputs[:-1].flatten(0, 1).to(factor)).to(flat.dtype)
            db = flat.sum(dim=0)
        return dx, dh, dc, dw_ih, dw_hh, db, db, None
