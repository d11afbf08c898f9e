"""Files of transducers."""

from pathlib import Path

import numpy as np
from safetensors.numpy import save

from toolkit.errors import ToolkitError
from toolkit.fsa.fst import EPSILON, FINAL, Fst
from toolkit.storage.reading import read_tensors, reading

_SHAPES = {
    "arcs": ("I32", 2),
    "scores": ("F32", 1),
    "aux_labels": ("I32", 1),
    "aux_splits": ("I32", 1),
}
_OPTIONAL = {"lm_scores": ("F32", 1)}


class GraphError(ToolkitError):
    """A file that does not hold a graph."""


def dump_fst(fst: Fst) -> bytes:
    """One transducer as a safetensors file: arcs, output labels, LM scores.

    `arcs` is k2's table: source, destination, label and the bits of the float32 score. Arc a writes
    `aux_labels[aux_splits[a] : aux_splits[a + 1]]`.
    """
    columns = (fst.source, fst.target, fst.labels, fst.scores.view(np.int32))
    tensors = {
        "arcs": np.stack(columns, axis=1),
        "scores": fst.scores,
        "aux_labels": fst.words,
        "aux_splits": fst.splits,
    }
    if fst.lm_scores is not None:
        tensors["lm_scores"] = fst.lm_scores
    return save({name: np.ascontiguousarray(value) for name, value in tensors.items()})


def load_fst(path: Path) -> Fst:
    """Read a file that `dump_fst` made.

    Raises:
      GraphError: naming the file.
    """
    with reading(path, GraphError, "make the graph again", "no graph"):
        tensors, _ = read_tensors(path, _SHAPES, "np", _OPTIONAL)
        _check(tensors)
        arcs = tensors["arcs"]
        return Fst(
            source=arcs[:, 0].copy(),
            target=arcs[:, 1].copy(),
            labels=arcs[:, 2].copy(),
            scores=tensors["scores"],
            splits=tensors["aux_splits"],
            words=tensors["aux_labels"],
            lm_scores=tensors.get("lm_scores"),
        )


def _check(tensors: dict[str, np.ndarray]) -> None:
    """Check what a search relies on: given an ill-formed transducer it reads out of bounds.

    Raises:
      ValueError: the tensors do not form a transducer.
    """
    arcs, words, splits = tensors["arcs"], tensors["aux_labels"], tensors["aux_splits"]
    lengths = {len(tensors[name]) for name in ("scores", "lm_scores") if name in tensors}
    if arcs.shape[1] != 4 or lengths != {len(arcs)} or len(splits) != len(arcs) + 1:
        raise ValueError("its tensors do not belong together")
    if splits[0] != 0 or splits[-1] != len(words) or (np.diff(splits) < 0).any():
        raise ValueError("output labels that belong to no arc")
    if (words <= EPSILON).any():
        raise ValueError("output labels below 1")
    if not len(arcs):
        raise ValueError("no arcs")
    source, target, labels = arcs[:, 0], arcs[:, 1], arcs[:, 2]
    final = int(arcs[:, :2].max())
    if final > len(arcs) or (arcs[:, :2] < 0).any():
        raise ValueError("states that no arc leads to or from")
    if (np.diff(source) < 0).any() or (source == final).any():
        raise ValueError("arcs that are not sorted by their source states")
    if not np.array_equal(labels == FINAL, target == final) or (labels < FINAL).any():
        raise ValueError("arcs to the final state without label -1, or other arcs with it")
    if (labels == EPSILON).any():
        raise ValueError("arcs that read nothing")
