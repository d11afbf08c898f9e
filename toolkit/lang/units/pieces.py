"""Word pieces of sentencepiece as output units of CTC models."""

import io
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from string import ascii_uppercase

import sentencepiece

from toolkit.lang.policy import AS_GIVEN, TextPolicy
from toolkit.lang.units.units import BLANK, UnitsError, check_labels, write_symbols
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import reading

MODEL = "pieces.model"
# Sentencepiece needs a symbol for text that it cannot encode. Such text is an error here, so the
# symbol is not an output unit.
UNKNOWN = 0
FOREIGN = "sentencepiece"
SHOWN = 10  # characters in an error
LETTERS = f"{ascii_uppercase}'"
"""Always pieces of a language with Latin letters: words outside the transcripts may need them."""

_BRACKETS = re.compile(r"<.+>|\[.+\]")


class Pieces:
    """Word pieces, those at the beginning of a word marked with U+2581, and blank as the last.

    The model's symbols for unknown text and for the edges of sentences are no units. A model with
    small letters among its pieces is given text in small letters, any other in capitals; symbols in
    brackets, such as icefall's <blk> and <sos/eos>, and bytes such as <0x6a> tell nothing of that.

    Args:
      kind: `bpe`, `unigram`, or `sentencepiece` for models from elsewhere.
      model: sentencepiece's, serialised.
    """

    def __init__(self, kind: str, model: bytes, policy: TextPolicy | None = None) -> None:
        self.kind = kind
        self.policy = policy
        self._as_given = policy is not None and policy.id == AS_GIVEN
        self._model = model
        known = self._processor
        left_out = (known.is_unknown, known.is_control, known.is_unused)
        self._ids = [i for i in range(len(known)) if not any(kind(i) for kind in left_out)]
        self._labels = {number: label for label, number in enumerate(self._ids)}
        self.symbols = [*map(known.id_to_piece, self._ids), BLANK]
        self._small = any(s.islower() for s in self.symbols[:-1] if not _BRACKETS.fullmatch(s))
        self.size = len(self.symbols)
        self.blank = self.size - 1

    @cached_property
    def _processor(self) -> sentencepiece.SentencePieceProcessor:
        return sentencepiece.SentencePieceProcessor(model_proto=self._model)

    def encode(self, text: str) -> list[int]:
        """See `Units`."""
        folded = _folded(text, self.policy)
        if self._small and not self._as_given:
            folded = folded.lower()
        ids = self._processor.encode(folded)
        if not self._labels.keys() >= {*ids}:
            unknown = [c for c in dict.fromkeys(folded) if self._lacks(c)]
            raise UnitsError(
                f"{''.join(unknown[:SHOWN])!r} cannot be written in the word pieces of the "
                f"{'model' if self.kind == FOREIGN else 'training transcripts'}; normalise the "
                "transcript"
            )
        return [self._labels[i] for i in ids]

    def _lacks(self, character: str) -> bool:
        return not self._labels.keys() >= {*self._processor.encode(character)}

    def decode(self, ids: Sequence[int]) -> str:
        """See `Units`."""
        text = self._processor.decode([self._ids[i] for i in check_labels(ids, self.blank)])
        return _folded(text, self.policy)

    def save(self, folder: Path) -> None:
        """See `Units`."""
        write_atomically(Path(folder) / MODEL, self._model)
        write_symbols(self, folder)

    def __reduce__(self) -> tuple:
        """Pickle the model alone."""
        return Pieces, (self.kind, self._model, self.policy)


def train_pieces(
    kind: str, pieces: int, texts: Iterable[str], policy: TextPolicy | None = None
) -> Pieces:
    """Learn word pieces; the same texts give the same pieces.

    Args:
      kind: `bpe` or `unigram`.
      pieces: their number.
      texts: transcripts, in any case unless the policy is as-given.
      policy: how text becomes words.

    Raises:
      UnitsError: there is no text, too little of it for so many pieces, or too many letters.
    """
    sentences = [folded for text in texts if (folded := _folded(text, policy))]
    if not sentences:
        raise UnitsError("there is no transcript to learn word pieces from")
    letters = set("".join(sentences)) - {" "}
    required = "" if letters.isdisjoint(ascii_uppercase) else LETTERS
    letters.update(required)
    if pieces <= len(letters):  # U+2581 is one more
        raise UnitsError(
            f"the transcripts have {len(letters)} different letters, each of which is a piece: set "
            f"`pieces` to more than {pieces}, at least {len(letters) + 1}"
        )
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type=kind,
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
            f"{len(sentences)} transcripts do not give {pieces} pieces ({error}); set `pieces` to "
            "another number"
        ) from error
    return Pieces(kind, model.getvalue(), policy)


def read_pieces(path: Path, kind: str, policy: TextPolicy | None = None) -> Pieces:
    """Read the pieces of a model.

    Raises:
      UnitsError: the file cannot be read.
    """
    advice = "give another file" if kind == FOREIGN else "make the units again"
    with reading(path, UnitsError, advice, "not a sentencepiece model"):
        return Pieces(kind, path.read_bytes(), policy)


def _folded(text: str, policy: TextPolicy | None) -> str:
    return (policy or TextPolicy()).unit_text(text)
