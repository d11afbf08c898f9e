"""Chooses the engines for features and for graph search, without importing them.

Torch for features and the toolkit's own kernels for dense search need only the toolkit's own
dependencies. The alternatives are kaldifeat for features, used by default if it is installed, and
k2 for dense search, used only if `TOOLKIT_SEARCH` selects it.
"""

import os
from importlib.util import find_spec

from toolkit.errors import ToolkitError

FRONTEND_VARIABLE = "TOOLKIT_FRONTEND"
"""Environment variable that chooses one of `FRONTENDS`. If it is unset or empty, the engine is
kaldifeat if installed, else torch."""
FRONTENDS = ("kaldifeat", "torch")
SEARCH_VARIABLE = "TOOLKIT_SEARCH"
"""Environment variable that chooses one of `SEARCHES`. If it is unset or empty: native."""
SEARCHES = ("native", "k2")


VARIABLES = {"front end": FRONTEND_VARIABLE, "search": SEARCH_VARIABLE}


class EngineError(ToolkitError):
    """Raised when a variable names an unknown engine, or one that cannot be imported."""


def frontend_engine() -> str:
    """Return the engine that computes features in this process, one of `FRONTENDS`.

    Raises:
      EngineError: the variable names an unknown engine, or one that is not installed.
    """
    engine = _chosen_engine(FRONTEND_VARIABLE, FRONTENDS)
    return engine or ("kaldifeat" if find_spec("kaldifeat") else "torch")


def search_engine() -> str:
    """Return the engine that searches graphs in this process, one of `SEARCHES`.

    Raises:
      EngineError: the variable names an unknown engine, or one that is not installed.
    """
    return _chosen_engine(SEARCH_VARIABLE, SEARCHES) or SEARCHES[0]


def engines() -> dict[str, str]:
    """Return the engines of this process by task (the keys of `VARIABLES`)."""
    return dict(zip(VARIABLES, (frontend_engine(), search_engine()), strict=True))


def _chosen_engine(variable: str, names: tuple[str, ...]) -> str | None:
    """Return the engine that an environment variable names; None if it is unset or empty."""
    engine = os.environ.get(variable)
    if engine and engine not in names:
        raise EngineError(f"{variable} is {engine!r} but must be one of {', '.join(names)}")
    # The other engines come with the toolkit. `find_spec` does not import the package.
    if engine in ("kaldifeat", "k2") and find_spec(engine) is None:
        raise EngineError(
            f"{variable} is {engine!r}, which is not installed. Install it, or unset the variable"
        )
    return engine
