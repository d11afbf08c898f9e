"""H: the transducer from pdfs to phones."""

import k2

from toolkit.fsa.arcs import EPSILON, Arc, fsa_from_arcs
from toolkit.hmm.topology import Topology


def hmm_transducer(topology: Topology) -> k2.Fsa:
    """H reads one label per frame, pdf + 1, and writes each phone as it is entered.

    A state stands for (phone, HMM state just emitted). Phones follow each other directly, from
    every exit of one to every entry of the other, without epsilons on the reading side: composed
    with an epsilon-free graph it gives a graph that dense search can use at once. That costs
    (number of phones)^2 arcs, some thousands.
    """
    first_state = {}
    count = 1
    for phone in topology.phone_ids():
        first_state[phone] = count
        count += topology.num_states(phone)

    def enter(source: int, arcs: list[Arc]) -> None:
        for phone in topology.phone_ids():
            for state in topology.entries(phone):
                label = topology.pdf(phone, state) + 1
                arcs.append((source, first_state[phone] + state, label, phone, 0.0))

    arcs: list[Arc] = []
    finals = []
    enter(0, arcs)
    for phone in topology.phone_ids():
        base = first_state[phone]
        for state in range(topology.num_states(phone)):
            arcs.append((base + state, base + state, topology.pdf(phone, state) + 1, EPSILON, 0.0))
        for state, later in topology.advances(phone):
            arcs.append((base + state, base + later, topology.pdf(phone, later) + 1, EPSILON, 0.0))
        for state in topology.exits(phone):
            enter(base + state, arcs)
            finals.append(base + state)
    return fsa_from_arcs(arcs, finals)
