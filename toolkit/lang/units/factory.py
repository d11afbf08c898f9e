"""Makes and loads the output units of CTC models, characters or word pieces."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from toolkit.lang.letters import UnknownNormaliserError
from toolkit.lang.policy import TextPolicy
from toolkit.lang.units.characters import SEPARATOR, Characters
from toolkit.lang.units.pieces import MODEL, read_pieces, train_pieces
from toolkit.lang.units.units import UNITS, Units, UnitsError
from toolkit.storage.reading import read_json, reading, validated


@dataclass(frozen=True)
class UnitsConfig:
    """The output units of a CTC model."""

    kind: Literal["characters", "bpe", "unigram", "sentencepiece"] = "characters"
    """`characters` (A16: 30 with the separator and blank; of a language with other letters those of
    the training transcripts), or word pieces that sentencepiece learns from these: `bpe` (byte-pair
    encoding) or `unigram`; or those of `model`."""
    pieces: int = 500
    """Number of word pieces to learn, without blank; for `bpe` and `unigram`."""
    model: Path | None = None
    """The sentencepiece model of the kind `sentencepiece`, from elsewhere, used as it is."""

    def __post_init__(self) -> None:
        kinds = ("characters", "bpe", "unigram", "sentencepiece")
        if self.kind not in kinds:
            raise ValueError(f"kind is {self.kind!r}, not one of {', '.join(kinds)}")
        if (self.kind == "sentencepiece") != (self.model is not None):
            raise ValueError("the kind sentencepiece needs a model, and other kinds take none")
        if self.pieces < 1:
            raise ValueError(f"pieces is {self.pieces}, needs to be at least 1")


def make_units(
    config: UnitsConfig, texts: Iterable[str], policy: TextPolicy | None = None
) -> Units:
    """Make units from the training transcripts, written by a policy.

    Raises:
      UnitsError: the transcripts are too few for so many pieces; a model that cannot be read.
    """
    if config.model is not None:
        return read_pieces(config.model, config.kind, policy)
    if config.kind == "characters":
        return Characters.of_texts(texts, policy)
    return train_pieces(config.kind, config.pieces, texts, policy)


def load_units(folder: Path) -> Units:
    """Read units that were saved to a folder.

    Raises:
      UnitsError: there are no units, or their files do not belong together.
    """
    path = Path(folder) / UNITS
    with reading(path, UnitsError, "make the units again", "not a file of output units"):
        plain = read_json(path, {"kind": str, "symbols": [str]})
        kind, symbols = plain["kind"], plain["symbols"]
        policy = _policy(plain.get("policy"))
    if kind == Characters.kind:
        try:
            named = policy is not None and len(symbols) > 2 and len(symbols[-2]) == 1
            separator = symbols[-2] if named else SEPARATOR
            units: Units = Characters(symbols[1:-2], policy, separator)
        except UnitsError as error:
            raise UnitsError(f"{path}: {error}; make the units again") from error
    else:
        units = read_pieces(Path(folder) / MODEL, kind, policy)
    if units.symbols != symbols:
        raise UnitsError(f"{path}: lists other symbols than its units have; make the units again")
    return units


def _policy(plain: object) -> TextPolicy | None:
    """Read the policy in a file of units; None: it has none.

    Raises:
      ValueError: it is not a policy of this version.
    """
    if plain is None:
        return None
    named = validated(plain, {"id": str}, "the policy")
    tags = named.get("tags")
    if tags not in (None, "drop", "noise", "keep"):
        raise ValueError(f"the policy's 'tags' is {tags!r}")
    try:
        return TextPolicy(named["id"], tags)
    except UnknownNormaliserError as error:
        raise ValueError(str(error)) from error
