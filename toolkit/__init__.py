"""Speech recognition recipes in Python, on torch, lhotse and k2."""

from toolkit.environment import tune_blas

__version__ = "0.1.0"

tune_blas()
