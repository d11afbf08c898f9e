"""Transducers from plain lists of arcs, and their files."""

from collections.abc import Sequence
from pathlib import Path

import k2
import torch
from safetensors.torch import save

from toolkit.errors import ToolkitError
from toolkit.storage.reading import read_tensors, reading

# (source state, destination state, input label, output label, score)
Arc = tuple[int, int, int, int, float]
Fsa = k2.Fsa
_SHAPES = {"arcs": ("I32", 2), "scores": ("F32", 1), "aux_labels": ("I32", 1)}
EPSILON = 0
FINAL = -1


class GraphError(ToolkitError):
    """A file that does not hold a graph."""


def fsa_from_arcs(arcs: Sequence[Arc], finals: Sequence[int]) -> k2.Fsa:
    """A transducer with the given arcs; `finals` are the states from which it may end.

    The start state is 0. k2 wants one final state, numbered last and entered by arcs labelled -1:
    it is added here. Input labels become `labels`, output labels `aux_labels`.
    """
    last = 1 + max([max(a[0], a[1]) for a in arcs] + list(finals))
    ordered = sorted([*arcs, *((s, last, FINAL, FINAL, 0.0) for s in finals)], key=lambda a: a[0])
    scores = torch.tensor([a[4] for a in ordered], dtype=torch.float32)
    table = torch.tensor([a[:4] for a in ordered], dtype=torch.int32)
    columns = torch.cat([table[:, :3], scores.view(torch.int32)[:, None]], dim=1)
    return k2.Fsa(columns.contiguous(), aux_labels=table[:, 3].contiguous())


def dump_fsa(fsa: k2.Fsa) -> bytes:
    """One transducer as a safetensors file: arcs, output labels (ragged or not), LM scores."""
    tensors = {"arcs": fsa.arcs.values().contiguous(), "scores": fsa.scores.detach().contiguous()}
    if isinstance(fsa.aux_labels, k2.RaggedTensor):
        tensors["aux_labels"] = fsa.aux_labels.values.contiguous()
        tensors["aux_splits"] = fsa.aux_labels.shape.row_splits(1).contiguous()
    else:
        tensors["aux_labels"] = fsa.aux_labels.contiguous()
    if hasattr(fsa, "lm_scores"):
        tensors["lm_scores"] = fsa.lm_scores.contiguous()
    return save(tensors)


def load_fsa(path: Path) -> k2.Fsa:
    """Read a file that `dump_fsa` made.

    Raises:
      GraphError: naming the file.
    """
    with reading(path, GraphError, "make the graph again", "no graph"):
        tensors, _ = read_tensors(path, _SHAPES)
        _check(tensors)
        arcs = tensors["arcs"].clone()
        arcs[:, 3] = tensors["scores"].view(torch.int32)
        aux = tensors["aux_labels"]
        if "aux_splits" in tensors:
            shape = k2.ragged.create_ragged_shape2(
                row_splits=tensors["aux_splits"], cached_tot_size=len(aux)
            )
            aux = k2.RaggedTensor(shape, aux)
        fsa = k2.Fsa(arcs, aux_labels=aux)
        if "lm_scores" in tensors:
            fsa.lm_scores = tensors["lm_scores"]
        return fsa


def _check(tensors: dict[str, torch.Tensor]) -> None:
    """Check what k2 does not: given an ill-formed transducer it aborts or reads out of bounds.

    Raises:
      ValueError: the tensors do not form a transducer.
    """
    arcs, aux = tensors["arcs"], tensors["aux_labels"]
    splits = tensors.get("aux_splits", torch.arange(len(aux) + 1))
    lengths = {len(tensors[name]) for name in ("scores", "lm_scores") if name in tensors}
    if arcs.shape[1] != 4 or lengths != {len(arcs)} or len(splits) != len(arcs) + 1:
        raise ValueError("its tensors do not belong together")
    if splits[0] != 0 or splits[-1] != len(aux) or not splits.diff().ge(0).all():
        raise ValueError("output labels that belong to no arc")
    source, destination, label = arcs[:, 0], arcs[:, 1], arcs[:, 2]
    final = int(torch.stack([source, destination]).max()) if len(arcs) else 0
    if final > len(arcs) or not (source.ge(0).all() and destination.ge(0).all()):
        raise ValueError("states that no arc leads to or from")
    if not source.diff().ge(0).all() or source.eq(final).any():
        raise ValueError("arcs that are not sorted by their source states")
    if not torch.equal(label == FINAL, destination == final) or label.lt(FINAL).any():
        raise ValueError("arcs to the final state without label -1, or other arcs with it")


def load_graph(path: Path) -> k2.Fsa:
    """Read a decoding graph as an FsaVec of one, which `search_lattice` searches without a copy."""
    return k2.create_fsa_vec([load_fsa(path)])
