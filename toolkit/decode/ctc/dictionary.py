"""The dictionary of a CTC decoder, as a prefix tree over the model's output symbols (A21)."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numba import njit

from toolkit.decode.ctc.arrays import NODE
from toolkit.decode.ctc.decoder import CtcDecodeError
from toolkit.errors import ToolkitError
from toolkit.lang.units.units import Units


@dataclass(frozen=True)
class Tree:
    """A prefix tree of words.

    Words are numbered in the order of their symbols, so that the words below a node are an
    interval.
    """

    nodes: np.ndarray
    """[N] NODE: the root first; the children of a node are adjacent."""
    letters: np.ndarray
    """The concatenated symbols of all words, int32."""
    begin: np.ndarray
    """[W + 1] int32: where each word begins in `letters`."""
    between: tuple[int, ...]
    """The symbols that separate words; any number of them may begin or end a text."""

    @property
    def joined(self) -> bool:
        """Whether words follow each other without a symbol between them."""
        return not self.between


@dataclass(frozen=True)
class Dictionary:
    """Words and their tree."""

    words: tuple[str, ...]
    """By number."""
    tree: Tree
    """Their spellings."""
    unwritable: tuple[str, ...] = ()
    """Words left out because the units cannot write them."""

    @classmethod
    def of(cls, words: Collection[str], units: Units, between: str = " ") -> "Dictionary":
        """Spell words in a model's output units.

        Characters: words have the separator between equal letters, as in training texts (A16).
        Pieces: each word is segmented as the units do it. Of words with the same symbols, which
        decoding cannot tell apart, the alphabetically first is kept.

        Args:
          words: the dictionary, such as the training words.
          units: those of the model.
          between: the characters that may stand between words (Scheidl's non-word characters).
            If the units have none of them, as word pieces, words follow each other directly.

        Raises:
          CtcDecodeError: no word can be written, a word contains a character of `between`, or
            word boundaries are ambiguous in units without such a character.
        """
        spelt: list[tuple[tuple[int, ...], str]] = []
        unwritable = []
        for word in sorted(set(words)):
            try:
                symbols = tuple(units.encode(word))
            except ToolkitError:
                symbols = ()
            if symbols:
                spelt.append((symbols, word))
            else:
                unwritable.append(word)
        spelt.sort()
        kept = [
            entry for entry, last in zip(spelt, [None, *spelt], strict=False)
            if last is None or entry[0] != last[0]
        ]  # fmt: skip
        if not kept:
            raise CtcDecodeError(
                f"the output units can write none of the dictionary's {len(unwritable)} words"
            )
        apart = [i for i, symbol in enumerate(units.symbols) if symbol in between]
        for symbols, word in kept:
            if not set(symbols).isdisjoint(apart):
                raise CtcDecodeError(f"the word {word!r} contains a character that separates words")
        if not apart:
            inner = {symbol for symbols, _ in kept for symbol in symbols[1:]}
            both = sorted({symbols[0] for symbols, _ in kept} & inner)
            if both:
                raise CtcDecodeError(
                    f"the unit {units.symbols[both[0]]!r} occurs both at the beginning of words and"
                    " inside words: without a separator, word boundaries are ambiguous"
                )
        tree = _tree([symbols for symbols, _ in kept], apart)
        return cls(tuple(word for _, word in kept), tree, tuple(unwritable))

    @classmethod
    def free(cls, units: Units) -> "Dictionary":
        """Return a dictionary without words: any symbol may follow any other."""
        symbols = [i for i in range(units.size) if i != units.blank]
        return cls((), _tree([], symbols))


def _tree(words: list[tuple[int, ...]], between: list[int]) -> Tree:
    begin = np.cumsum([0, *map(len, words)]).astype(np.int32)
    letters = np.array([symbol for word in words for symbol in word], dtype=np.int32)
    nodes = np.zeros(len(letters) + 1, NODE)
    count = _grow(letters, begin, nodes)
    return Tree(
        nodes=nodes[:count].copy(),
        letters=letters,
        begin=begin,
        between=tuple(between),
    )


@njit(cache=True)
def _grow(letters: np.ndarray, begin: np.ndarray, nodes: np.ndarray) -> int:
    """Fill in the nodes of the tree of sorted words; related nodes are close in memory.

    Returns:
      The number of nodes.
    """
    nodes[0].symbol, nodes[0].high = -1, len(begin) - 1
    waiting = [0]
    count = 1
    while len(waiting) > 0:
        node = waiting.pop()
        depth, low, high = nodes[node].depth, nodes[node].low, nodes[node].high
        word = low if low < high and begin[low + 1] - begin[low] == depth else -1
        nodes[node].word, nodes[node].first = word, count
        following = low + (word >= 0)
        while following < high:
            symbol = letters[begin[following] + depth]
            nodes[count].symbol, nodes[count].depth = symbol, depth + 1
            nodes[count].low = following
            while following < high and letters[begin[following] + depth] == symbol:
                following += 1
            nodes[count].high = following
            count += 1
        nodes[node].last = count
        for child in range(count - 1, nodes[node].first - 1, -1):
            waiting.append(child)
    return count
