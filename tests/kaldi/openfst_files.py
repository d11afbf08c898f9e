"""A reader of OpenFst's binary files, for tests."""

import struct

from toolkit.fsa.fst import fst_from_arcs


def read_openfst(content):
    """(number of states, arcs as (source, target, input, output, cost), costs of final states)."""
    place = 0

    def take(form):
        nonlocal place
        values = struct.unpack_from(form, content, place)
        place += struct.calcsize(form)
        return values

    def text():
        return take(f"{take('<i')[0]}s")[0].decode()

    assert take("<i") == (2125659606,)
    assert (text(), text()) == ("vector", "standard")
    version, flags, _, start, states, count = take("<iiQqqq")
    assert (version, flags, start) == (2, 0, 0 if states else -1)
    arcs, finals = [], {}
    for state in range(states):
        cost, leaving = take("<fq")
        if cost != float("inf"):
            finals[state] = cost
        for _ in range(leaving):
            read, written, weight, target = take("<iifi")
            arcs.append((state, target, read, written, weight))
    assert len(arcs) == count
    assert place == len(content)
    return states, arcs, finals


def fst_of(content):
    """The toolkit's transducer of a file."""
    _, arcs, finals = read_openfst(content)
    scored = [(*arc[:4], -arc[4]) for arc in arcs]
    return fst_from_arcs(scored, {state: -cost for state, cost in finals.items()})
