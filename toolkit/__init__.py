"""Speech recognition recipes in Python, on torch, lhotse and numba.

This module and what it imports must run on Python 3.8, because `toolkit.stages.bootstrap` is in
this package.
"""

from toolkit.startup import limit_primitives, tune_blas

tune_blas()
limit_primitives()


def __getattr__(name: str) -> str:
    """Look up `__version__` when it is asked for, since that reads the installed packages."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("asr-recipe-toolkit")
    except PackageNotFoundError:  # a checkout that is on the path without being installed
        return "0+unknown"
