"""Structured arrays of the compiled CTC search.

Compiled code gets arrays only, no objects. Numba caches its machine code on disk by the types of
the arguments: a changed field makes another type, whereas a renamed class would leave cache files
that cannot be read.
"""

import math

import numpy as np
from numba import njit

NO_LM, NGRAMS, FORECAST = 0, 1, 2
ROOT = 0
"""The root of a dictionary's tree."""
NONE = -math.inf
"""Log-probability of an impossible event."""
# Candidates are cut back to the beam whenever there are this many times its width.
_ROOM = 5

NODE = np.dtype(  # a node of a dictionary's tree
    [
        ("symbol", np.int32),  # the symbol that leads here from the parent
        ("first", np.int32),  # the first child; children are adjacent, sorted by symbol
        ("last", np.int32),  # one beyond the last child
        ("word", np.int32),  # the word that ends here, or -1
        ("low", np.int32),  # the first word below
        ("high", np.int32),  # one beyond the last word below
        ("depth", np.int32),  # symbols from the root
        ("unused", np.int32),  # padding: two nodes fill a cache line
    ]
)
CONTEXT = np.dtype(  # a state of the n-gram automaton
    [
        ("first", np.int32),  # the first n-gram with this context; they are sorted by word
        ("below", np.int32),  # the back-off state: the context without its first word
        ("backoff", np.float64),  # the log of the back-off weight
        ("end", np.float64),  # the log-probability that a sentence ends here
    ]
)
NGRAM = np.dtype(
    [
        ("word", np.int32),  # its last word
        ("target", np.int32),  # the state after it
        ("logprob", np.float64),
        ("sum", np.float64),  # sum of probabilities from the state's first n-gram up to this one
        ("lower", np.float64),  # the same sum of these words' probabilities in the back-off state
    ]
)
WORD = np.dtype(  # a word of the dictionary in the n-gram model
    [
        ("name", np.int32),  # its number there: its own, or that of <UNK>
        ("unknown", np.float64),  # share of all unknown words that come before it
    ]
)
PREFIX = np.dtype(  # a hypothesis
    [
        ("parent", np.int32),  # the prefix without its last symbol
        ("symbol", np.int32),  # the last symbol
        ("place", np.int32),  # the node of the dictionary's tree; the root between words
        ("state", np.int32),  # the n-gram state after the finished words
        ("end_state", np.int32),  # the n-gram state after the word that ends here
        ("active", np.int32),  # index in the beam plus one; 0 outside the beam
        ("fixed", np.float64),  # weighted n-gram score and bonus of the finished words
        ("ended", np.float64),  # the same with the word that ends here; NaN until it is computed
        ("ahead", np.float64),  # the LM look-ahead score of the unfinished word
    ]
)
BEAM = np.dtype(  # a prefix that is kept after a frame
    [
        ("blank", np.float64),  # log-probability of all its paths that end in a blank
        ("symbol", np.float64),  # log-probability of those that end in its last symbol
        ("total", np.float64),  # log-probability of both together
        ("node", np.int32),  # its number among all prefixes
        ("child", np.int32),  # the last prefix of the beam that extends it; -1: none
        ("sibling", np.int32),  # the one before that, for the parent's list
        ("unused", np.int32),
    ]
)
CANDIDATE = np.dtype(  # a prefix that may be in the next beam
    [
        ("key", np.float64),  # the score it is ranked by
        ("total", np.float64),  # log-probability of its paths
        ("ahead", np.float64),  # its LM look-ahead score
        ("source", np.int32),  # index in the beam of the prefix that is kept or extended
        ("symbol", np.int32),  # the symbol that extends it; -1: it is kept
        ("place", np.int32),  # its node of the tree; inverted (~) if a word has just ended
        ("unused", np.int32),
    ]
)
SYMBOL = np.dtype(
    [
        ("in_beam", np.int64),  # clock of the last prefix whose extension by it is in the beam
        ("grows", np.bool_),  # whether prefixes may be extended by it in this frame
        ("growing", np.int32),  # the n-th symbol by which they may be extended
        ("between", np.int32),  # the n-th symbol that separates words
    ]
)
SEARCH = np.dtype(  # settings, then the state of the search
    [
        ("blank", np.int32),  # the blank's column
        ("space", np.int32),  # the space's column, -1: none; repeated spaces count as one, and
        # those at the beginning of a text are dropped
        ("width", np.int64),  # prefixes kept per frame
        ("margin", np.float64),  # score below the best of a frame from which they are dropped
        ("symbols", np.int64),  # symbols by which prefixes may be extended in a frame, the best
        ("mode", np.int32),  # NO_LM, NGRAMS or FORECAST
        ("weight", np.float64),  # factor on n-gram log-probabilities
        ("bonus", np.float64),  # added for each word
        ("complete", np.bool_),  # a text may end inside a word if only one word begins like it
        ("joined", np.bool_),  # words follow each other without a symbol between them
        ("between", np.int64),  # number of symbols that separate words
        ("frames", np.int64),  # frames searched so far
        ("size", np.int64),  # prefixes in the beam
        ("nodes", np.int64),  # prefixes in total
        ("candidates", np.int64),  # candidates of this frame
        ("floor", np.float64),  # key that further candidates must exceed
        ("growing", np.int64),  # number of symbols by which prefixes may be extended in this frame
        ("top", np.float64),  # the log-probability of the best of them
        ("clock", np.int64),  # prefixes extended so far
    ]
)


def prefixes(most: int, space: int, start: int) -> np.ndarray:
    """Return [most] PREFIX, the first being the empty prefix in the n-gram state `start`.

    The empty prefix counts as ending in a space. Memory is only committed for pages in use.
    """
    nodes = np.zeros(most, PREFIX)
    nodes[0] = (-1, space, ROOT, start, 0, 1, 0.0, math.nan, 0.0)
    return nodes


def beam(width: int) -> np.ndarray:
    """Return [width] BEAM that holds only the empty prefix, before the first frame."""
    rows = np.zeros(width, BEAM)
    rows[0] = (0.0, NONE, 0.0, 0, -1, -1, 0)
    return rows


def candidates(width: int) -> np.ndarray:
    """Return an array for the candidates of a frame."""
    return np.zeros(_ROOM * width, CANDIDATE)


def hash_table(most: int) -> np.ndarray:
    """Return a hash table for `most` prefixes by parent and symbol; 0 marks an empty slot."""
    return np.zeros(1 << (2 * most - 1).bit_length(), np.int32)


@njit(nogil=True, forceinline=True)
def first_slot(parent: int, symbol: int, mask: int) -> int:
    """Return the slot of a hash table of `mask + 1` where the search for a prefix begins."""
    return (np.int64(parent) * 0x9E3779B1 + np.int64(symbol) * 0x85EBCA77) & mask
