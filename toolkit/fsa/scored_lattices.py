"""Lattices of a decoded shard on disk, to be weighted in other ways without another search."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from toolkit.errors import ToolkitError
from toolkit.fsa.fst import Lattice
from toolkit.fsa.lattice import ScoredLattice
from toolkit.fsa.traversal import in_order
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_tensors, reading

INTEGERS = ("source", "target", "labels", "frame", "graph_arc")
SCORES = ("scores", "lm", "acoustic", "graph")
_FORM = {
    **dict.fromkeys((*INTEGERS, "words", "word_counts", "arcs"), ("I32", 1)),
    **dict.fromkeys(SCORES, ("F32", 1)),
}


class ScoredLatticesError(ToolkitError):
    """Lattices on disk that cannot be read."""


def write_scored(path: Path, lattices: Sequence[ScoredLattice], described: str) -> None:
    """Write lattices.

    Args:
      path: the file.
      lattices: in any order; with `lm_scores`, as those of a decoding graph have them.
      described: text that is kept with them.
    """
    columns = {name: [getattr(one.lattice, name) for one in lattices] for name in INTEGERS}
    columns["scores"] = [one.lattice.scores for one in lattices]
    columns["lm"] = [one.lattice.lm_scores for one in lattices]
    columns |= {name: [getattr(one, name) for one in lattices] for name in ("acoustic", "graph")}
    columns["words"] = [one.lattice.words for one in lattices]
    columns["word_counts"] = [one.lattice.word_counts for one in lattices]
    columns["arcs"] = [np.array([len(one.lattice.source) for one in lattices])]
    kinds = {name: np.float32 if name in SCORES else np.int32 for name in columns}
    empty = [np.zeros(0)]
    tensors = {
        name: np.concatenate([*empty, *values]).astype(kinds[name])
        for name, values in columns.items()
    }
    write_atomically(path, save(tensors, {"described": described}))


def read_scored(path: Path) -> tuple[list[ScoredLattice], str]:
    """Read what `write_scored` wrote.

    Returns:
      The lattices, and the text that was kept with them.

    Raises:
      ScoredLatticesError: naming the file.
    """
    with reading(path, ScoredLatticesError, "delete it and decode again"):
        tensors, metadata = read_tensors(path, _FORM, "np")
        arcs = np.append(0, np.cumsum(tensors["arcs"]))
        words = np.append(0, np.cumsum(tensors["word_counts"]))
        if {len(tensors[name]) for name in (*INTEGERS, *SCORES, "word_counts")} != {arcs[-1]}:
            raise ValueError("columns of different lengths")
        if tensors["word_counts"].min(initial=0) < 0 or words[-1] != len(tensors["words"]):
            raise ValueError("arcs whose words are not there")
        lattices = [
            _lattice(tensors, slice(begin, end), slice(words[begin], words[end]))
            for begin, end in zip(arcs[:-1].tolist(), arcs[1:].tolist(), strict=True)
        ]
        return lattices, metadata.get("described", "")


def _lattice(tensors: dict[str, np.ndarray], arcs: slice, words: slice) -> ScoredLattice:
    counts = tensors["word_counts"][arcs]
    lattice = Lattice(
        **{name: tensors[name][arcs] for name in (*INTEGERS, "scores")},
        lm_scores=tensors["lm"][arcs],
        splits=np.append(0, np.cumsum(counts)).astype(np.int32),
        words=tensors["words"][words],
    )
    # Compiled loops would read and write beyond its arrays.
    if not lattice.num_arcs:
        raise ValueError("a lattice without arcs")
    if not in_order(lattice.source, lattice.target, lattice.num_states) or not _by_frame(lattice):
        raise ValueError("no lattice")
    return ScoredLattice(lattice, tensors["acoustic"][arcs], tensors["graph"][arcs])


def _by_frame(lattice: Lattice) -> bool:
    """Whether arcs, but for those to the end, lead from one frame to the next."""
    if not lattice.num_arcs:
        return True
    frames, inner = lattice.state_frames, lattice.target < lattice.num_states - 1
    ahead = frames[lattice.target] - frames[lattice.source]
    return bool((ahead[inner] == 1).all())
