"""Makes and loads the output units of CTC models, characters or word pieces."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from toolkit.lang.units.characters import Characters
from toolkit.lang.units.pieces import load_pieces, train_pieces
from toolkit.lang.units.units import UNITS, Units, UnitsError
from toolkit.storage.reading import read_json, reading


@dataclass(frozen=True)
class UnitsConfig:
    """The output units of a CTC model."""

    kind: Literal["characters", "bpe", "unigram"] = "characters"
    """`characters` (A16: 30 with the separator and blank), or word pieces that sentencepiece learns
    from the training transcripts: `bpe` (byte-pair encoding) or `unigram`."""
    pieces: int = 500
    """Number of word pieces to learn, without blank; not used with `characters`."""

    def __post_init__(self) -> None:
        if self.kind not in ("characters", "bpe", "unigram"):
            raise ValueError(f"kind is {self.kind!r}, not one of characters, bpe, unigram")
        if self.pieces < 1:
            raise ValueError(f"pieces is {self.pieces}, needs to be at least 1")


def make_units(config: UnitsConfig, texts: Iterable[str]) -> Units:
    """Make units from the training transcripts (which characters do not need).

    Raises:
      UnitsError: the transcripts are too few for so many pieces.
    """
    if config.kind == "characters":
        return Characters()
    return train_pieces(config.kind, config.pieces, texts)


def load_units(folder: Path) -> Units:
    """Read units that were saved to a folder.

    Raises:
      UnitsError: there are no units, or their files do not belong together.
    """
    path = Path(folder) / UNITS
    with reading(path, UnitsError, "make the units again", "not a file of output units"):
        plain = read_json(path, {"kind": str, "symbols": [str]})
        kind, symbols = UnitsConfig(plain["kind"]).kind, plain["symbols"]
    if kind == Characters.kind:
        units: Units = Characters()
    else:
        units = load_pieces(Path(folder), kind)
    if units.symbols != symbols:
        raise UnitsError(f"{path}: lists other symbols than its units have; make the units again")
    return units
