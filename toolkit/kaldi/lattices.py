"""Imports Kaldi's word lattices; exports lattices as text for Kaldi, HTK and OpenFst."""

import gzip
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from toolkit.decode.combine import LATTICES
from toolkit.fsa.lattice_store import (
    LatticeStore,
    LatticeStoreError,
    WeightsUsed,
    WordCodec,
    WordTable,
    write_lattices,
)
from toolkit.fsa.minimum_bayes_risk import oracle_words
from toolkit.fsa.word_lattice import NO_WORD, WordLattice
from toolkit.kaldi.graph import MAGIC
from toolkit.lang.tables import SymbolTable
from toolkit.storage.files import open_atomically, write_atomically
from toolkit.storage.paths import first_clash, path_below, safe_name
from toolkit.storage.reading import reading

ADVICE = (
    "give an archive of compact lattices; convert others by `lattice-copy --write-compact=true`"
)
_GZIP, _FIRST_BYTE = b"\x1f\x8b", struct.pack("<i", MAGIC)[:1]
_HEADER, _ARC, _WEIGHT = "<iiQqqq", struct.Struct("<ii"), struct.Struct("<ffi")
_LONGEST_KEY = 4096


class _Arc(NamedTuple):
    """An arc or final weight of a lattice."""

    source: int
    target: int
    """Target state; -1: the end, for a final weight."""
    word: int
    graph: float
    """Graph cost."""
    acoustic: float
    """Acoustic cost."""
    frames: int
    """Number of frames, that is of transition ids."""


_END = -1


def read_compact_lattices(
    path: Path, frame_shift: float
) -> Iterator[tuple[str, WordLattice | None]]:
    """Yield (utterance id, lattice) from an archive, gzipped or not; None: it has no path.

    Scores are negated costs. Transition ids are only counted, for the number of frames.

    Args:
      path: the archive.
      frame_shift: seconds per frame.

    Raises:
      LatticeStoreError: the file is not such an archive; the message names it.
    """
    with reading(path, LatticeStoreError, ADVICE, "not an archive of compact lattices"):
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


def _binary(content: bytes, offset: int) -> tuple[int, int, list[_Arc]]:
    """Parse the binary lattice at `offset`; return the offset after it, start state and arcs."""
    offset += 4  # OpenFst's magic number
    names = []
    for _ in range(2):
        (length,) = struct.unpack_from("<i", content, offset)
        names.append(content[offset + 4 : offset + 4 + length].decode())
        offset += 4 + length
    if names != ["vector", "compactlattice44"]:
        raise ValueError(f"a {' of '.join(names)} arcs"[:80])
    _, flags, _, start, states, _ = struct.unpack_from(_HEADER, content, offset)
    offset += struct.calcsize(_HEADER)
    if flags & 0x3:
        raise ValueError("it contains symbol tables")
    arcs = []
    for state in range(states):
        # The state's final weight; an infinite one is dropped by `_lattice`.
        graph, acoustic, frames, offset = _weight(content, offset)
        arcs.append(_Arc(state, _END, NO_WORD, graph, acoustic, frames))
        (count,) = struct.unpack_from("<q", content, offset)
        offset += 8
        for _ in range(count):
            # Input and output label are the same word in an acceptor.
            _, word = _ARC.unpack_from(content, offset)
            graph, acoustic, frames, offset = _weight(content, offset + _ARC.size)
            (target,) = struct.unpack_from("<i", content, offset)
            offset += 4
            if not 0 <= target < states:
                raise ValueError("an arc leads to a state that does not exist")
            arcs.append(_Arc(state, target, word, graph, acoustic, frames))
    return offset, start, arcs


def _weight(content: bytes, at: int) -> tuple[float, float, int, int]:
    """Parse a weight; return graph cost, acoustic cost, frames and the offset after it."""
    graph, acoustic, frames = _WEIGHT.unpack_from(content, at)
    if frames < 0:
        raise ValueError("a string of transition ids has a negative length")
    return graph, acoustic, frames, at + _WEIGHT.size + 4 * frames


def _text(content: bytes, offset: int) -> tuple[int, int, list[_Arc]]:
    """Parse a text lattice, which ends at a blank line; see `_binary`."""
    end = content.find(b"\n\n", offset)
    block = content[offset : end if end >= 0 else len(content)].decode()
    rows = [line.split() for line in block.split("\n") if line.strip()]
    arcs = []
    for row in rows:
        # `source target word weight` or `state weight`; weights of 0 may be missing.
        has_weight = len(row) in (2, 4)
        if not 1 <= len(row) <= 4:
            raise ValueError(f"a line of {len(row)} fields")
        graph, acoustic, string = row[-1].split(",") if has_weight else ("0", "0", "")
        frames = len(string.split("_")) if string else 0
        ends = len(row) <= 2
        target, word = (_END, NO_WORD) if ends else (int(row[1]), int(row[2]))
        arcs.append(_Arc(int(row[0]), target, word, float(graph), float(acoustic), frames))
    start = arcs[0].source if arcs else _END
    return (end + 2 if end >= 0 else len(content)), start, arcs


def _lattice(start: int, arcs: list[_Arc], frame_shift: float) -> WordLattice | None:
    """Make a lattice from the arcs on paths from start to end, in topological order.

    Arcs of infinite cost are on no path. The result is None if there is no path.

    Raises:
      ValueError: the lattice has a cycle, a state with different times, or NaN costs.
    """
    if not all(arc.graph > -np.inf and arc.acoustic > -np.inf for arc in arcs):
        raise ValueError("a cost is NaN or minus infinity")
    arcs = [arc for arc in arcs if arc.graph + arc.acoustic < np.inf]
    leaving: dict[int, list[_Arc]] = {}
    entering: dict[int, list[_Arc]] = {}
    for arc in arcs:
        leaving.setdefault(arc.source, []).append(arc)
        entering.setdefault(arc.target, []).append(arc)
    # Keep the states on paths from the start to the end.
    forward = _reached(
        start, {s: [a.target for a in state_arcs] for s, state_arcs in leaving.items()}
    )
    backward = _reached(
        _END, {s: [a.source for a in state_arcs] for s, state_arcs in entering.items()}
    )
    on_paths = forward & backward
    if start == _END or start not in on_paths:
        return None
    # Kahn's topological order: a state is ready when all arcs into it have been followed.
    num_pending = {
        state: sum(a.source in on_paths for a in entering.get(state, [])) for state in on_paths
    }
    frames, order, ready = {start: 0}, [], deque([start])
    if num_pending[start]:
        raise ValueError("a cycle")
    while ready:
        state = ready.popleft()
        order.append(state)
        for arc in leaving.get(state, []):
            if arc.target not in on_paths:
                continue
            until = frames[state] + arc.frames
            # All paths to a state must take the same number of frames: a state has one time.
            if frames.setdefault(arc.target, until) != until:
                raise ValueError("two paths to the same state have different numbers of frames")
            num_pending[arc.target] -= 1
            if not num_pending[arc.target]:
                ready.append(arc.target)
    # States on a cycle never become ready.
    if len(order) != len(on_paths):
        raise ValueError("a cycle")
    # The end of all paths, which alone has no arcs out of it, comes last.
    order.remove(_END)
    order.append(_END)
    new_state = {state: place for place, state in enumerate(order)}
    rows = [a for s in order for a in leaving.get(s, []) if s in on_paths and a.target in on_paths]
    source, target, words, graph, acoustic, _ = np.array(
        [(new_state[a.source], new_state[a.target], *a[2:]) for a in rows]
    ).T
    return WordLattice(
        source=source.astype(np.int32),
        target=target.astype(np.int32),
        words=words.astype(np.int32),
        graph=-graph,
        acoustic=-acoustic,
        times=frame_shift * np.array([frames[state] for state in order], float),
    )


def _reached(start: int, neighbours: dict[int, list[int]]) -> set[int]:
    """Return the states that can be reached from a state."""
    reached, pending = {start}, [start]
    while pending:
        for state in neighbours.get(pending.pop(), []):
            if state not in reached:
                reached.add(state)
                pending.append(state)
    return reached


FRAME = "1"
"""Transition id of every frame in exported lattices."""
Symbol = Callable[[int], str]


def kaldi_text(utterance: str, lattice: WordLattice, decoding: WeightsUsed) -> str:
    """Format a compact lattice like `lattice-copy ark:- ark,t:-`, with word ids.

    Costs are negated logarithms; acoustic costs are not scaled. The string of an arc has a
    transition id for each frame. All ids are 1, because transition ids belong to Kaldi's models.
    """
    last = lattice.num_states - 1
    frames = np.rint(lattice.times / decoding.frame_shift).astype(int)
    lines = [f"{utterance} "]
    # Wordless arcs to the last state become final weights; others need a final last state.
    ending = lattice.target == last
    final = [f"{last}"] if lattice.words[ending].any() else []
    for a in range(lattice.num_arcs):
        source, target, word = (int(x[a]) for x in (lattice.source, lattice.target, lattice.words))
        string = "_".join([FRAME] * int(frames[target] - frames[source]))
        weight = f"{-lattice.graph[a]:.9g},{-lattice.acoustic[a]:.9g},{string}"
        if ending[a] and word == NO_WORD:
            lines.append(f"{source}\t{weight}")
        else:
            lines.append(f"{source}\t{target}\t{word}\t{weight}")
    return "\n".join([*lines, *final, "", ""])


def slf(utterance: str, lattice: WordLattice, decoding: WeightsUsed, symbol: Symbol) -> str:
    """Format a lattice in HTK's standard lattice format: words on links, natural logarithms."""
    lines = [
        "VERSION=1.0",
        f"UTTERANCE={_htk(utterance)}",
        f"lmscale=1 acscale={decoding.acoustic_scale:g} wdpenalty={decoding.word_penalty:g}",
        f"N={lattice.num_states} L={lattice.num_arcs}",
    ]
    lines += [f"I={state} t={time:.3f}" for state, time in enumerate(lattice.times)]
    for a in range(lattice.num_arcs):
        word = "!NULL" if lattice.words[a] == NO_WORD else _htk(symbol(int(lattice.words[a])))
        lines.append(
            f"J={a} S={lattice.source[a]} E={lattice.target[a]} W={word} "
            f"a={lattice.acoustic[a]:.9g} l={lattice.graph[a]:.9g}"
        )
    return "\n".join([*lines, ""])


def _htk(text: str) -> str:
    """Escape a text for HTK: backslashes, and a leading quote."""
    text = text.replace("\\", "\\\\")
    return f"\\{text}" if text[:1] in ("'", '"') else text


def openfst_text(lattice: WordLattice, decoding: WeightsUsed, symbol: Symbol) -> str:
    """Format an acceptor for `fstcompile --acceptor --isymbols=words.txt`.

    Costs are the negated scores of the arcs, with the weights of the best path.
    """
    # Negated scores with the acoustic scale and word penalty of the best path
    costs = -lattice.scores(decoding.acoustic_scale, decoding.word_penalty)
    lines = [
        f"{source}\t{target}\t{symbol(word)}\t{cost:.9g}"
        for source, target, word, cost in zip(
            lattice.source.tolist(),
            lattice.target.tolist(),
            lattice.words.tolist(),
            costs.tolist(),
            strict=True,
        )
    ]
    return "\n".join([*lines, f"{lattice.num_states - 1}", ""])


def import_lattices(
    archives: Sequence[Path], words: Path, decoding: WeightsUsed, out: Path
) -> tuple[int, list[str]]:
    """Import the word lattices of Kaldi archives.

    Args:
      archives: archives of compact lattices, such as `lat.1.gz`.
      words: Kaldi's words.txt.
      decoding: frame shift, and the acoustic scale and word penalty that make the best path the
        recognised text.
      out: output folder, which `export_lattices` and the combination read.

    Returns:
      The number of lattices, and the utterances whose lattice has no path.

    Raises:
      LatticeStoreError: a file holds no lattices, an utterance occurs twice, or a word has no
        symbol.
    """
    table = SymbolTable.read(words)
    symbols = {table[word]: word for word in table}
    codec = WordCodec(symbol=symbols.__getitem__)
    utterances: set[str] = set()
    failed: list[str] = []
    for number, archive in enumerate(archives):
        lattices: dict[str, WordLattice | None] = {}
        for utterance, lattice in read_compact_lattices(archive, decoding.frame_shift):
            if utterance in utterances:
                raise LatticeStoreError(
                    f"{archive}: utterance {utterance!r} occurs twice: remove one of its lattices"
                )
            utterances.add(utterance)
            lattices[utterance] = lattice
            unknown = set() if lattice is None else {*lattice.words.tolist()} - symbols.keys()
            if unknown:
                raise LatticeStoreError(
                    f"{archive}: {utterance}: {words} has no word with the id {min(unknown)}: give "
                    "the words.txt of the graph with which the lattices were made"
                )
        failed += [utterance for utterance, lattice in lattices.items() if lattice is None]
        write_lattices(codec.path(out, number), lattices, codec, decoding)
    codec.remove_from(out, len(archives))  # shards of an earlier import with more archives
    return len(utterances) - len(failed), failed


SUFFIXES = {"slf": ".lat", "openfst": ".fst.txt"}
"""Suffixes of the formats with a file per utterance."""


def open_lattices(folder: Path, words: WordTable) -> LatticeStore[WordLattice, WeightsUsed]:
    """Open the word lattices of a decoded split, from its folder or the folder of the lattices."""
    inner = folder / LATTICES
    return LatticeStore(inner if inner.is_dir() else folder, WordCodec(words))


def export_lattices(folder: Path, form: str, out: Path) -> int:
    """Write the word lattices of a decoded split as text; return their number.

    Args:
      folder: folder of the split.
      form: "kaldi", "slf" or "openfst".
      out: output folder.

    Raises:
      LatticeStoreError: there are no lattices, or two utterances would have the same file.
    """
    words = WordTable()
    store = open_lattices(folder, words)
    symbol, ids = words.symbols.__getitem__, store.ids
    names = [f"{safe_name(name)}{SUFFIXES.get(form, '')}" for name in ids]
    clash = first_clash(names)
    if clash and form != "kaldi":
        raise LatticeStoreError(
            f"the lattices of {ids[clash[0]]} and {ids[clash[1]]} would be written to the same "
            "file: use the format kaldi"
        )
    out.mkdir(parents=True, exist_ok=True)
    if form == "kaldi":
        with open_atomically(out / "lat.txt") as file:
            for utterance in ids:
                file.write(kaldi_text(utterance, store.load(utterance), store.info(utterance)))
    for utterance, name in zip(ids, names, strict=True) if form != "kaldi" else ():
        lattice, decoding = store.load(utterance), store.info(utterance)
        path = path_below(out, name)
        if form == "slf":
            text = slf(utterance, lattice, decoding, symbol)
        else:
            text = openfst_text(lattice, decoding, symbol)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    if form != "slf":
        lines = [f"{word} {number}\n" for number, word in enumerate(words.symbols)]
        write_atomically(out / "words.txt", "".join(lines))
    return len(ids)


def oracle_texts(folder: Path, references: Mapping[str, str]) -> tuple[dict[str, str], int, float]:
    """Return the texts of the lattice paths nearest to the references, by utterance.

    Also return the total number of arcs and the total seconds of these lattices.
    """
    words = WordTable()
    store = open_lattices(folder, words)
    texts, arcs, seconds = {}, 0, 0.0
    for name in store.ids:
        if name in references:
            lattice = store.load(name)
            oracle = oracle_words(lattice, words.ids(references[name].split()))
            texts[name] = " ".join(words.symbols[word] for word in oracle)
            arcs, seconds = arcs + lattice.num_arcs, seconds + lattice.times[-1]
    return texts, arcs, seconds
