"""The engine of the front end: kaldifeat where it is installed, else torch alone."""

from functools import cache
from importlib import metadata

from toolkit.engines import FRONTEND_VARIABLE, EngineError, frontend_engine


def usable_engine() -> str:
    """Return `toolkit.engines.frontend_engine`, having imported it.

    Raises:
      EngineError: it is kaldifeat, which cannot be imported.
    """
    engine = frontend_engine()
    if engine == "kaldifeat" and (problem := kaldifeat_import_error()):
        raise EngineError(
            f"kaldifeat cannot be imported ({problem}); with {FRONTEND_VARIABLE}=torch features are"
            " computed without it"
        )
    return engine


def engine_version(engine: str) -> str:
    """Return an engine's name and version: "torch 2.13.0"."""
    return f"{engine} {metadata.version(engine)}"


@cache
def kaldifeat_import_error() -> str:
    """Return why kaldifeat cannot be imported; empty where it can."""
    import torch  # noqa: F401 - before kaldifeat, whose library needs torch's to be loaded

    try:
        import kaldifeat  # noqa: F401
    except ImportError as error:
        return str(error)
    return ""
