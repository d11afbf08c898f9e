"""Speech recognition recipes in Python, on torch, lhotse and numba."""

from toolkit.environment import tune_blas
from toolkit.kernel_cache import use_kernel_cache

__version__ = "0.1.0"

tune_blas()
use_kernel_cache()
