"""Speech recognition recipes in Python, on torch, lhotse and numba."""

from importlib.metadata import PackageNotFoundError, version

from toolkit.environment import tune_blas
from toolkit.kernel_cache import use_kernel_cache

try:
    __version__ = version("asr-recipe-toolkit")
except PackageNotFoundError:  # a checkout that is on the path without being installed
    __version__ = "0+unknown"

tune_blas()
use_kernel_cache()
