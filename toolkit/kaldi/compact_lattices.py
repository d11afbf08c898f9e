"""Reading of Kaldi's archives of compact lattices (`lat.1.gz`), binary and text."""

import gzip
import struct
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from toolkit.fsa.lattice_store import WordLatticeError
from toolkit.fsa.word_lattice import NO_WORD, WordLattice
from toolkit.kaldi.openfst import MAGIC
from toolkit.storage.reading import reading

ADVICE = (
    "give an archive of compact lattices; of others `lattice-copy --write-compact=true` makes one"
)
_GZIP, _FIRST_BYTE = b"\x1f\x8b", struct.pack("<i", MAGIC)[:1]
_HEADER, _ARC, _WEIGHT = "<iiQqqq", struct.Struct("<ii"), struct.Struct("<ffi")
_LONGEST_KEY = 4096


class _Arc(NamedTuple):
    """An arc of a lattice, or an end of a path, whose target is -1."""

    source: int
    target: int
    word: int
    graph: float
    acoustic: float
    frames: int


_END = -1


def read_compact_lattices(
    path: Path, frame_shift: float
) -> Iterator[tuple[str, WordLattice | None]]:
    """Read the lattices of an archive, gzipped or not; None where a lattice has no path.

    Scores are negated costs. Of the transition ids only their numbers, the frames, are taken over.

    Args:
      path: the archive.
      frame_shift: seconds per frame.

    Raises:
      WordLatticeError: naming the file.
    """
    with reading(path, WordLatticeError, ADVICE, "no archive of compact lattices"):
        content = Path(path).read_bytes()
        if content.startswith(_GZIP):
            content = gzip.decompress(content)
        at = 0
        while at < len(content):
            end = content.index(b" ", at, at + _LONGEST_KEY)
            key, at = content[at:end].decode(), end + 1
            is_binary = content[at : at + 1] == _FIRST_BYTE
            try:
                at, start, arcs = (_binary if is_binary else _text)(content, at)
                lattice = _lattice(start, arcs, frame_shift)
            except (ValueError, struct.error) as error:
                raise ValueError(f"{key}: {error}") from error
            yield key, lattice


def _binary(content: bytes, at: int) -> tuple[int, int, list[_Arc]]:
    at += 4
    names = []
    for _ in range(2):
        (length,) = struct.unpack_from("<i", content, at)
        names.append(content[at + 4 : at + 4 + length].decode())
        at += 4 + length
    if names != ["vector", "compactlattice44"]:
        raise ValueError(f"a {' of '.join(names)} arcs"[:80])
    _, flags, _, start, states, _ = struct.unpack_from(_HEADER, content, at)
    at += struct.calcsize(_HEADER)
    if flags & 0x3:
        raise ValueError("symbol tables within")
    found = []
    for state in range(states):
        graph, acoustic, frames, at = _weight(content, at)
        found.append(_Arc(state, _END, NO_WORD, graph, acoustic, frames))
        (count,) = struct.unpack_from("<q", content, at)
        at += 8
        for _ in range(count):
            _, word = _ARC.unpack_from(content, at)
            graph, acoustic, frames, at = _weight(content, at + _ARC.size)
            (target,) = struct.unpack_from("<i", content, at)
            at += 4
            if not 0 <= target < states:
                raise ValueError("an arc to a state that is not there")
            found.append(_Arc(state, target, word, graph, acoustic, frames))
    return at, start, found


def _weight(content: bytes, at: int) -> tuple[float, float, int, int]:
    """Costs, the number of frames, and where the next thing begins."""
    graph, acoustic, frames = _WEIGHT.unpack_from(content, at)
    if frames < 0:
        raise ValueError("a string of transition ids that is shorter than nothing")
    return graph, acoustic, frames, at + _WEIGHT.size + 4 * frames


def _text(content: bytes, at: int) -> tuple[int, int, list[_Arc]]:
    end = content.find(b"\n\n", at)
    block = content[at : end if end >= 0 else len(content)].decode()
    rows = [line.split() for line in block.split("\n") if line.strip()]
    found = []
    for row in rows:
        has_weight = len(row) in (2, 4)
        if not 1 <= len(row) <= 4:
            raise ValueError(f"a line of {len(row)} fields")
        graph, acoustic, string = row[-1].split(",") if has_weight else ("0", "0", "")
        frames = len(string.split("_")) if string else 0
        ends = len(row) <= 2
        target, word = (_END, NO_WORD) if ends else (int(row[1]), int(row[2]))
        found.append(_Arc(int(row[0]), target, word, float(graph), float(acoustic), frames))
    start = found[0].source if found else _END
    return (end + 2 if end >= 0 else len(content)), start, found


def _lattice(start: int, arcs: list[_Arc], frame_shift: float) -> WordLattice | None:
    """The lattice of the arcs that lie on paths from the start to an end; infinite costs are none.

    Raises:
      ValueError: it has a cycle, states without a time, or costs that are no numbers.
    """
    if not all(arc.graph > -np.inf and arc.acoustic > -np.inf for arc in arcs):
        raise ValueError("costs that are no numbers")
    arcs = [arc for arc in arcs if arc.graph + arc.acoustic < np.inf]
    leaving: dict[int, list[_Arc]] = {}
    entering: dict[int, list[_Arc]] = {}
    for arc in arcs:
        leaving.setdefault(arc.source, []).append(arc)
        entering.setdefault(arc.target, []).append(arc)
    forward = _reached(start, {s: [a.target for a in found] for s, found in leaving.items()})
    backward = _reached(_END, {s: [a.source for a in found] for s, found in entering.items()})
    kept = forward & backward
    if start == _END or start not in kept:
        return None
    waiting = {state: sum(a.source in kept for a in entering.get(state, [])) for state in kept}
    frames, order, ready = {start: 0}, [], deque([start])
    if waiting[start]:
        raise ValueError("a cycle")
    while ready:
        state = ready.popleft()
        order.append(state)
        for arc in leaving.get(state, []):
            if arc.target not in kept:
                continue
            until = frames[state] + arc.frames
            if frames.setdefault(arc.target, until) != until:
                raise ValueError("paths of different lengths to one state")
            waiting[arc.target] -= 1
            if not waiting[arc.target]:
                ready.append(arc.target)
    if len(order) != len(kept):
        raise ValueError("a cycle")
    # Only the end of all paths has no way on; it comes last.
    order.remove(_END)
    order.append(_END)
    number = {state: place for place, state in enumerate(order)}
    rows = [a for s in order for a in leaving.get(s, []) if s in kept and a.target in kept]
    source, target, words, graph, acoustic, _ = np.array(
        [(number[a.source], number[a.target], *a[2:]) for a in rows]
    ).T
    return WordLattice(
        source=source.astype(np.int32),
        target=target.astype(np.int32),
        words=words.astype(np.int32),
        graph=-graph,
        acoustic=-acoustic,
        times=frame_shift * np.array([frames[state] for state in order], float),
    )


def _reached(start: int, ways: dict[int, list[int]]) -> set[int]:
    found, waiting = {start}, [start]
    while waiting:
        for state in ways.get(waiting.pop(), []):
            if state not in found:
                found.add(state)
                waiting.append(state)
    return found
