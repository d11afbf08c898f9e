"""Which library computes the features: kaldifeat where it can be imported, else torch alone."""

import os
from functools import cache
from importlib import metadata

from toolkit.errors import ToolkitError

VARIABLE = "TOOLKIT_FRONTEND"
"""Environment variable that forces one of `ENGINES`; unset or empty, the rule holds."""
ENGINES = ("kaldifeat", "torch")


class EngineError(ToolkitError):
    """The variable names no engine, or one that cannot be imported."""


def frontend_engine() -> str:
    """Return the engine that front ends use in this process, one of `ENGINES`.

    Raises:
      EngineError: `TOOLKIT_FRONTEND` names another, or kaldifeat where it cannot be imported.
    """
    wanted = os.environ.get(VARIABLE)
    if wanted and wanted not in ENGINES:
        raise EngineError(f"{VARIABLE} is {wanted!r}, not one of {', '.join(ENGINES)}")
    problem = _kaldifeat_problem()
    if wanted == "kaldifeat" and problem:
        raise EngineError(f"{VARIABLE} is 'kaldifeat', which cannot be imported ({problem})")
    return wanted or ("torch" if problem else "kaldifeat")


def engine_version(engine: str) -> str:
    """Return an engine's name and version: "torch 2.13.0"."""
    return f"{engine} {metadata.version(engine)}"


@cache
def _kaldifeat_problem() -> str:
    """Return why kaldifeat cannot be imported; empty where it can."""
    import torch  # noqa: F401 - before kaldifeat, whose library needs torch's to be loaded

    try:
        import kaldifeat  # noqa: F401
    except ImportError as error:
        return str(error)
    return ""
