"""What the compiled CTC search works on: structured arrays, no objects, no copies of texts.

Only arrays and their fields cross into compiled code. Its machine code is kept on disk by numba
under the types of its arguments: another field gives another type, but a renamed class would leave
files that cannot be read.
"""

import math

import numpy as np

NO_LM, NGRAMS, FORECAST = 0, 1, 2
ROOT = 0
"""The root of a dictionary's tree."""
NONE = -math.inf
"""Log-probability of nothing."""
# Candidates are cut back to the beam whenever there are this many times its width.
_ROOM = 5

NODE = np.dtype(  # of a dictionary's tree
    [
        ("symbol", np.int32),  # that leads here from the parent
        ("first", np.int32),  # the first child; children are neighbours, their symbols rising
        ("last", np.int32),  # one beyond the last child
        ("word", np.int32),  # the word that ends here, or -1
        ("low", np.int32),  # the first word below
        ("high", np.int32),  # one beyond the last word below
        ("depth", np.int32),  # symbols from the root
        ("unused", np.int32),  # two nodes to a line of the processor's cache
    ]
)
CONTEXT = np.dtype(  # a state of the n-gram automaton
    [
        ("first", np.int32),  # the first n-gram that continues it; they are sorted by word
        ("below", np.int32),  # the state without its first word
        ("backoff", np.float64),  # the weight of what no n-gram continues
        ("end", np.float64),  # the log-probability that a sentence ends here
    ]
)
NGRAM = np.dtype(
    [
        ("word", np.int32),  # its last word
        ("target", np.int32),  # the state behind it
        ("logprob", np.float64),
        ("sum", np.float64),  # of probabilities from the state's first n-gram up to this one
        ("lower", np.float64),  # of the same words' probabilities in the state below
    ]
)
WORD = np.dtype(  # of a dictionary, for the n-grams
    [
        ("name", np.int32),  # what it is called there: itself, or <UNK>
        ("unknown", np.float64),  # unknown words before it, over all of them
    ]
)
PREFIX = np.dtype(  # a hypothesis
    [
        ("parent", np.int32),  # the prefix without its last symbol
        ("symbol", np.int32),  # the last symbol
        ("place", np.int32),  # the node of the dictionary's tree; the root between words
        ("state", np.int32),  # the n-gram state behind the finished words
        ("end_state", np.int32),  # and behind the word that ends here
        ("active", np.int32),  # one more than the number in the beam; 0 outside
        ("fixed", np.float64),  # weighted n-gram score and bonus of the finished words
        ("ended", np.float64),  # and with the word that ends here; NaN until it is asked for
        ("ahead", np.float64),  # the forecast for the unfinished word
    ]
)
BEAM = np.dtype(  # a prefix that is kept after a frame
    [
        ("blank", np.float64),  # log-probability of all its paths that end in a blank
        ("symbol", np.float64),  # of those that end in its last symbol
        ("total", np.float64),  # of both
        ("node", np.int32),  # its number among all prefixes
        ("child", np.int32),  # the last prefix of the beam that extends it; -1: none
        ("sibling", np.int32),  # the one before that, for the parent's list
        ("unused", np.int32),
    ]
)
CANDIDATE = np.dtype(  # a prefix that may be in the next beam
    [
        ("key", np.float64),  # what it is ranked by
        ("total", np.float64),  # log-probability of its paths
        ("ahead", np.float64),  # its forecast
        ("source", np.int32),  # the number in the beam of the prefix that is kept or extended
        ("symbol", np.int32),  # the symbol that extends it; -1: it is kept
        ("place", np.int32),  # where in the tree it stands; negative (see ~) behind a word's end
        ("unused", np.int32),
    ]
)
SYMBOL = np.dtype(
    [
        ("in_beam", np.int64),  # when it last led from the prefix looked at into the beam
        ("grows", np.bool_),  # whether prefixes may grow by it in this frame
        ("growing", np.int32),  # the n-th symbol by which they may
        ("between", np.int32),  # the n-th symbol that parts words
    ]
)
SEARCH = np.dtype(  # settings, then how far the search is
    [
        ("blank", np.int32),  # the blank's column
        ("space", np.int32),  # the label that is written once however often it stands there, and
        # not at the beginning of a text; -1: none
        ("width", np.int64),  # prefixes kept per frame
        ("margin", np.float64),  # score below the best of a frame from which they are dropped
        ("symbols", np.int64),  # symbols by which prefixes may grow in a frame, the likeliest ones
        ("mode", np.int32),  # NO_LM, NGRAMS or FORECAST
        ("weight", np.float64),  # factor on n-gram log-probabilities
        ("bonus", np.float64),  # added for each word
        ("complete", np.bool_),  # a text may end inside a word that can only be one
        ("joined", np.bool_),  # words follow each other without a symbol between them
        ("between", np.int64),  # symbols that part words
        ("size", np.int64),  # prefixes in the beam
        ("nodes", np.int64),  # prefixes in all
        ("candidates", np.int64),  # of this frame
        ("floor", np.float64),  # what the key of a further one must exceed
        ("growing", np.int64),  # symbols by which prefixes may grow in this frame
        ("top", np.float64),  # the log-probability of the best of them
        ("clock", np.int64),  # prefixes looked at so far
    ]
)


def prefixes(most: int, space: int, start: int) -> np.ndarray:
    """[most] PREFIX with the empty one, as if behind a space; `start` is its n-gram state.

    The operating system gives memory for what is touched alone.
    """
    nodes = np.zeros(most, PREFIX)
    nodes[0] = (-1, space, ROOT, start, 0, 1, 0.0, math.nan, 0.0)
    return nodes


def beam(width: int) -> np.ndarray:
    """[width] BEAM with nothing but the empty prefix, which no frame has been read of."""
    rows = np.zeros(width, BEAM)
    rows[0] = (0.0, NONE, 0.0, 0, -1, -1, 0)
    return rows


def candidates(width: int) -> np.ndarray:
    """Room for the candidates of a beam."""
    return np.zeros(_ROOM * width, CANDIDATE)


def hash_table(most: int) -> np.ndarray:
    """Room to find `most` prefixes by parent and symbol; 0 is empty."""
    return np.zeros(1 << (2 * most - 1).bit_length(), np.int32)
