"""Topologies, phonetic trees, Gaussian mixtures and their transforms."""

from toolkit.kernel_cache import use_kernel_cache

use_kernel_cache()
