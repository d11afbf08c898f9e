"""Transducers in OpenFst's binary format, as Kaldi's programs read L.fst, G.fst and HCLG.fst."""

import struct

import numpy as np

from toolkit.fsa.fst import EPSILON, FINAL, Fst

MAGIC, _VERSION = 2125659606, 2
_EXPANDED, _MUTABLE = 0x1, 0x2
_INPUT_SORTED, _OUTPUT_SORTED = 0x10000000, 0x40000000
_STATE_WORDS, _ARC_WORDS = 3, 4


def dump_openfst(fst: Fst, by_output: bool = False) -> bytes:
    """One transducer as OpenFst writes a `vector` of `standard` arcs, without symbol tables.

    Costs are negated scores. Arcs to the final state become final costs; where such an arc writes
    words, it stays and reads nothing. An arc that writes several words is followed by arcs that
    read nothing and write one each.

    Args:
      fst: the transducer; its `lm_scores` are left out.
      by_output: sort the arcs of each state by output labels, as the left side of a composition
        needs them, not by input labels.
    """
    arcs, ends = _single_words(fst)
    source, target, read, written, cost = arcs
    order = np.lexsort((target, written if by_output else read, source))
    first = np.searchsorted(source[order], np.arange(len(ends) + 1))
    words = np.zeros(_STATE_WORDS * len(ends) + _ARC_WORDS * len(source), "<i4")
    # A state: its final cost, the number of its arcs in 64 bits, the arcs.
    at = _STATE_WORDS * np.arange(len(ends)) + _ARC_WORDS * first[:-1]
    words[at], words[at + 1] = ends.view("<i4"), np.diff(first)
    at = _STATE_WORDS * (source[order] + 1) + _ARC_WORDS * np.arange(len(source))
    for column, values in enumerate((read, written, cost.view("<i4"), target)):
        words[at + column] = values[order]
    properties = _EXPANDED | _MUTABLE | (_OUTPUT_SORTED if by_output else _INPUT_SORTED)
    start = 0 if len(ends) else -1
    numbers = struct.pack("<iiQqqq", _VERSION, 0, properties, start, len(ends), len(source))
    return (
        struct.pack("<i", MAGIC) + _text("vector") + _text("standard") + numbers + words.tobytes()
    )


def _text(name: str) -> bytes:
    return struct.pack("<i", len(name)) + name.encode()


def _single_words(fst: Fst) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Arcs that write a word at most (source, target, input, output, cost), and final costs."""
    counts, final = fst.word_counts, fst.labels == FINAL
    plain = final & (counts == 0)
    kept = np.flatnonzero(~plain)
    # The final state is left out where no arc leads there any more.
    states = max(fst.num_states - (0 if final[kept].any() else 1), 0)
    pieces = np.maximum(counts[kept], 1)
    arc = np.repeat(kept, pieces)
    begin = pieces.cumsum() - pieces
    place = np.arange(len(arc)) - np.repeat(begin, pieces)
    is_first, is_last = place == 0, place == np.repeat(pieces, pieces) - 1
    # Within the pieces of an arc, each leads to a new state, from which the next begins.
    new = states + np.cumsum(~is_last) - 1
    source = np.where(is_first, fst.source[arc], np.append(0, new[:-1]) if len(arc) else new)
    target = np.where(is_last, fst.target[arc], new)
    read = np.where(is_first & (fst.labels[arc] != FINAL), fst.labels[arc], EPSILON)
    written = np.zeros(len(arc), np.int32)
    has_word = counts[arc] > 0
    written[has_word] = fst.words[(fst.splits[arc] + place)[has_word]]
    cost = np.where(is_first, -fst.scores[arc], np.float32(0)).astype("<f4") + np.float32(0)
    ends = np.full(states + np.count_nonzero(~is_last), np.inf, "<f4")
    np.minimum.at(ends, fst.source[plain], -fst.scores[plain] + np.float32(0))
    if final[kept].any():
        ends[fst.num_states - 1] = 0.0
    return (source, target, read, written, cost), ends
