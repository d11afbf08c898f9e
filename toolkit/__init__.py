"""Speech recognition recipes in Python, on k2, lhotse and torch."""

from toolkit.environment import tune_blas

__version__ = "0.1.0"

tune_blas()
