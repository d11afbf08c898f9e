"""Compiled prefix beam search for CTC, summing over alignments in the log domain.

A prefix is a node of a growing trie of hypotheses: it has a parent, a last symbol, a node of the
dictionary's tree and the score of its finished words. In each frame a prefix is kept (by a blank or
its last symbol; a space even after a blank) or extended by a symbol that the tree allows; all ways
to the same prefix are summed. The best `width` candidates of a frame survive.
"""

import math

import numpy as np
from numba import njit

from toolkit.decode.ctc.arrays import FORECAST, NO_LM, NONE, ROOT, first_slot

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
    """Search the next frames. See `toolkit.decode.ctc.arrays` for the arrays and their fields.

    Args:
      log_probs: [T, C] float32; consecutive calls find the same as one with all frames.
      tree: [N] NODE: the dictionary.
      lm: [S + 1] CONTEXT, [E] NGRAM, [W + 1] WORD; not used in the mode NO_LM.
      beams: two [width] BEAM, new at first; the last beam is left in beams[settings.frames % 2].
      trie: [1 + all frames * width] PREFIX, new at first; gets all prefixes, those of the last beam
        with the score of a word that ends there.
      table: a hash table of prefixes by parent and symbol, new at first.
      candidates: an array of candidates, working memory.
      symbols: [C] SYMBOL with `between` filled in.
      settings: [1] SEARCH with its settings; `now`, below, since it also holds the search's state.
    """
    now = settings[0]
    if now.frames == 0:
        now.size = now.nodes = 1
    for row in log_probs:
        beam, after = beams[now.frames % 2], beams[(now.frames + 1) % 2]
        now.frames += 1
        _choose_symbols(row, symbols, now)
        _keep(row, beam, after, trie, candidates, now)
        if now.growing > 0:
            for i in range(now.size):
                _extend(i, row, beam, tree, lm, trie, candidates, symbols, now)
        _select(candidates, now)
        _advance(beam, after, trie, table, candidates, now)
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
    """log(exp(a) + exp(b))."""
    if a < b:
        a, b = b, a
    if b <= a - 40.0:  # below the precision of a, or log 0
        return a
    return a + math.log1p(math.exp(b - a))


@_inline
def _choose_symbols(row: _Array, symbols: _Array, now: _Record) -> None:
    """Select the symbols of a frame by which prefixes may be extended."""
    count, kept, top, values = 0, 0, NONE, np.empty(len(row))
    for symbol in range(len(row)):
        symbols[symbol].grows = symbol != now.blank and row[symbol] > NONE
        if symbols[symbol].grows:
            symbols[count].growing, values[count] = symbol, row[symbol]
            count += 1
            top = max(top, row[symbol])
    if count > now.symbols:
        cut = np.partition(values[:count], count - now.symbols)[count - now.symbols]
        for k in range(count):
            symbol = symbols[k].growing
            symbols[symbol].grows = row[symbol] >= cut
            symbols[kept].growing = symbol
            kept += symbols[symbol].grows
        count = kept
    now.growing, now.top = count, top


@_inline
def _keep(
    row: _Array, beam: _Array, after: _Array, trie: _Array, candidates: _Array, now: _Record
) -> None:
    """Make the candidates of prefixes that are in the beam already.

    Their log-probabilities are written to `after`, in the order of the beam.
    """
    for i in range(now.size):
        beam[i].child = -1
    best, worst = NONE, math.inf
    for i in range(now.size):
        kept, prefix = beam[i], trie[beam[i].node]
        blank, symbol = kept.total + row[now.blank], NONE
        last = prefix.symbol
        if last >= 0:
            symbol = (kept.total if last == now.space else kept.symbol) + row[last]
        if kept.node > 0:
            parent = trie[prefix.parent]
            j = parent.active - 1
            if j >= 0:
                before = beam[j]
                kept.sibling, before.child = before.child, i
                paths = before.blank if parent.symbol == last else before.total
                symbol = _add(symbol, paths + row[last])
        total = _add(blank, symbol)
        after[i].blank, after[i].symbol = blank, symbol
        key = total + prefix.fixed + prefix.ahead
        candidate = candidates[i]
        candidate.key, candidate.total = key, total
        candidate.source, candidate.symbol = i, -1
        best, worst = max(best, key), min(worst, key)
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
    """Make the candidates that extend prefix `i` of the beam."""
    prefix, total = trie[beam[i].node], beam[i].total
    best = total + prefix.fixed + prefix.ahead + max(now.bonus, 0.0) + now.top
    if best <= now.floor:  # none can be good enough
        return
    now.clock += 1
    j = beam[i].child
    while j >= 0:
        symbols[trie[beam[j].node].symbol].in_beam = now.clock
        j = beam[j].sibling
    word = tree[prefix.place].word
    ends = word >= 0
    if ends and math.isnan(prefix.ended):
        _end_word(prefix, word, lm, now)
    for behind in range(1 + (ends and now.joined)):
        _grow_word(i, behind == 1, row, beam, tree, lm, trie, candidates, symbols, now)
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
    """Make the candidates of the tree's next symbols; with `behind` these begin a new word."""
    prefix = trie[beam[i].node]
    place, fixed, state = prefix.place, prefix.fixed, prefix.state
    bound = prefix.ahead  # look-ahead scores never rise within a word
    if behind:
        place, fixed, state, bound = ROOT, prefix.ended, prefix.end_state, 0.0
    total, blank, last = beam[i].total, beam[i].blank, prefix.symbol
    low, high = tree[place].first, tree[place].last
    by_symbol = high - low > 2 * now.growing
    for k in range(now.growing if by_symbol else high - low):
        child = low + k
        if by_symbol:
            child = _find_child(tree, low, high, symbols[k].growing)
            if child < 0:
                continue
        symbol = tree[child].symbol
        paths = (blank if symbol == last else total) + row[symbol]
        key, ahead = paths + fixed + bound, 0.0
        if key <= now.floor or not _may_grow(symbol, symbols, now):
            continue
        if now.mode == FORECAST:
            probability = mass(lm, state, tree[child].low, tree[child].high)
            ahead = now.weight * math.log(max(probability, 1e-99))
            key = paths + fixed + ahead
        _offer(i, symbol, ~child if behind else child, paths, key, ahead, candidates, now)


@_inline
def _find_child(tree: _Array, low: int, high: int, symbol: int) -> int:
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
    """Compute the score and n-gram state after the word that ends in a prefix."""
    logprob, state = 0.0, 0
    if now.mode != NO_LM:
        logprob, state = step(lm, prefix.state, word)
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
    """Add a candidate if its key is above the floor; if the array is full, prune it first."""
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
    """Keep the best `width` candidates in their order; ties go to earlier ones."""
    if now.candidates <= now.width:
        return
    keys = candidates[: now.candidates].key
    cut = np.partition(keys, len(keys) - now.width)[len(keys) - now.width]
    kept, equal = 0, now.width - (keys > cut).sum()
    for k in range(len(keys)):
        if keys[k] == cut:
            equal -= 1
        if keys[k] > cut or (keys[k] == cut and equal >= 0):
            candidates[kept] = candidates[k]
            kept += 1
    now.candidates, now.floor = kept, max(now.floor, cut)


@_inline
def _advance(
    beam: _Array, after: _Array, trie: _Array, table: _Array, candidates: _Array, now: _Record
) -> None:
    """Make the next beam from the selected candidates.

    Kept prefixes come first among the candidates, in the order of the beam, so that their
    log-probabilities in `after` are only ever moved towards the front.
    """
    for i in range(now.size):
        trie[beam[i].node].active = 0
    size = 0
    for k in range(now.candidates):
        chosen = candidates[k]
        if chosen.key < now.floor or chosen.key == NONE:
            continue
        node, new = beam[chosen.source].node, after[size]
        if chosen.symbol < 0:
            new.blank, new.symbol = after[chosen.source].blank, after[chosen.source].symbol
        else:
            node = _find_prefix(node, chosen, trie, table, now)
            new.blank, new.symbol = NONE, chosen.total
        new.node, new.total = node, chosen.total
        size += 1
        trie[node].active = size
    now.size = size


@_inline
def _find_prefix(parent: int, chosen: _Record, trie: _Array, table: _Array, now: _Record) -> int:
    """Return the node of an extended prefix, a new one if there was none."""
    mask = len(table) - 1
    slot = first_slot(parent, chosen.symbol, mask)
    while table[slot] > 0:
        node = table[slot]
        if trie[node].parent == parent and trie[node].symbol == chosen.symbol:
            return node
        slot = (slot + 1) & mask
    node = np.int32(now.nodes)
    now.nodes += 1
    table[slot] = node
    before, prefix = trie[parent], trie[node]
    prefix.parent, prefix.symbol = parent, chosen.symbol
    ends = chosen.place < 0
    prefix.place = ~chosen.place if ends else chosen.place
    prefix.state = before.end_state if ends else before.state
    prefix.fixed = before.ended if ends else before.fixed
    prefix.ahead, prefix.ended = chosen.ahead, math.nan
    return node


@njit(cache=True, nogil=True)
def step(lm: _Lm, state: int, word: int) -> tuple[float, int]:
    """Return the log-probability of a dictionary word in a state, and the state after it."""
    words = lm[2]
    name = words[word].name
    logprob, after = _step(lm[0], lm[1], state, name)
    if name != word:
        logprob += math.log(words[word + 1].unknown - words[word].unknown)
    return logprob, after


@njit(nogil=True)
def _step(contexts: _Array, ngrams: _Array, state: int, word: int) -> tuple[float, int]:
    backed = 0.0
    while state > 0:
        entry = _lower_bound(contexts, ngrams, state, word)
        if entry < contexts[state + 1].first and ngrams[entry].word == word:
            return backed + ngrams[entry].logprob, ngrams[entry].target
        backed += contexts[state].backoff
        state = contexts[state].below
    return backed + ngrams[word].logprob, ngrams[word].target


@njit(cache=True, nogil=True)
def mass(lm: _Lm, state: int, first: int, last: int) -> float:
    """Return the probability that the next word is one of first ... last - 1 of the dictionary.

    It is exact, at the cost of two binary searches per order: the back-off probability of the words
    without an n-gram in a state is found from cumulative sums.
    """
    contexts, ngrams, words = lm
    total, factor, begin = 0.0, 1.0, state
    while state > 0:
        low = _lower_bound(contexts, ngrams, state, first)
        high = _lower_bound(contexts, ngrams, state, last)
        weight = math.exp(contexts[state].backoff)
        if low < high:
            own, lower = ngrams[high - 1].sum, ngrams[high - 1].lower
            if low > contexts[state].first:
                own, lower = own - ngrams[low - 1].sum, lower - ngrams[low - 1].lower
            total += factor * (own - weight * lower)
        factor *= weight
        state = contexts[state].below
    if first < last:
        total += factor * (ngrams[last - 1].sum - (ngrams[first - 1].sum if first > 0 else 0.0))
    share = words[last].unknown - words[first].unknown
    if share > 0:
        total += share * math.exp(_step(contexts, ngrams, begin, len(words) - 1)[0])
    return total


@njit(nogil=True)
def _lower_bound(contexts: _Array, ngrams: _Array, state: int, word: int) -> int:
    """Return the first n-gram of a state whose word number is at least `word`."""
    low, high = contexts[state].first, contexts[state + 1].first
    while low < high:
        middle = (low + high) // 2
        if ngrams[middle].word < word:
            low = middle + 1
        else:
            high = middle
    return low
