"""Decoding graphs whose labels are Kaldi's transition ids."""

import numpy as np

from toolkit.fsa.fst import EPSILON, FINAL, Fst
from toolkit.kaldi.transitions import Transitions

_LEAVES = -1


def with_transition_ids(graph: Fst, transitions: Transitions) -> Fst:
    """Turn a graph over transition states into one over transition ids.

    In this toolkit's graphs an arc reads the pdf of the state that it enters; in Kaldi's it reads
    a transition of the state that it leaves, self-loops before what follows them (`reorder` is
    false). So the arcs of the start read nothing, and those that end a sentence read a transition.
    Words and scores stay on their arcs: transitions cost nothing.

    Args:
      graph: expanded with `transitions.states` (see `toolkit.fsa.expand.expand_phones_to_pdfs`).
      transitions: of its senones.

    Returns:
      A graph with a path of T arcs and one more, the first, for a path of T here. In a phone of a
      single state a loop is an arc from a state to itself that writes nothing.
    """
    ends = graph.labels == FINAL
    entered = np.zeros(graph.num_states, np.int64)
    entered[graph.target[~ends]] = graph.labels[~ends]
    begins = graph.source == 0
    origin = entered[graph.source[~begins]]
    label = np.where(ends, 1, graph.labels)[~begins]
    target = transitions.state[label - 1]
    loops = (graph.source == graph.target) & ~graph.writes
    leaves = ends[~begins] | ((target == 0) & ~loops[~begins])
    labels = np.full(graph.num_arcs + 1, EPSILON, np.int32)
    labels[:-1][~begins] = transitions.ids(origin, np.where(leaves, _LEAVES, target))
    labels[-1] = FINAL
    last = graph.num_states - 1
    return Fst(
        source=np.append(graph.source, last).astype(np.int32),
        target=np.append(graph.target, last + 1).astype(np.int32),
        labels=labels,
        scores=np.append(graph.scores, 0).astype(np.float32),
        splits=np.append(graph.splits, graph.splits[-1]).astype(np.int32),
        words=graph.words,
    )
