"""Graphs, trees, transition models and lattices of Kaldi in binary form."""

from tests.fuzz.hostile import *  # noqa: F403
from tests.fuzz.test_graphs import ARCS
from tests.fuzz.trial import Reader
from tests.hmm.test_tree import TOPOLOGY, leaf_per_state
from tests.interop.kaldi_worker import binary_tree
from tests.kaldi.test_lattices import binary
from tests.kaldi.test_model import CHAIN
from toolkit.fsa.fst import fst_from_arcs
from toolkit.kaldi.graph import dump_openfst, load_openfst
from toolkit.kaldi.lattices import read_compact_lattices
from toolkit.kaldi.model import KaldiTransitions, read_tree, tree_text

SAME = {phone: phone for phone in TOPOLOGY.phone_ids()}
LATTICE = [(0, 1, 5, 1.0, 2.0, [7, 7]), (0, 1, 6, 0.5, 1.0, [7, 8]), (1, 2, 5, 0.5, 0.0, [9])]


def graph(folder):
    (folder / "HCLG.fst").write_bytes(dump_openfst(fst_from_arcs(ARCS, finals=[0, 3])))


def tree(folder):
    text = tree_text(leaf_per_state(TOPOLOGY), TOPOLOGY)
    (folder / "tree").write_bytes(b"\0B" + binary_tree(text))


def model(folder):
    (folder / "final.mdl").write_text(CHAIN)


def lattices(folder):
    content = b"a-1 " + binary(3, LATTICE, {2: (0.25, 0.0, [])})
    (folder / "lat.1").write_bytes(content)


def use_lattices(folder):
    return list(read_compact_lattices(folder / "lat.1", 0.01))


READERS = {
    "graph": Reader(graph, lambda folder: load_openfst(folder / "HCLG.fst").num_arcs),
    "tree": Reader(tree, lambda folder: read_tree(folder / "tree", TOPOLOGY, SAME)),
    "model": Reader(model, lambda folder: KaldiTransitions.read(folder / "final.mdl")),
    "lattices": Reader(
        lattices, lambda folder: list(read_compact_lattices(folder / "lat.1", 0.01))
    ),
}
