"""Lattices without a search: everything that a graph allows, and conversions for oracles."""

from dataclasses import fields

import numpy as np

from toolkit.fsa.fst import FINAL, Fst, Lattice, fst_from_arcs


def as_lattice(fst, frame, arc=None, **changes):
    """A transducer as a lattice, given the frame of each arc and its number in the graph."""
    columns = {f.name: getattr(fst, f.name) for f in fields(Fst)} | changes
    arc = np.arange(len(columns["source"])) if arc is None else arc
    return Lattice(**columns, frame=np.int32(frame), graph_arc=np.int32(arc))


def lattice_from_arcs(arcs, finals, frame_of_state):
    """A lattice like `fst_from_arcs`, given the frame that is read after each state."""
    fst = fst_from_arcs(arcs, finals)
    return as_lattice(fst, [frame_of_state[s] for s in fst.source.tolist()])


def whole_lattice(scores, graph):
    """All paths of a graph that read the frames `scores` [T, P]; None if there is none.

    What a search without pruning finds: forward through the frames, then back for dead ends.
    """
    frames = len(scores)
    arcs = list(
        zip(graph.source.tolist(), graph.target.tolist(), graph.labels.tolist(), strict=True)
    )
    reached, steps = {0}, []
    for frame in range(frames + 1):
        taken = [
            a
            for a, (source, _, label) in enumerate(arcs)
            if source in reached and (label == FINAL) == (frame == frames)
        ]
        steps.append(taken)
        reached = {arcs[a][1] for a in taken}
    if not reached:
        return None
    for frame in reversed(range(frames + 1)):
        steps[frame] = [a for a in steps[frame] if arcs[a][1] in reached]
        reached = {arcs[a][0] for a in steps[frame]}
    places = [(frame, a) for frame, taken in enumerate(steps) for a in taken]
    frame, arc = np.array(places, np.int32).T
    ends = [((f, arcs[a][0]), (f + 1, arcs[a][1])) for f, a in places]
    states = {state: n for n, state in enumerate(sorted({s for pair in ends for s in pair}))}
    heard = np.array([scores[f, arcs[a][2] - 1] if f < frames else 0.0 for f, a in places])
    return as_lattice(
        graph.taken(arc),
        frame,
        arc,
        source=np.int32([states[s] for s, _ in ends]),
        target=np.int32([states[t] for _, t in ends]),
        scores=np.float32(graph.scores[arc] + heard),
    )


def to_k2(fst):
    """A transducer without its words, as k2 has it."""
    import k2
    import torch

    columns = (fst.source, fst.target, fst.labels, fst.scores.view(np.int32))
    return k2.Fsa(torch.from_numpy(np.stack(columns, axis=1).copy()))
