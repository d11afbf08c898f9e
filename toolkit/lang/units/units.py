"""What every set of output units of a CTC model has, and the file that lists its symbols."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from toolkit.errors import ToolkitError
from toolkit.storage.files import write_atomically

BLANK = "<blank>"
UNITS = "units.json"


class UnitsError(ToolkitError):
    """Text that the units cannot write, or units that cannot be made or read."""


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
