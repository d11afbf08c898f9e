"""Self-test of the search, in a second: a dense pruned intersection with a known best path."""

import math

import torch

from toolkit.engines import search_engine
from toolkit.fsa.beam import Beam
from toolkit.fsa.best_path import best_path
from toolkit.fsa.fst import fst_from_arcs
from toolkit.fsa.search import search_lattice


def intersect_two_frames() -> str:
    """Decode two frames on a two-word graph; the best of four paths was found by hand.

    Returns:
      What was tested, for a report.

    Raises:
      RuntimeError: the engine runs but finds another path or score.
    """
    graph = fst_from_arcs(
        [(0, 1, 1, 1, -0.5), (0, 1, 2, 2, 0.0), (1, 2, 1, 1, 0.0), (1, 2, 2, 2, -0.25)], [2]
    )
    frames = torch.tensor([[0.6, 0.3], [0.1, 0.7]]).log()  # [T, P]
    lattice = search_lattice(frames, graph, Beam(20.0, 10.0, 1, 100))
    found = lattice and best_path(lattice)
    expected = math.log(0.6) - 0.5 + math.log(0.7) - 0.25
    if not found or found.words != [1, 2] or abs(found.score - expected) > 1e-5:
        raise RuntimeError(f"the search found {found}, not the words [1, 2] at {expected}")
    return f"dense pruned intersection ({search_engine()})"
