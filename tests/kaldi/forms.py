"""Readers of Kaldi's text forms of topologies, trees and transition models, for tests."""

import numpy as np


def pdf_of_id(transitions):
    """The pdf of each transition id [ids]; that of id 1 comes first."""
    return np.repeat(transitions.pdf, np.diff(transitions.first))


def read_topology(text):
    """{phone: [[(target, probability), ...] for each state, the last has none]}"""
    tokens = text.split()
    assert (tokens[0], tokens[-1]) == ("<Topology>", "</Topology>")
    topology = {}
    for entry in text.split("<TopologyEntry>")[1:]:
        phones, states = entry.split("<ForPhones>")[1].split("</ForPhones>")
        rows = []
        for number, state in enumerate(states.split("<State>")[1:]):
            fields = state.split("</State>")[0].split()
            assert int(fields[0]) == number
            if len(fields) > 1:
                assert fields[1:3] == ["<PdfClass>", str(number)]
            arcs = " ".join(fields[3:]).split("<Transition>")[1:]
            rows.append([(int(arc.split()[0]), float(arc.split()[1])) for arc in arcs])
        topology |= {int(phone): rows for phone in phones.split()}
    return topology


class ReadTree:
    """The tree of a file; `pdf` asks it as Kaldi does."""

    def __init__(self, text):
        self._tokens = iter(text.split())
        assert [next(self._tokens) for _ in range(4)] == ["ContextDependency", "3", "1", "ToPdf"]
        self._root = self._node()
        assert list(self._tokens) == ["EndContextDependency"]

    def _node(self):
        kind, first = next(self._tokens), int(next(self._tokens))
        if kind == "CE":
            return first
        if kind == "TE":
            size = int(next(self._tokens))
            assert next(self._tokens) == "("
            children = {value: self._node() for value in range(size)}
            assert next(self._tokens) == ")"
            return first, children, None
        assert (kind, next(self._tokens)) == ("SE", "[")
        members = [int(token) for token in iter(lambda: next(self._tokens), "]")]
        assert members == sorted(members)
        assert next(self._tokens) == "{"
        yes, no = self._node(), self._node()
        assert next(self._tokens) == "}"
        return first, dict.fromkeys(members, yes), no

    def pdf(self, left, phone, right, state):
        """Keys are -1 for the state, 0 to 2 for the phones."""
        values = {-1: state, 0: left, 1: phone, 2: right}
        node = self._root
        while isinstance(node, tuple):
            key, children, otherwise = node
            node = children.get(values[key], otherwise)
        return node


def read_transitions(text):
    """(topology, [(phone, state, pdf)], log probabilities from id 1 on)"""
    topology = "<Topology>" + text.split("<Topology>")[1].split("</Topology>")[0] + "</Topology>"
    count, *rows = text.split("<Triples>")[1].split("</Triples>")[0].strip().split("\n")
    triples = [tuple(map(int, row.split())) for row in rows]
    assert len(triples) == int(count)
    numbers = text.split("[")[1].split("]")[0].split()
    assert float(numbers[0]) == 0
    return read_topology(topology), triples, [float(number) for number in numbers[1:]]
