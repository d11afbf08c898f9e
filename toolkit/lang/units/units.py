"""The interface of output units of CTC models, and the file that lists their symbols."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from toolkit.errors import ToolkitError
from toolkit.lang.policy import TextPolicy
from toolkit.storage.files import write_atomically

BLANK = "<blank>"
UNITS = "units.json"


class UnitsError(ToolkitError):
    """Text that the units cannot encode, or units that cannot be made or read."""


class Units(Protocol):
    """Output units: the meaning of the columns of a CTC model's output."""

    kind: str
    """As in `UnitsConfig`."""
    symbols: list[str]
    """The symbol of each column, blank included."""
    size: int
    """C, the number of columns, blank included."""
    blank: int
    """Index of CTC's blank, the last."""
    policy: TextPolicy | None
    """How text becomes words; None: not recorded, letters in upper case."""

    def encode(self, text: str) -> list[int]:
        """Encode words as labels; in upper or lower case, unless the policy is as-given.

        Raises:
          UnitsError: a character is not among the units.
        """

    def decode(self, ids: Sequence[int]) -> str:
        """Decode labels, collapsed as in CTC, to words separated by single spaces, in upper
        case unless the policy is as-given.

        Raises:
          UnitsError: an id is not a label.
        """

    def save(self, folder: Path) -> None:
        """Write what `load_units` reads."""


def write_symbols(units: Units, folder: Path) -> None:
    """Write `units.json`, after all other files of the units."""
    plain: dict[str, object] = {"kind": units.kind, "symbols": units.symbols}
    if units.policy is not None:
        plain["policy"] = {"id": units.policy.id, "tags": units.policy.tags}
    write_atomically(Path(folder) / UNITS, json.dumps(plain, ensure_ascii=False, indent=1) + "\n")


def check_labels(ids: Sequence[int], blank: int) -> list[int]:
    """Return ids as plain integers.

    Raises:
      UnitsError: one is not from 0 to blank - 1.
    """
    labels = [int(i) for i in ids]
    for label in labels:
        if not 0 <= label < blank:
            raise UnitsError(f"{label} is not a label; those are 0 to {blank - 1} (blank: {blank})")
    return labels
