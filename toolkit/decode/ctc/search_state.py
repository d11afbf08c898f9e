"""The state of a CTC beam search between the frames of an utterance."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit

from toolkit.decode.ctc import arrays
from toolkit.decode.ctc.arrays import SYMBOL, first_slot


@dataclass
class SearchState:
    """What the compiled search reads and writes; see `toolkit.decode.ctc.arrays`."""

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
        """Return the state before the first frame.

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
            (arrays.beam(width), arrays.beam(width)),
            arrays.prefixes(most, *begin),
            arrays.hash_table(most),
            arrays.candidates(width),
        )

    @property
    def beam(self) -> np.ndarray:
        """The beam after the last frame: BEAM of each prefix in it."""
        if not self.settings["nodes"][0]:
            return self.beams[0][:1]
        return self.beams[self.settings["frames"][0] % 2][: self.settings["size"][0]]

    def symbols(self, columns: int) -> np.ndarray:
        """Return the marks of the C symbols."""
        if self.marks is None:
            self.marks = np.zeros(columns, SYMBOL)
            self.marks["between"][: len(self.between)] = self.between
        return self.marks

    def reserve(self, frames: int) -> None:
        """Make room for the prefixes of so many more frames; it at least doubles."""
        used = max(1, int(self.settings["nodes"][0]))
        needed = used + frames * len(self.beams[0])
        if needed <= len(self.trie):
            return
        most = max(needed, 2 * len(self.trie))
        trie = np.zeros(most, self.trie.dtype)
        trie[:used] = self.trie[:used]
        self.trie, self.table = trie, arrays.hash_table(most)
        _enter(self.trie, used, self.table)


@njit(cache=True)
def _enter(trie: np.ndarray, count: int, table: np.ndarray) -> None:
    """Enter the first `count` prefixes of a trie, without the empty one, into a new hash table."""
    mask = len(table) - 1
    for node in range(1, count):
        slot = first_slot(trie[node].parent, trie[node].symbol, mask)
        while table[slot] > 0:
            slot = (slot + 1) & mask
        table[slot] = node
