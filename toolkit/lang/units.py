"""Output units of CTC models: characters (A16) or sentencepiece word pieces."""

import io
import json
import re
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase
from typing import Protocol

import sentencepiece

from toolkit.errors import ToolkitError
from toolkit.lang.config import UnitsConfig
from toolkit.lang.text_policy import AS_GIVEN, TextPolicy, UnknownPolicyError, fold_case
from toolkit.storage.files import write_atomically
from toolkit.storage.lines import WHITE_SPACE, split_words
from toolkit.storage.reading import read_json, reading, validated

BLANK = "<blank>"
UNITS = "units.json"


class UnitsError(ToolkitError):
    """Raised for text that units cannot encode, or units that cannot be made or read."""


class Units(Protocol):
    """Output units: the meaning of each output column of a CTC model."""

    kind: str
    """See `UnitsConfig.kind`."""
    symbols: list[str]
    """The symbol of each column, blank included."""
    size: int
    """C, the number of columns, blank included."""
    blank: int
    """Index of CTC's blank, the last column."""
    policy: TextPolicy | None
    """How text becomes words; None: not recorded, and text is taken in upper case."""

    def encode(self, text: str) -> list[int]:
        """Encode words as labels; case is ignored unless the policy is as-given.

        Raises:
          UnitsError: a character is not among the units.
        """

    def decode(self, ids: Sequence[int]) -> str:
        """Decode labels, already collapsed as in CTC, to words separated by single spaces.

        The words are in upper case unless the policy is as-given.

        Raises:
          UnitsError: an id is not a label.
        """

    def save(self, folder: Path) -> None:
        """Write the files that `load_units` reads."""


def write_symbols(units: Units, folder: Path) -> None:
    """Write `units.json` last, after all other files of the units."""
    description: dict[str, object] = {"kind": units.kind, "symbols": units.symbols}
    if units.policy is not None:
        description["policy"] = {"id": units.policy.id, "tags": units.policy.tags}
    write_atomically(
        Path(folder) / UNITS, json.dumps(description, ensure_ascii=False, indent=1) + "\n"
    )


def check_labels(ids: Sequence[int], blank: int) -> list[int]:
    """Return ids as Python integers, after checking their range.

    Raises:
      UnitsError: an id is not from 0 to blank - 1.
    """
    labels = [int(i) for i in ids]
    for label in labels:
        if not 0 <= label < blank:
            raise UnitsError(
                f"{label} is not a label: labels are 0 to {blank - 1}, and {blank} is the blank"
            )
    return labels


SPACE = " "
SEPARATOR = "_"
MORE_SEPARATORS = tuple(map(chr, range(0x2400, 0x2427)))
"""Separators to use instead of `SEPARATOR` where texts contain it: Unicode's control pictures."""
ENGLISH = (*ascii_lowercase, "'")


class Characters:
    """Characters as units: space, letters, separator and blank, in this order.

    By default the letters are a to z and the apostrophe (A16). The separator stands between two
    equal letters ("co_ol"), so that no label ever follows itself and a network need not learn to
    put a blank there.

    Args:
      letters: letters in upper or lower case; for other languages than English see `of_texts`.
      policy: how text becomes words; with as-given the letters keep their case.
      separator: the symbol to put between two equal letters.

    Raises:
      UnitsError: a letter is not one character, occurs twice, or is white space or the separator.
    """

    kind = "characters"

    def __init__(
        self,
        letters: Iterable[str] = ENGLISH,
        policy: TextPolicy | None = None,
        separator: str = SEPARATOR,
    ) -> None:
        self.policy = policy
        self._as_given = policy is not None and policy.id == AS_GIVEN
        self._capitals = [SPACE, *map(self._folded, letters), separator]
        small = self._capitals if self._as_given else map(_small_letter, self._capitals)
        self.symbols = [*small, BLANK]
        self.size = len(self.symbols)
        self.blank = self.size - 1
        self.separator = self.blank - 1
        """Index of the separator."""
        self.space = 0
        """Index of the space, the only symbol outside words."""
        # Space 0, letters, separator, blank; only space and letters encode text.
        self._ids = {capital: i for i, capital in enumerate(self._capitals[: self.separator])}
        for letter in self._capitals[1 : self.separator]:
            is_space = letter in WHITE_SPACE if self._as_given else letter.isspace()
            if len(letter) != 1 or is_space or letter == separator:
                raise UnitsError(f"{letter!r} cannot be a letter of the units")
        if len(self._ids) < self.separator:
            raise UnitsError("a letter occurs twice among the units")

    @classmethod
    def of_texts(cls, texts: Iterable[str], policy: TextPolicy | None = None) -> "Characters":
        """Return English's 30 symbols (A16), or the texts' own letters if they have others.

        With as-given, letters keep their case. If a text contains the usual separator, another
        character is the separator.
        """
        if policy is not None and policy.id == AS_GIVEN:
            letters = {letter for text in texts for letter in "".join(split_words(text))}
            separator = next(s for s in (SEPARATOR, *MORE_SEPARATORS) if s not in letters)
            return cls(sorted(letters), policy, separator)
        letters = {_capital(letter) for text in texts for letter in "".join(text.split())}
        if letters <= set(map(_capital, ENGLISH)):
            return cls(policy=policy)
        return cls(sorted(letters), policy)

    def _folded(self, letter: str) -> str:
        """Convert a letter to the case of the units."""
        return letter if self._as_given else _capital(letter)

    def encode(self, text: str) -> list[int]:
        """Encode words as labels of characters: 0 is the space, the letters follow."""
        ids: list[int] = []
        words = split_words(text) if self._as_given else text.split()
        for character in " ".join(words):
            index = self._ids.get(self._folded(character))
            if index is None:
                raise UnitsError(
                    f"{character!r} is not among the {self.separator - 1} letters of the units; "
                    "normalise the transcript, or choose word pieces (`units.kind=bpe`)"
                )
            # CTC merges repeated labels, so the separator goes between them.
            if ids and index == ids[-1]:
                ids.append(self.separator)
            ids.append(index)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Decode labels of characters to words."""
        ids = check_labels(ids, self.blank)
        text = "".join(self._capitals[i] for i in ids if i != self.separator)
        return " ".join(split_words(text) if self._as_given else text.split())

    def save(self, folder: Path) -> None:
        """Write the files that `load_units` reads."""
        write_symbols(self, folder)


@lru_cache(4096)
def _capital(letter: str) -> str:
    """Return a letter's capital, or the letter if its capital has several characters ("ß")."""
    capital = fold_case(letter)
    return capital if len(capital) == 1 else letter


def _small_letter(capital: str) -> str:
    """Return a capital's small letter, if it is one character with this capital."""
    small = capital.lower()
    return small if len(small) == 1 and _capital(small) == capital else capital


MODEL = "pieces.model"
# Sentencepiece needs a symbol for text that it cannot encode. Such text is an error here, so the
# symbol is not an output unit.
UNKNOWN = 0
FOREIGN = "sentencepiece"
SHOWN = 10  # characters in an error
LATIN_LETTERS = f"{ascii_uppercase}'"
"""Letters that are always pieces if the transcripts have letters A to Z, for words outside them."""

_BRACKETS = re.compile(r"<.+>|\[.+\]")


class Pieces:
    """Word pieces as units; word-initial pieces start with U+2581, blank is the last column.

    The model's symbols for unknown text and sentence boundaries are not units. A model whose pieces
    have small letters gets text in lower case, any other model in upper case. Symbols in brackets,
    such as icefall's <blk> and <sos/eos>, and bytes such as <0x6a> are ignored for this decision.

    Args:
      kind: `bpe`, `unigram`, or `sentencepiece` for an existing model.
      model: the serialised sentencepiece model.
      policy: how text becomes words; with as-given text keeps its case.
    """

    def __init__(self, kind: str, model: bytes, policy: TextPolicy | None = None) -> None:
        self.kind = kind
        self.policy = policy
        self._as_given = policy is not None and policy.id == AS_GIVEN
        self._model = model
        processor = self._processor
        # Labels number the pieces without the special symbols; blank follows as the last.
        is_special = (processor.is_unknown, processor.is_control, processor.is_unused)
        self._ids = [i for i in range(len(processor)) if not any(test(i) for test in is_special)]
        self._labels = {number: label for label, number in enumerate(self._ids)}
        self.symbols = [*map(processor.id_to_piece, self._ids), BLANK]
        self._small = any(s.islower() for s in self.symbols[:-1] if not _BRACKETS.fullmatch(s))
        self.size = len(self.symbols)
        self.blank = self.size - 1

    @cached_property
    def _processor(self) -> sentencepiece.SentencePieceProcessor:
        """The sentencepiece processor."""
        return sentencepiece.SentencePieceProcessor(model_proto=self._model)

    def encode(self, text: str) -> list[int]:
        """Encode words as labels of word pieces."""
        folded = _unit_text(text, self.policy)
        if self._small and not self._as_given:
            folded = folded.lower()
        ids = self._processor.encode(folded)
        if not self._labels.keys() >= {*ids}:
            unknown = [c for c in dict.fromkeys(folded) if self._lacks(c)]
            raise UnitsError(
                f"{''.join(unknown[:SHOWN])!r} cannot be written with the word pieces of the "
                f"{'model' if self.kind == FOREIGN else 'training transcripts'}; normalise the "
                "transcript"
            )
        return [self._labels[i] for i in ids]

    def _lacks(self, character: str) -> bool:
        """Whether the units cannot encode a character."""
        return not self._labels.keys() >= {*self._processor.encode(character)}

    def decode(self, ids: Sequence[int]) -> str:
        """Decode labels of word pieces to words."""
        text = self._processor.decode([self._ids[i] for i in check_labels(ids, self.blank)])
        return _unit_text(text, self.policy)

    def save(self, folder: Path) -> None:
        """Write the files that `load_units` reads, including the sentencepiece model."""
        write_atomically(Path(folder) / MODEL, self._model)
        write_symbols(self, folder)

    def __reduce__(self) -> tuple:
        """Pickle the sentencepiece model only."""
        return Pieces, (self.kind, self._model, self.policy)


def train_pieces(
    kind: str, pieces: int, texts: Iterable[str], policy: TextPolicy | None = None
) -> Pieces:
    """Learn word pieces from texts; equal texts give equal pieces.

    Args:
      kind: `bpe` or `unigram`.
      pieces: number of pieces.
      texts: transcripts, in any case unless the policy is as-given.
      policy: how text becomes words.

    Raises:
      UnitsError: there is no text, too little of it for so many pieces, or too many letters.
    """
    sentences = [folded for text in texts if (folded := _unit_text(text, policy))]
    if not sentences:
        raise UnitsError("there is no transcript to learn word pieces from")
    letters = set("".join(sentences)) - {" "}
    required = "" if letters.isdisjoint(ascii_uppercase) else LATIN_LETTERS
    letters.update(required)
    if pieces <= len(letters):  # the mark U+2581 is one more piece
        raise UnitsError(
            f"the transcripts have {len(letters)} different letters, each of which is a piece: "
            f"raise `pieces` from {pieces} to at least {len(letters) + 1}"
        )
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type=kind,
            # The unknown symbol is one more, and not a unit.
            vocab_size=pieces + 1,
            character_coverage=1.0,
            required_chars=required,
            normalization_rule_name="identity",
            unk_id=UNKNOWN,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise UnitsError(
            f"{pieces} word pieces cannot be learnt from {len(sentences)} transcripts ({error}); "
            "set `pieces` to another number"
        ) from error
    return Pieces(kind, model.getvalue(), policy)


def read_pieces(path: Path, kind: str, policy: TextPolicy | None = None) -> Pieces:
    """Read the pieces of a sentencepiece model.

    Raises:
      UnitsError: the file cannot be read.
    """
    advice = "give another file" if kind == FOREIGN else "make the units again"
    with reading(path, UnitsError, advice, "not a sentencepiece model"):
        return Pieces(kind, path.read_bytes(), policy)


def _unit_text(text: str, policy: TextPolicy | None) -> str:
    """Return a transcript in the spelling of the units."""
    return (policy or TextPolicy()).unit_text(text)


def make_units(
    config: UnitsConfig, texts: Iterable[str], policy: TextPolicy | None = None
) -> Units:
    """Make units from training transcripts that a policy has normalised.

    Raises:
      UnitsError: there are too few transcripts for so many pieces, or the model cannot be read.
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
        description = read_json(path, {"kind": str, "symbols": [str]})
        kind, symbols = description["kind"], description["symbols"]
        policy = _read_policy(description.get("policy"))
    if kind == Characters.kind:
        try:
            # Units without a policy have the default separator.
            named = policy is not None and len(symbols) > 2 and len(symbols[-2]) == 1
            separator = symbols[-2] if named else SEPARATOR
            units: Units = Characters(symbols[1:-2], policy, separator)
        except UnitsError as error:
            raise UnitsError(f"{path}: {error}; make the units again") from error
    else:
        units = read_pieces(Path(folder) / MODEL, kind, policy)
    # The model file may come from another run.
    if units.symbols != symbols:
        raise UnitsError(
            f"{path}: the listed symbols differ from the symbols of the units; make the units again"
        )
    return units


def _read_policy(description: object) -> TextPolicy | None:
    """Read the policy of a units file; None if it has none.

    Raises:
      ValueError: it is not a policy of this version.
    """
    if description is None:
        return None
    named = validated(description, {"id": str}, "the policy")
    tags = named.get("tags")
    if tags not in (None, "drop", "noise", "keep"):
        raise ValueError(f"the policy's 'tags' is {tags!r}")
    try:
        return TextPolicy(named["id"], tags)
    except UnknownPolicyError as error:
        raise ValueError(str(error)) from error
