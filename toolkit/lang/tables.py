"""Symbol tables from phones or words to integers, in the text format of OpenFst and k2."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.storage.files import open_atomically
from toolkit.storage.lines import read_lines, split_words
from toolkit.storage.reading import quoted

EPSILON = "<eps>"
SILENCE = "SIL"
SPOKEN_NOISE = "SPN"
UNKNOWN = "<UNK>"
START = "<s>"
END = "</s>"
_ID = re.compile(r"[0-9]{1,9}")


class TableError(ToolkitError):
    """Raised for a faulty symbol table, or a symbol that a table lacks."""


class SymbolTable:
    """A one-to-one mapping between symbols and ids."""

    def __init__(self, ids: dict[str, int]) -> None:
        self._ids = ids
        self._symbols = {index: symbol for symbol, index in ids.items()}
        if len(self._symbols) != len(ids):
            raise TableError("two symbols of the symbol table have the same id")

    @classmethod
    def of(cls, symbols: Iterable[str]) -> "SymbolTable":
        """Number `symbols` 0, 1, ... in order; a repeated symbol raises a TableError."""
        ids: dict[str, int] = {}
        for symbol in symbols:
            if symbol in ids:
                raise TableError(
                    f"the symbol {symbol!r} occurs twice in the symbol table: check whether it is "
                    "a reserved name"
                )
            ids[symbol] = len(ids)
        return cls(ids)

    @classmethod
    def read(cls, path: Path) -> "SymbolTable":
        """Read a table with lines `symbol id`.

        Raises:
          TableError: a line has another form, or repeats a symbol or id; the message names file and
            line.
        """
        ids: dict[str, int] = {}
        used_ids: set[int] = set()
        for number, line in read_lines(path, TableError):
            fields = split_words(line)
            if not fields:
                continue
            if len(fields) != 2 or not _ID.fullmatch(fields[1]):
                raise TableError(f"{path}:{number}: expected `symbol id`, found {quoted(line)}")
            symbol, index = fields[0], int(fields[1])
            if symbol in ids or index in used_ids:
                raise TableError(
                    f"{path}:{number}: {quoted(line)} repeats a symbol or an id of an earlier line"
                )
            ids[symbol] = index
            used_ids.add(index)
        return cls(ids)

    def write(self, path: Path) -> None:
        """Write lines `symbol id`, sorted by id."""
        with open_atomically(path) as file:
            file.writelines(f"{self._symbols[i]} {i}\n" for i in sorted(self._symbols))

    def __getitem__(self, symbol: str) -> int:
        try:
            return self._ids[symbol]
        except KeyError:
            raise TableError(f"the symbol table has no symbol {symbol!r}") from None

    def get(self, symbol: str, default: int) -> int:
        """Return the id of `symbol`, or `default`."""
        return self._ids.get(symbol, default)

    def symbol(self, index: int) -> str:
        """Return the symbol with id `index`."""
        try:
            return self._symbols[index]
        except KeyError:
            raise TableError(f"the symbol table has no symbol with the id {index}") from None

    def __contains__(self, symbol: object) -> bool:
        return symbol in self._ids

    def __iter__(self) -> Iterator[str]:
        return (self._symbols[i] for i in sorted(self._symbols))

    def __len__(self) -> int:
        return len(self._ids)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SymbolTable) and self._ids == other._ids

    __hash__ = None  # type: ignore[assignment]


def phone_table(phones: Iterable[str], num_disambig: int) -> SymbolTable:
    """Number the phones: <eps> 0, SIL 1, SPN 2, others sorted, then disambiguation symbols."""
    real_phones = sorted(set(phones) - {SILENCE, SPOKEN_NOISE})
    disambig = [f"#{i}" for i in range(num_disambig)]
    return SymbolTable.of([EPSILON, SILENCE, SPOKEN_NOISE, *real_phones, *disambig])


def word_table(words: Iterable[str]) -> SymbolTable:
    """Number the words: <eps> 0, words sorted, then <UNK>, #0, <s>, </s> (as in Kaldi).

    Kaldi's arpa2fst does not need <s> and </s>, which it replaces by epsilon with
    `--disambig-symbol=#0`. They are in the table for tools that look them up, as in Kaldi.
    """
    special = [UNKNOWN, "#0", START, END]
    return SymbolTable.of([EPSILON, *sorted(set(words) - set(special) - {EPSILON}), *special])
