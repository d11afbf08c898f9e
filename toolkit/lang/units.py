"""Output units of CTC models: what a network's columns stand for."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from typing import Literal, Protocol

from toolkit.errors import ToolkitError
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_json, reading

BLANK = "<blank>"
SPACE = " "
SEPARATOR = "_"
UNITS = "units.json"


class UnitsError(ToolkitError):
    """Text that the units cannot write, or units that cannot be made or read."""


@dataclass(frozen=True)
class UnitsConfig:
    """Which units a CTC model writes in."""

    kind: Literal["characters", "bpe", "unigram"] = "characters"
    """`characters` (A16: 30 with the separator and blank), or pieces of words learnt from the
    training transcripts by sentencepiece: `bpe` (byte-pair encoding) or `unigram`."""
    pieces: int = 500
    """Pieces to learn, blank not counted; characters have no choice."""

    def __post_init__(self) -> None:
        if self.kind not in ("characters", "bpe", "unigram"):
            raise ValueError(f"kind is {self.kind!r}, not one of characters, bpe, unigram")
        if self.pieces < 1:
            raise ValueError(f"pieces is {self.pieces}, needs to be at least 1")


class Units(Protocol):
    """The columns of a CTC model's output."""

    kind: str
    """As in `UnitsConfig`."""
    symbols: list[str]
    """What each column stands for, blank included."""
    size: int
    """C, the number of columns, blank included."""
    blank: int
    """The column of CTC's blank, the last."""

    def encode(self, text: str) -> list[int]:
        """Write words, in upper or lower case, as labels.

        Raises:
          UnitsError: a character is no part of the units.
        """

    def decode(self, ids: Sequence[int]) -> str:
        """Read labels, after CTC's collapse, as words in upper case parted by single spaces.

        Raises:
          UnitsError: an id that is no label.
        """

    def save(self, folder: Path) -> None:
        """Write what `load_units` reads."""


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
    """The separator's column."""
    space = symbols.index(SPACE)
    """The space's column, the only one outside words."""
    _ids = {symbol: i for i, symbol in enumerate(symbols[:separator])}  # noqa: RUF012

    def encode(self, text: str) -> list[int]:
        """See `Units`."""
        ids: list[int] = []
        for character in " ".join(text.lower().split()):
            index = self._ids.get(character)
            if index is None:
                raise UnitsError(
                    f"{character!r} cannot be written in letters, space and apostrophe; "
                    "normalise the transcript"
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


def make_units(config: UnitsConfig, texts: Iterable[str]) -> Units:
    """Make units from the training transcripts (which characters do not look at).

    Raises:
      UnitsError: the transcripts are too few for so many pieces.
    """
    if config.kind == "characters":
        return Characters()
    from toolkit.lang.pieces import train_pieces

    return train_pieces(config.kind, config.pieces, texts)


def load_units(folder: Path) -> Units:
    """Read units that were saved to a folder.

    Raises:
      UnitsError: there are none, or files that do not belong together.
    """
    path = Path(folder) / UNITS
    with reading(path, UnitsError, "make the units again", "not a file of output units"):
        plain = read_json(path, {"kind": str, "symbols": [str]})
        kind, symbols = UnitsConfig(plain["kind"]).kind, plain["symbols"]
    if kind == Characters.kind:
        units: Units = Characters()
    else:
        from toolkit.lang.pieces import load_pieces

        units = load_pieces(Path(folder), kind)
    if units.symbols != symbols:
        raise UnitsError(f"{path}: lists other symbols than its units have; make the units again")
    return units


def write_symbols(units: Units, folder: Path) -> None:
    """Write `units.json`, the last file of units."""
    plain = {"kind": units.kind, "symbols": units.symbols}
    write_atomically(Path(folder) / UNITS, json.dumps(plain, ensure_ascii=False, indent=1) + "\n")


def check_labels(ids: Sequence[int], blank: int) -> list[int]:
    """Give ids as plain integers.

    Raises:
      UnitsError: one is not among 0 ... blank - 1.
    """
    labels = [int(i) for i in ids]
    for label in labels:
        if not 0 <= label < blank:
            raise UnitsError(f"{label} is no label, those are 0 to {blank - 1} (blank: {blank})")
    return labels
