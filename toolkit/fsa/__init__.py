"""Finite-state graphs, dense search and lattices: the only package that imports k2."""

from toolkit.kernel_cache import use_kernel_cache

use_kernel_cache()
