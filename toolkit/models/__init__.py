"""Acoustic models: LSTM, BLSTM, convolution + LSTM."""

from toolkit.kernel_cache import use_kernel_cache

use_kernel_cache()
