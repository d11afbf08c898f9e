"""Modules that the fork server imports once, so that no worker imports them again."""

import pytest  # noqa: F401  of the modules with what the workers do
import torch

import tests.parallel.tiny  # noqa: F401
from toolkit.parallel.compression import decode, encode

for gradient in (torch.zeros(64), torch.ones(64)):  # sent as indices and as a bitmap
    message = encode(gradient, torch.zeros(64), 0.5, fallback=False)
    decode(message, 0.5, torch.zeros(64))  # numba loads its machinery at the first call

torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)  # imports torch's compiler, for 2 s
