"""H: the transducer from pdfs to phones."""

import k2

from toolkit.fsa.arcs import EPSILON, Arc, fsa_from_arcs
from toolkit.hmm.topology import Topology


def hmm_transducer(topology: Topology) -> k2.Fsa:
    """H reads one label per frame, pdf + 1, and writes each phone as it is entered.

    A state stands for (phone, HMM state just emitted). Phones follow each other directly, from the
    exits of one to the first state of the other, without epsilons on the reading side: composed
    with an epsilon-free graph it gives a graph that dense search can use at once. That costs
    (number of phones)^2 arcs, some thousands.
    """
    first_state = {}
    count = 1
    for phone in topology.phone_ids():
        first_state[phone] = count
        count += topology.num_states(phone)

    def enter(source: int, arcs: list[Arc]) -> None:
        for phone, state in first_state.items():
            arcs.append((source, state, topology.pdf(phone, 0) + 1, phone, 0.0))

    arcs: list[Arc] = []
    finals = []
    enter(0, arcs)
    for phone, first in first_state.items():
        for state in range(topology.num_states(phone)):
            label = topology.pdf(phone, state) + 1
            if state in topology.loops(phone):
                arcs.append((first + state, first + state, label, EPSILON, 0.0))
            if state > 0:
                arcs.append((first + state - 1, first + state, label, EPSILON, 0.0))
        for state in topology.exits(phone):
            enter(first + state, arcs)
            finals.append(first + state)
    return fsa_from_arcs(arcs, finals)
