"""Which library searches: the toolkit's own kernels, or k2 where that is asked for."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from typing import Protocol

from torch import Tensor

from toolkit.errors import ToolkitError
from toolkit.fsa.beam import Beam
from toolkit.fsa.best_path import BestPath
from toolkit.fsa.fst import Fst, Lattice
from toolkit.fsa.native_engine import NativeEngine

VARIABLE = "TOOLKIT_SEARCH"
"""Environment variable that chooses one of `ENGINES`; unset or empty, the first."""
ENGINES = ("native", "k2")


class EngineError(ToolkitError):
    """The variable names no engine, or one that cannot be imported."""


class Engine(Protocol):
    """A dense search. Both search by the same rules and keep the same arcs."""

    def lattice(self, scores: Tensor, graph: Fst, beam: Beam) -> Lattice | None:
        """See `toolkit.fsa.search.search_lattice`."""

    def best_paths(
        self, scores: Sequence[Tensor], graphs: Sequence[Fst], beam: Beam
    ) -> list[BestPath | None]:
        """See `toolkit.fsa.search.search_best_paths`."""


def engine_name() -> str:
    """The engine that searches in this process, one of `ENGINES`.

    Raises:
      EngineError: `TOOLKIT_SEARCH` names another.
    """
    wanted = os.environ.get(VARIABLE) or ENGINES[0]
    if wanted not in ENGINES:
        raise EngineError(f"{VARIABLE} is {wanted!r}, not one of {', '.join(ENGINES)}")
    return wanted


@contextmanager
def search_engine(name: str) -> Iterator[None]:
    """Search with an engine while a `with` statement lasts: to compare engines."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def engine() -> Engine:
    """The engine named by `engine_name`.

    Raises:
      EngineError: see `engine_name`; or it is k2, which cannot be imported.
    """
    return _engine(engine_name())


def engine_version() -> str:
    """The engine's name, with its version where it is not the toolkit's own: "k2 1.23.4"."""
    name = engine_name()
    return name if name == "native" else f"{name} {metadata.version(name)}"


@cache
def _engine(name: str) -> Engine:
    if name == "native":
        return NativeEngine()
    try:
        from toolkit.fsa.k2_engine import K2Engine
    except ImportError as error:
        raise EngineError(
            f"{VARIABLE} is 'k2', which cannot be imported ({error}); unset it to search with the"
            " toolkit's own kernels, or install k2 as docs/install.md says"
        ) from error
    return K2Engine()
