"""Compiled kernels (numba) for CTC searches and alignments, and the arrays that they use.

A prefix is a node of a growing trie of hypotheses: it has a parent, a last symbol, a node of the
dictionary's tree and the score of its finished words. In each frame a prefix is either kept (the
frame is a blank or repeats the last symbol; a space may repeat even after a blank) or extended by a
symbol that the tree allows. The probabilities of all ways to the same prefix are added. The best
`width` candidates of a frame survive.

Compiled code gets arrays only, no objects. Numba caches its machine code on disk by the types of
the arguments: a changed field makes another type, whereas a renamed class would leave cache files
that cannot be read.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toolkit.kernels import njit

NO_LM, NGRAMS, FORECAST = 0, 1, 2
ROOT = 0
"""The root of a dictionary's tree."""
NONE = -math.inf
"""Log-probability of an impossible event."""
# Candidates are cut back to the beam width whenever their number is this many times the width.
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
        ("unknown", np.float64),  # sum of the shares of <UNK> that the words before it have
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
        ("sibling", np.int32),  # the next prefix in the parent's list of such prefixes; -1: none
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
        ("nth_growing", np.int32),  # in entry n: the n-th symbol that may extend prefixes
        ("between", np.int32),  # in entry n: the n-th symbol that separates words
    ]
)
SEARCH = np.dtype(  # settings, then the state of the search
    [
        ("blank", np.int32),  # the blank's column
        ("space", np.int32),  # the space's column, -1: none; repeated spaces count as one, and
        # those at the beginning of a text are dropped
        ("width", np.int64),  # prefixes kept per frame
        ("margin", np.float64),  # prefixes this far below the best of a frame are dropped
        ("symbols", np.int64),  # number of a frame's best symbols that may extend prefixes
        ("mode", np.int32),  # NO_LM, NGRAMS or FORECAST
        ("weight", np.float64),  # factor on n-gram log-probabilities
        ("bonus", np.float64),  # added for each word
        ("complete", np.bool_),  # a text may end inside a word if only one word begins like that
        ("joined", np.bool_),  # words follow each other without a symbol between them
        ("between", np.int64),  # number of symbols that separate words
        ("frames", np.int64),  # frames searched so far
        ("size", np.int64),  # prefixes in the beam
        ("nodes", np.int64),  # prefixes in total
        ("candidates", np.int64),  # candidates of this frame
        ("floor", np.float64),  # key that further candidates must exceed
        ("num_growing", np.int64),  # number of symbols by which prefixes may be extended
        ("top", np.float64),  # the log-probability of the best of these symbols
        ("clock", np.int64),  # prefixes extended so far
    ]
)


def empty_trie(most: int, space: int, start: int) -> np.ndarray:
    """Return an array of `most` PREFIX entries; the first is the empty prefix in state `start`.

    The empty prefix counts as ending in a space. Memory is only committed for pages in use.
    """
    nodes = np.zeros(most, PREFIX)
    nodes[0] = (-1, space, ROOT, start, 0, 1, 0.0, math.nan, 0.0)
    return nodes


def empty_beam(width: int) -> np.ndarray:
    """Return an array of `width` BEAM entries that holds the empty prefix only."""
    rows = np.zeros(width, BEAM)
    rows[0] = (0.0, NONE, 0.0, 0, -1, -1, 0)
    return rows


def empty_candidates(width: int) -> np.ndarray:
    """Return an array for the candidate prefixes of a frame."""
    return np.zeros(_ROOM * width, CANDIDATE)


def empty_table(most: int) -> np.ndarray:
    """Return a hash table of `most` prefixes by parent and symbol; 0 marks an empty slot."""
    return np.zeros(1 << (2 * most - 1).bit_length(), np.int32)


@njit(nogil=True, forceinline=True)
def first_slot(parent: int, symbol: int, mask: int) -> int:
    """Return the first slot to probe for a prefix in a hash table of `mask + 1` slots."""
    return (np.int64(parent) * 0x9E3779B1 + np.int64(symbol) * 0x85EBCA77) & mask


@dataclass
class SearchState:
    """Arrays that the compiled search reads and writes; see `toolkit.decode.ctc.kernels`."""

    settings: np.ndarray
    """[1] SEARCH."""
    between: tuple[int, ...]
    """The symbols that separate words."""
    beams: tuple[np.ndarray, np.ndarray]
    """Two [width] BEAM."""
    trie: np.ndarray
    """[N] PREFIX, with room for prefixes to come."""
    table: np.ndarray
    """Hash table of the prefixes."""
    candidates: np.ndarray
    """Working memory."""
    marks: np.ndarray | None = None
    """[C] SYMBOL."""

    @classmethod
    def new(
        cls, settings: np.ndarray, between: Sequence[int], begin: tuple[int, int], frames: int
    ) -> "SearchState":
        """Return the search state before the first frame.

        Args:
          settings: [1] SEARCH with the settings filled in; a copy is made.
          between: the symbols that separate words.
          begin: the space's column and the n-gram state of the empty prefix.
          frames: expected number of frames; there may be more.
        """
        width = int(settings["width"][0])
        most = 1 + frames * width
        return cls(
            settings.copy(),
            tuple(between),
            (empty_beam(width), empty_beam(width)),
            empty_trie(most, *begin),
            empty_table(most),
            empty_candidates(width),
        )

    @property
    def beam(self) -> np.ndarray:
        """The BEAM entries of the prefixes in the beam after the last frame."""
        if not self.settings["nodes"][0]:
            return self.beams[0][:1]
        return self.beams[self.settings["frames"][0] % 2][: self.settings["size"][0]]

    def symbols(self, columns: int) -> np.ndarray:
        """Return the array of flags for the C symbols."""
        if self.marks is None:
            self.marks = np.zeros(columns, SYMBOL)
            self.marks["between"][: len(self.between)] = self.between
        return self.marks

    def reserve(self, frames: int) -> None:
        """Make room for the prefixes of more frames, at least doubling the capacity."""
        used = max(1, int(self.settings["nodes"][0]))
        needed = used + frames * len(self.beams[0])
        if needed <= len(self.trie):
            return
        most = max(needed, 2 * len(self.trie))
        trie = np.zeros(most, self.trie.dtype)
        trie[:used] = self.trie[:used]
        self.trie, self.table = trie, empty_table(most)
        _enter(self.trie, used, self.table)


@njit(cache=True)
def _enter(trie: np.ndarray, count: int, table: np.ndarray) -> None:
    """Enter the first `count` prefixes of a trie, except the empty one, into a new hash table."""
    mask = len(table) - 1
    for node in range(1, count):
        slot = first_slot(trie[node].parent, trie[node].symbol, mask)
        while table[slot] > 0:
            slot = (slot + 1) & mask
        table[slot] = node


_Array = np.ndarray
_Record = np.void
_Lm = tuple[np.ndarray, np.ndarray, np.ndarray]
_inline = njit(nogil=True, forceinline=True)


@njit(cache=True, nogil=True)
def search(
    log_probs: _Array,
    tree: _Array,
    lm: _Lm,
    beams: tuple[_Array, _Array],
    trie: _Array,
    table: _Array,
    candidates: _Array,
    symbols: _Array,
    settings: _Array,
) -> None:
    """Search the next frames; see `toolkit.decode.ctc.kernels` for the arrays.

    Args:
      log_probs: [T, C] float32; consecutive calls give the same result as one call with all frames.
      tree: [N] NODE: the dictionary.
      lm: [S + 1] CONTEXT, [E] NGRAM, [W + 1] WORD; not used in the mode NO_LM.
      beams: two [width] BEAM, empty before the first call; the last beam is left in
        beams[settings.frames % 2].
      trie: [1 + all frames * width] PREFIX, empty before the first call; gets all prefixes. Those
        of the last beam also get the score of a word that ends there.
      table: a hash table of prefixes by parent and symbol, empty before the first call.
      candidates: an array of candidates, working memory.
      symbols: [C] SYMBOL with `between` filled in.
      settings: [1] SEARCH with its settings; called `now` below, as it also holds the search's
        state.
    """
    now = settings[0]
    if now.frames == 0:
        now.size = now.nodes = 1
    for row in log_probs:
        # The two beams take turns: one is read, the other written.
        beam, next_beam = beams[now.frames % 2], beams[(now.frames + 1) % 2]
        now.frames += 1
        _choose_symbols(row, symbols, now)
        _keep(row, beam, next_beam, trie, candidates, now)
        if now.num_growing > 0:
            for i in range(now.size):
                _extend(i, row, beam, tree, lm, trie, candidates, symbols, now)
        _select(candidates, now)
        _advance(beam, next_beam, trie, table, candidates, now)
    # A text may end here: score the word that ends in each prefix of the last beam or, with
    # `complete`, the only word (high == low + 1) that the prefix can still become.
    last = beams[now.frames % 2]
    for i in range(now.size):
        prefix = trie[last[i].node]
        here = tree[prefix.place]
        word = here.word
        if word < 0 and here.depth > 0 and now.complete and here.high == here.low + 1:
            word = here.low
        if word >= 0:
            _end_word(prefix, word, lm, now)


@_inline
def _add(a: float, b: float) -> float:
    """Return log(exp(a) + exp(b))."""
    if a < b:
        a, b = b, a
    if b <= a - 40.0:  # b is log 0, or too small to change a
        return a
    return a + math.log1p(math.exp(b - a))


@_inline
def _choose_symbols(row: _Array, symbols: _Array, now: _Record) -> None:
    """Select the symbols of a frame that may extend prefixes.

    Sets `grows` and `nth_growing` in `symbols`, and `num_growing` and `top` in `now`.
    """
    count, num_kept, top, values = 0, 0, NONE, np.empty(len(row))
    # All possible symbols except the blank, which never extends a prefix.
    for symbol in range(len(row)):
        symbols[symbol].grows = symbol != now.blank and row[symbol] > NONE
        if symbols[symbol].grows:
            symbols[count].nth_growing, values[count] = symbol, row[symbol]
            count += 1
            top = max(top, row[symbol])
    if count > now.symbols:
        # The `symbols` likeliest symbols, or more if several equal the last of them.
        cut = np.partition(values[:count], count - now.symbols)[count - now.symbols]
        for k in range(count):
            symbol = symbols[k].nth_growing
            symbols[symbol].grows = row[symbol] >= cut
            symbols[num_kept].nth_growing = symbol
            num_kept += symbols[symbol].grows
        count = num_kept
    now.num_growing, now.top = count, top


@_inline
def _keep(
    row: _Array, beam: _Array, next_beam: _Array, trie: _Array, candidates: _Array, now: _Record
) -> None:
    """Make the candidates for prefixes that stay in the beam.

    Their log-probabilities are written to `next_beam`, in the order of the beam.
    """
    # Each prefix has a list of the beam's prefixes that extend it, filled below.
    for i in range(now.size):
        beam[i].child = -1
    best, worst = NONE, math.inf
    for i in range(now.size):
        entry, prefix = beam[i], trie[beam[i].node]
        # For a prefix l, in logs: p_blank(l, t) = p(l, t - 1) y_t(blank), with y_t from `row`.
        blank, symbol = entry.total + row[now.blank], NONE
        # p_symbol(l, t) = p_symbol(l, t - 1) y_t(c), c the last symbol; repeated spaces are one
        # space, so that a space may continue after a blank.
        last = prefix.symbol
        if last >= 0:
            symbol = (entry.total if last == now.space else entry.symbol) + row[last]
        if entry.node > 0:
            parent = trie[prefix.parent]
            j = parent.active - 1
            if j >= 0:
                # The parent is in the beam: its paths extended by c give this prefix, too. If the
                # parent ends in c, only its paths that end in a blank do, as c c would merge.
                parent_entry = beam[j]
                entry.sibling, parent_entry.child = parent_entry.child, i
                paths = parent_entry.blank if parent.symbol == last else parent_entry.total
                symbol = _add(symbol, paths + row[last])
        total = _add(blank, symbol)
        next_beam[i].blank, next_beam[i].symbol = blank, symbol
        key = total + prefix.fixed + prefix.ahead
        candidate = candidates[i]
        candidate.key, candidate.total = key, total
        candidate.source, candidate.symbol = i, -1
        best, worst = max(best, key), min(worst, key)
    # A candidate must exceed the worst of a full beam, and come within the margin of the best.
    now.candidates = now.size
    now.floor = max(worst if now.size == now.width else NONE, best - now.margin)


@_inline
def _extend(
    i: int,
    row: _Array,
    beam: _Array,
    tree: _Array,
    lm: _Lm,
    trie: _Array,
    candidates: _Array,
    symbols: _Array,
    now: _Record,
) -> None:
    """Make the candidates that extend prefix `i` of the beam by one symbol."""
    prefix, total = trie[beam[i].node], beam[i].total
    # An upper bound of the key of any extension: look-ahead scores never rise within a word.
    best = total + prefix.fixed + prefix.ahead + max(now.bonus, 0.0) + now.top
    if best <= now.floor:  # none can be good enough
        return
    # Mark the symbols whose extensions `_keep` has summed up already.
    now.clock += 1
    j = beam[i].child
    while j >= 0:
        symbols[trie[beam[j].node].symbol].in_beam = now.clock
        j = beam[j].sibling
    word = tree[prefix.place].word
    ends = word >= 0
    if ends and math.isnan(prefix.ended):
        _end_word(prefix, word, lm, now)
    # Go on with the word; where words follow each other directly, also begin the next one.
    for behind in range(1 + (ends and now.joined)):
        _grow_word(i, behind == 1, row, beam, tree, lm, trie, candidates, symbols, now)
    # Where a word has ended, or between words, a separator may follow.
    if ends or prefix.place == ROOT:
        fixed = prefix.ended if ends else prefix.fixed
        place = ~ROOT if ends else ROOT
        for k in range(now.between):
            symbol = symbols[k].between
            again = symbol == prefix.symbol
            if _may_grow(symbol, symbols, now) and not (again and symbol == now.space):
                paths = (beam[i].blank if again else total) + row[symbol]
                _offer(i, symbol, place, paths, paths + fixed, 0.0, candidates, now)


@_inline
def _may_grow(symbol: int, symbols: _Array, now: _Record) -> bool:
    """Whether a symbol may extend the current prefix to one that is not in the beam yet."""
    return symbols[symbol].grows and symbols[symbol].in_beam != now.clock


@_inline
def _grow_word(
    i: int,
    behind: bool,
    row: _Array,
    beam: _Array,
    tree: _Array,
    lm: _Lm,
    trie: _Array,
    candidates: _Array,
    symbols: _Array,
    now: _Record,
) -> None:
    """Make the candidates for the tree's next symbols; with `behind` they begin a new word."""
    prefix = trie[beam[i].node]
    place, fixed, state = prefix.place, prefix.fixed, prefix.state
    bound = prefix.ahead  # look-ahead scores never rise within a word
    if behind:
        place, fixed, state, bound = ROOT, prefix.ended, prefix.end_state, 0.0
    total, blank, last = beam[i].total, beam[i].blank, prefix.symbol
    # Loop over the children of the node, or over the symbols of the frame if they are far fewer.
    low, high = tree[place].first, tree[place].last
    by_symbol = high - low > 2 * now.num_growing
    for k in range(now.num_growing if by_symbol else high - low):
        child = low + k
        if by_symbol:
            child = _find_child(tree, low, high, symbols[k].nth_growing)
            if child < 0:
                continue
        # p_symbol(l c, t) = p(l, t - 1) y_t(c), or p_blank(l, t - 1) y_t(c) where l ends in c.
        symbol = tree[child].symbol
        paths = (blank if symbol == last else total) + row[symbol]
        key, ahead = paths + fixed + bound, 0.0
        if key <= now.floor or not _may_grow(symbol, symbols, now):
            continue
        if now.mode == FORECAST:
            # The probability of all words below the child bounds that of the word to come; 1e-99
            # stands for 0, whose logarithm would be -inf.
            probability = mass(lm, state, tree[child].low, tree[child].high)
            ahead = now.weight * math.log(max(probability, 1e-99))
            key = paths + fixed + ahead
        _offer(i, symbol, ~child if behind else child, paths, key, ahead, candidates, now)


@_inline
def _find_child(tree: _Array, low: int, high: int, symbol: int) -> int:
    """Return the child with a symbol among nodes low ... high - 1 by bisection, or -1."""
    end = high
    while low < high:
        middle = (low + high) // 2
        if tree[middle].symbol < symbol:
            low = middle + 1
        else:
            high = middle
    return low if low < end and tree[low].symbol == symbol else -1


@_inline
def _end_word(prefix: _Record, word: int, lm: _Lm, now: _Record) -> None:
    """Compute score and n-gram state after the word that ends in a prefix."""
    logprob, state = 0.0, 0
    if now.mode != NO_LM:
        logprob, state = step(lm, prefix.state, word)
    # The score of the finished words: lm_weight * log P(word | words) + bonus for each.
    prefix.ended = prefix.fixed + now.weight * logprob + now.bonus
    prefix.end_state = state


@_inline
def _offer(
    source: int,
    symbol: int,
    place: int,
    total: float,
    key: float,
    ahead: float,
    candidates: _Array,
    now: _Record,
) -> None:
    """Add a candidate if its key is above the floor; prune the array first if it is full."""
    if key <= now.floor:
        return
    if now.candidates == len(candidates):
        _select(candidates, now)
    new = candidates[now.candidates]
    new.key, new.total, new.ahead = key, total, ahead
    new.source, new.symbol, new.place = source, symbol, place
    now.candidates += 1
    now.floor = max(now.floor, key - now.margin)


@njit(nogil=True)
def _select(candidates: _Array, now: _Record) -> None:
    """Keep the best `width` candidates in their order; ties go to earlier candidates."""
    if now.candidates <= now.width:
        return
    # `cut` is the key of rank `width`; `equal` is how many candidates with this key still fit in.
    keys = candidates[: now.candidates].key
    cut = np.partition(keys, len(keys) - now.width)[len(keys) - now.width]
    num_kept, equal = 0, now.width - (keys > cut).sum()
    for k in range(len(keys)):
        if keys[k] == cut:
            equal -= 1
        if keys[k] > cut or (keys[k] == cut and equal >= 0):
            candidates[num_kept] = candidates[k]
            num_kept += 1
    now.candidates, now.floor = num_kept, max(now.floor, cut)


@_inline
def _advance(
    beam: _Array, next_beam: _Array, trie: _Array, table: _Array, candidates: _Array, now: _Record
) -> None:
    """Make the next beam from the selected candidates.

    Kept prefixes come first among the candidates, in the order of the beam, so that their
    log-probabilities in `next_beam` are only ever moved towards the front.
    """
    # The old beam's prefixes leave it; those that stay are entered again below.
    for i in range(now.size):
        trie[beam[i].node].active = 0
    size = 0
    for k in range(now.candidates):
        chosen = candidates[k]
        if chosen.key < now.floor or chosen.key == NONE:
            continue
        node, new = beam[chosen.source].node, next_beam[size]
        if chosen.symbol < 0:  # kept as it is, see `_keep`
            new.blank, new.symbol = next_beam[chosen.source].blank, next_beam[chosen.source].symbol
        else:  # extended: all its paths end in the new symbol
            node = _find_prefix(node, chosen, trie, table, now)
            new.blank, new.symbol = NONE, chosen.total
        new.node, new.total = node, chosen.total
        size += 1
        trie[node].active = size
    now.size = size


@_inline
def _find_prefix(parent: int, chosen: _Record, trie: _Array, table: _Array, now: _Record) -> int:
    """Return the node of an extended prefix, adding a node if necessary."""
    # Open addressing with linear probing; the number of slots is a power of two.
    mask = len(table) - 1
    slot = first_slot(parent, chosen.symbol, mask)
    while table[slot] > 0:
        node = table[slot]
        if trie[node].parent == parent and trie[node].symbol == chosen.symbol:
            return node
        slot = (slot + 1) & mask
    # A new prefix: it inherits the n-gram state and score of its parent, or where a word has just
    # ended (place < 0) those after that word.
    node = np.int32(now.nodes)
    now.nodes += 1
    table[slot] = node
    parent_prefix, prefix = trie[parent], trie[node]
    prefix.parent, prefix.symbol = parent, chosen.symbol
    ends = chosen.place < 0
    prefix.place = ~chosen.place if ends else chosen.place
    prefix.state = parent_prefix.end_state if ends else parent_prefix.state
    prefix.fixed = parent_prefix.ended if ends else parent_prefix.fixed
    prefix.ahead, prefix.ended = chosen.ahead, math.nan
    return node


@njit(cache=True, nogil=True)
def step(lm: _Lm, state: int, word: int) -> tuple[float, int]:
    """Return a dictionary word's log-probability in an n-gram state, and the next state."""
    words = lm[2]
    name = words[word].name
    logprob, next_state = _step(lm[0], lm[1], state, name)
    if name != word:  # <UNK>, whose probability its words share equally
        logprob += math.log(words[word + 1].unknown - words[word].unknown)
    return logprob, next_state


@njit(nogil=True)
def _step(contexts: _Array, ngrams: _Array, state: int, word: int) -> tuple[float, int]:
    """Return the log-probability of a word of the n-gram model in a state, and the next state."""
    backoff = 0.0
    while state > 0:
        entry = _lower_bound(contexts, ngrams, state, word)
        if entry < contexts[state + 1].first and ngrams[entry].word == word:
            return backoff + ngrams[entry].logprob, ngrams[entry].target
        backoff += contexts[state].backoff
        state = contexts[state].below
    return backoff + ngrams[word].logprob, ngrams[word].target


@njit(cache=True, nogil=True)
def mass(lm: _Lm, state: int, first: int, last: int) -> float:
    """Return the probability that the next word is among dictionary words first ... last - 1.

    The result is exact. Cumulative sums give the back-off probability of the words that have no
    n-gram in a state, at the cost of two binary searches per order.
    """
    contexts, ngrams, words = lm
    total, factor, begin = 0.0, 1.0, state
    while state > 0:
        low = _lower_bound(contexts, ngrams, state, first)
        high = _lower_bound(contexts, ngrams, state, last)
        weight = math.exp(contexts[state].backoff)
        if low < high:
            # The next turn counts the weighted probabilities of the back-off state for all words.
            # For words with an n-gram in this state, replace these by the n-gram's probabilities.
            state_mass, backoff_mass = ngrams[high - 1].sum, ngrams[high - 1].lower
            if low > contexts[state].first:
                state_mass, backoff_mass = (
                    state_mass - ngrams[low - 1].sum,
                    backoff_mass - ngrams[low - 1].lower,
                )
            total += factor * (state_mass - weight * backoff_mass)
        factor *= weight
        state = contexts[state].below
    # Unigrams: every word has one.
    if first < last:
        total += factor * (ngrams[last - 1].sum - (ngrams[first - 1].sum if first > 0 else 0.0))
    # Words that the model lacks share the probability of <UNK>.
    share = words[last].unknown - words[first].unknown
    if share > 0:
        total += share * math.exp(_step(contexts, ngrams, begin, len(words) - 1)[0])
    return total


@njit(nogil=True)
def _lower_bound(contexts: _Array, ngrams: _Array, state: int, word: int) -> int:
    """Return a state's first n-gram whose word number is at least `word`."""
    low, high = contexts[state].first, contexts[state + 1].first
    while low < high:
        middle = (low + high) // 2
        if ngrams[middle].word < word:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def advance_alignment(
    rows: np.ndarray, labels: np.ndarray, blank: int, scores: np.ndarray, steps: np.ndarray
) -> None:
    """Advance the Viterbi alignment of a label sequence by some frames.

    Args:
      rows: [t, C] float32 log-probabilities.
      labels: [L] the sequence, without blanks.
      blank: the blank's column.
      scores: [2 L + 1] path scores of blanks and labels in turn, changed in place.
      steps: [t, 2 L + 1], written: number of states by which the best path into each state has
        advanced; [0, 2 L + 1] if not needed.
    """
    # Viterbi over the states of a CTC alignment: even ones are blanks, odd ones labels. A path may
    # stay in a state, go on to the next, or skip the blank between different labels.
    for t in range(len(rows)):
        # From the end, so that scores[s - 1] and [s - 2] are still those of frame t - 1.
        for s in range(len(scores) - 1, -1, -1):
            best, moved = scores[s], 0
            if s > 0 and scores[s - 1] > best:
                best, moved = scores[s - 1], 1
            skips = s > 1 and s % 2 == 1 and labels[s // 2] != labels[s // 2 - 1]
            if skips and scores[s - 2] > best:
                best, moved = scores[s - 2], 2
            scores[s] = best + rows[t, labels[s // 2] if s % 2 == 1 else blank]
            if len(steps) > 0:
                steps[t, s] = moved
