"""Build lattices from arcs, without a search."""

from dataclasses import fields

import numpy as np

from toolkit.fsa.fst import Fst, Lattice, fst_from_arcs


def lattice_from_arcs(arcs, finals, frame_of_state):
    """A lattice like `fst_from_arcs`, given the frame that is read after each state."""
    fst = fst_from_arcs(arcs, finals)
    frames = np.int32([frame_of_state[state] for state in fst.source.tolist()])
    numbers = np.arange(fst.num_arcs, dtype=np.int32)
    columns = {field.name: getattr(fst, field.name) for field in fields(Fst)}
    return Lattice(**columns, frame=frames, graph_arc=numbers)
