"""Characters as output units of CTC models (A16)."""

from collections.abc import Sequence
from pathlib import Path
from string import ascii_lowercase

from toolkit.lang.units.units import BLANK, UnitsError, check_labels, write_symbols

SPACE = " "
SEPARATOR = "_"


class Characters:
    """Space, a to z, apostrophe, separator, blank, in this order (A16).

    The separator stands between two equal letters ("co_ol"), so that no label ever follows itself
    and a network need not learn to put a blank there.
    """

    kind = "characters"
    symbols = [SPACE, *ascii_lowercase, "'", SEPARATOR, BLANK]  # noqa: RUF012 - never changed
    size = len(symbols)
    blank = size - 1
    separator = symbols.index(SEPARATOR)
    """Index of the separator."""
    space = symbols.index(SPACE)
    """Index of the space, the only symbol outside words."""
    _ids = {symbol: i for i, symbol in enumerate(symbols[:separator])}  # noqa: RUF012

    def encode(self, text: str) -> list[int]:
        """See `Units`."""
        ids: list[int] = []
        for character in " ".join(text.lower().split()):
            index = self._ids.get(character)
            if index is None:
                raise UnitsError(
                    f"{character!r} cannot be written in letters, space and apostrophe; "
                    "normalise the transcript, or choose word pieces (units.kind=bpe), which are "
                    "learnt from transcripts in any alphabet"
                )
            if ids and index == ids[-1]:
                ids.append(self.separator)
            ids.append(index)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """See `Units`."""
        ids = check_labels(ids, self.blank)
        text = "".join(self.symbols[i] for i in ids if i != self.separator)
        return " ".join(text.upper().split())

    def save(self, folder: Path) -> None:
        """See `Units`."""
        write_symbols(self, folder)
