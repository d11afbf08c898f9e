"""Reading of transducers in OpenFst's binary format: L.fst, G.fst and HCLG.fst of Kaldi."""

import struct
from pathlib import Path

import numpy as np

from toolkit.fsa.fst import FINAL, Fst, GraphError
from toolkit.kaldi.openfst import MAGIC
from toolkit.storage.reading import reading

ADVICE = "give a transducer that OpenFst wrote as `vector` or `const`, with `standard` arcs"
_INPUT_SYMBOLS, _OUTPUT_SYMBOLS, _ALIGNED = 0x1, 0x2, 0x4
_ALIGNMENT = 16
ARC = np.dtype([("read", "<i4"), ("written", "<i4"), ("cost", "<f4"), ("target", "<i4")])
_CONST_STATE = np.dtype([("cost", "<f4"), ("first", "<u4"), ("arcs", "<u4"), ("silent", "<u4", 2)])
_VECTOR_STATE = 12
"""Bytes of a state: its final cost, and the number of its arcs in 64 bits."""


def load_openfst(path: Path) -> Fst:
    """Read a transducer.

    Args:
      path: the file.

    Returns:
      Scores are negated costs; arcs of infinite cost, which are on no path, are left out. Its start
      is state 0, its states are in the order of the file else; the final state is added.

    Raises:
      GraphError: naming the file.
    """
    with reading(path, GraphError, ADVICE, "no transducer"):
        return _read(Path(path).read_bytes())


def _read(content: bytes) -> Fst:
    (magic,) = struct.unpack_from("<i", content)
    if magic != MAGIC:
        raise ValueError("it does not begin as OpenFst's files do")
    at, kind = _text(content, 4)
    at, arc = _text(content, at)
    _, flags, _, start, states, arcs = struct.unpack_from("<iiQqqq", content, at)
    at += struct.calcsize("<iiQqqq")
    if kind not in ("vector", "const") or arc != "standard":
        raise ValueError(f"a {kind[:20]} of {arc[:20]} arcs")
    if flags & (_INPUT_SYMBOLS | _OUTPUT_SYMBOLS):
        raise ValueError("symbol tables within; clear them with fstsymbols")
    if not 0 <= start < states or states > len(content):
        raise ValueError("it has no states, or no start")
    if kind == "const":
        at += -at % _ALIGNMENT if flags & _ALIGNED else 0
        finals, source, table = _const(content, at, states, arcs, bool(flags & _ALIGNED))
    else:
        finals, source, table = _vector(content, at, states)
    if len(table) and not 0 <= table["target"].min() <= table["target"].max() < states:
        raise ValueError("arcs to states that are not there")
    if len(table) and min(table["read"].min(), table["written"].min()) < 0:
        raise ValueError("labels below 0")
    return _fst(start, finals, source, table)


def _text(content: bytes, at: int) -> tuple[int, str]:
    (length,) = struct.unpack_from("<i", content, at)
    if not 0 <= length <= len(content):
        raise ValueError("a name of a wrong length")
    end = at + 4 + length
    return end, content[at + 4 : end].decode()


_Parts = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Costs of ending in each state, the state from which each arc leads, the arcs."""


def _const(content: bytes, at: int, states: int, arcs: int, aligned: bool) -> _Parts:
    table = np.frombuffer(content, _CONST_STATE, states, at)
    at += table.nbytes
    at += -at % _ALIGNMENT if aligned else 0
    counts = table["arcs"].astype(np.int64)
    if counts.sum() != arcs or (table["first"] != counts.cumsum() - counts).any():
        raise ValueError("states whose arcs do not follow each other")
    source = np.repeat(np.arange(states), counts)
    return table["cost"], source, np.frombuffer(content, ARC, arcs, at)


def _vector(content: bytes, at: int, states: int) -> _Parts:
    costs, counts, pieces = [], [], []
    for _ in range(states):
        cost, count = struct.unpack_from("<fq", content, at)
        at += _VECTOR_STATE
        costs.append(cost)
        counts.append(count)
        end = at + ARC.itemsize * count
        if count < 0 or end > len(content):
            raise ValueError("more arcs than the file has")
        pieces.append(content[at:end])
        at = end
    source = np.repeat(np.arange(states), counts)
    return np.array(costs, np.float32), source, np.frombuffer(b"".join(pieces), ARC)


def _fst(start: int, finals: np.ndarray, source: np.ndarray, table: np.ndarray) -> Fst:
    last = len(finals)
    number = np.arange(last + 1)
    number[[0, start]] = number[[start, 0]]
    ends = np.flatnonzero(np.isfinite(finals))
    if not len(ends):
        raise ValueError("no state in which it may end")
    passable = table["cost"] != np.inf
    source, table = source[passable], table[passable]
    silent = np.zeros(len(ends), np.int32)
    source = number[np.append(source, ends)]
    order = np.argsort(source, kind="stable")
    target = number[np.append(table["target"], np.full(len(ends), last))]
    read = np.append(table["read"], np.full(len(ends), FINAL))
    written = np.append(table["written"], silent)[order]
    scores = -np.append(table["cost"], finals[ends])
    if np.isnan(scores).any() or (scores == np.inf).any():
        raise ValueError("costs that are no numbers")
    return Fst(
        source=source[order].astype(np.int32),
        target=target[order].astype(np.int32),
        labels=read[order].astype(np.int32),
        scores=scores[order].astype(np.float32),
        splits=np.append(0, np.cumsum(written > 0)).astype(np.int32),
        words=written[written > 0].astype(np.int32),
    )
