"""The search engine in use: the toolkit's own kernels, or k2 where that is asked for."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Protocol

from torch import Tensor

from toolkit.engines import SEARCH_VARIABLE, EngineError, search_engine
from toolkit.fsa.beam import Beam
from toolkit.fsa.best_path import BestPath
from toolkit.fsa.frame_rows import FrameScores
from toolkit.fsa.fst import Fst, Lattice
from toolkit.fsa.native_engine import NativeEngine


class Engine(Protocol):
    """A dense search. All engines search by the same rules and keep the same arcs."""

    def lattice(self, scores: Tensor, graph: Fst, beam: Beam) -> Lattice | None:
        """See `toolkit.fsa.search.search_lattice`."""

    def best_paths(
        self, scores: Sequence[FrameScores], graphs: Sequence[Fst], beam: Beam
    ) -> list[BestPath | None]:
        """See `toolkit.fsa.search.search_best_paths`."""


def engine() -> Engine:
    """The engine that `toolkit.engines.search_engine` names.

    Raises:
      EngineError: it is k2, which cannot be imported.
    """
    return load_engine(search_engine())


@contextmanager
def searching_with(name: str) -> Iterator[None]:
    """Search with an engine while a `with` statement lasts: to compare engines."""
    before = os.environ.get(SEARCH_VARIABLE, "")
    os.environ[SEARCH_VARIABLE] = name
    try:
        yield
    finally:
        os.environ[SEARCH_VARIABLE] = before


@cache
def load_engine(name: str) -> Engine:
    """Import the engine of a name; there is one instance of it in a process.

    Raises:
      EngineError: it is k2, which cannot be imported.
    """
    if name == "native":
        return NativeEngine()
    try:
        from toolkit.fsa.k2_engine import K2Engine
    except ImportError as error:
        raise EngineError(
            f"{SEARCH_VARIABLE} is 'k2', which cannot be imported ({error}); unset it to search"
            " with the toolkit's own kernels, or install k2 as docs/install.md says"
        ) from error
    return K2Engine()
