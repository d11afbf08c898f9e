"""Networks in 8 bits for recognition on a processor: dynamic quantisation (A20)."""

import copy
import io
import warnings

import torch
from torch import nn

LAYERS = {nn.LSTM, nn.Linear}
"""Kinds of layers whose weights become integers; others, such as convolutions, stay float32."""


def in_int8(model: nn.Module) -> nn.Module:
    """Return a copy of a network whose LSTMs and linear layers multiply in 8 bits.

    Weights are rounded once, each matrix with a factor of its own; inputs at every call, with a
    factor for all frames of the call, so that a stream's outputs are not those of the whole. It
    cannot be trained and computes on the CPU.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces other ways of doing it
        quantise = torch.ao.quantization.quantize_dynamic
        return quantise(copy.deepcopy(model).cpu().eval(), LAYERS, torch.qint8)


def stored_bytes(model: nn.Module) -> int:
    """Count the bytes that torch writes for a network's weights."""
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(model.state_dict(), out)
    return out.tell()
