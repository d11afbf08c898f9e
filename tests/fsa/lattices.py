"""Lattices without a search, and as k2 has them."""

from dataclasses import fields

import numpy as np
import torch

from toolkit.fsa.fst import Fst, Lattice, fst_from_arcs


def lattice_from_arcs(arcs, finals, frame_of_state):
    """A lattice like `fst_from_arcs`, given the frame that is read after each state."""
    fst = fst_from_arcs(arcs, finals)
    frames = np.int32([frame_of_state[state] for state in fst.source.tolist()])
    numbers = np.arange(fst.num_arcs, dtype=np.int32)
    columns = {field.name: getattr(fst, field.name) for field in fields(Fst)}
    return Lattice(**columns, frame=frames, graph_arc=numbers)


def to_k2(fst):
    """A transducer without its words, as k2 has it."""
    import k2

    columns = (fst.source, fst.target, fst.labels, fst.scores.view(np.int32))
    return k2.Fsa(torch.from_numpy(np.stack(columns, axis=1).copy()))
