"""Graphs and lattices with indices beyond their arrays are refused before a search."""

from dataclasses import replace

import torch

from tests.fuzz.hostile import *  # noqa: F403
from tests.fuzz.trial import Reader
from toolkit.fsa.config import Beam
from toolkit.fsa.fst import dump_fst, fst_from_arcs, load_fst
from toolkit.fsa.lattice import prune_to_density
from toolkit.fsa.lattice_store import GraphCodec, GraphInfo, LatticeStore, write_lattices
from toolkit.fsa.search import search_lattice

NAMES = ("anna-1", "anna-2")
WIDE = Beam(1000.0, 1000.0, 1, 10**6)
ARCS = [
    (s, (s + step) % 5, 1 + (s + step) % 4, step & 2, -0.5 * s) for s in range(5) for step in (1, 2)
]


def graph(folder):
    fst = fst_from_arcs(ARCS, finals=[0, 3])
    fst = replace(fst, lm_scores=fst.scores / 2)
    (folder / "graph.safetensors").write_bytes(dump_fst(fst))


def use_graph(folder):
    return search_lattice(torch.zeros(5, 4), load_fst(folder / "graph.safetensors"), WIDE)


def lattices(folder):
    graph(folder)
    path = folder / "graph.safetensors"
    fst = load_fst(path)
    pruned = {}
    for name in NAMES:
        scores = torch.randn(5, 4, generator=torch.Generator().manual_seed(len(pruned)))
        lattice = search_lattice(scores, fst, WIDE)
        pruned[name] = prune_to_density(lattice, 5, 100.0, 500.0)
    codec = GraphCodec(path)
    write_lattices(codec.path(folder, 0), pruned, codec, GraphInfo(1, (("bert-1", "short"),)))


def use_lattices(folder):
    store = LatticeStore(folder, GraphCodec(folder / "graph.safetensors"))
    return [store.load(name).num_arcs for name in store.ids]


READERS = {
    # Labels beyond the scores are found where the two meet, which knows no file.
    "graph": Reader(graph, use_graph, names=("they come from different runs",)),
    "lattices": Reader(lattices, use_lattices, files="lattices.*", names=NAMES),
}
