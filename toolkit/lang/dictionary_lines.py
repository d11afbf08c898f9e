"""Lines of pronunciation dictionaries, with or without columns of probabilities.

A line is a word, up to four numbers, and phones: Kaldi's lexicon.txt, lexiconp.txt and
lexiconp_silprob.txt, and the dictionaries of the Montreal Forced Aligner, whose lines may differ in
their number of columns. A number with a decimal point is a probability. An integer, such as 1, may
be a phone (X-SAMPA has digits); what it is, the whole file decides.
"""

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from toolkit.storage.words import split_words

logger = logging.getLogger(__name__)
MOST_COLUMNS = 4
"""Of a pronunciation: its probability, that of silence after it, and the factors of silence before
it and of none."""
NEARLY_ALL = 0.9
"""Share of lines with a number in a column from which an integer there is a number too."""
_NUMBER = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_INTEGER = re.compile(r"[0-9]+")


class AmbiguousColumnError(ValueError):
    """An integer that may be a probability or a phone; the message names the line."""


@dataclass(frozen=True)
class DictionaryLine:
    """A pronunciation of a word."""

    number: int
    """Line number in the file, from 1."""
    word: str
    """The word as written."""
    numbers: tuple[float, ...]
    """Probabilities and factors, up to four; see `toolkit.lang.probabilities`."""
    phones: tuple[str, ...]
    """The phones; empty in a faulty line."""


@dataclass
class _Fields:
    number: int
    word: str
    fields: list[str]
    leading: int
    """Numbers at the beginning of `fields`."""
    columns: int
    """How many of them are certain to be probabilities."""
    closed: bool = False
    """Whether tabs show that no further field is a probability."""


def parse_dictionary(lines: Iterable[tuple[int, str]], name: str) -> list[DictionaryLine]:
    """Divide the lines of a dictionary into words, probabilities and phones.

    Args:
      lines: line numbers and lines without comments; blank lines are skipped.
      name: of the file, for messages.

    Raises:
      AmbiguousColumnError: an integer may be a probability or a phone.
    """
    split = [(number, line) for number, line in lines if line.strip()]
    tabbed = [[part.strip() for part in line.split("\t") if part.strip()] for _, line in split]
    phones_have_tabs = any(not _NUMBER.fullmatch(p) for parts in tabbed for p in parts[1:-1])
    entries = [
        _fields(number, line, [] if phones_have_tabs else parts)
        for (number, line), parts in zip(split, tabbed, strict=True)
    ]
    phones = {
        field
        for entry in entries
        for field in entry.fields[entry.columns if entry.closed else entry.leading :]
        if _INTEGER.fullmatch(field)
    }
    for column in range(MOST_COLUMNS):
        _decide(entries, column, phones, name)
    return [
        DictionaryLine(
            entry.number,
            entry.word,
            tuple(map(float, entry.fields[: entry.columns])),
            tuple(entry.fields[entry.columns :]),
        )
        for entry in entries
    ]


def _fields(number: int, line: str, tabbed: Sequence[str]) -> _Fields:
    """Split a line; `tabbed` are its parts between tabs where these separate columns."""
    if len(tabbed) > 2 and len(tabbed) - 2 <= MOST_COLUMNS:
        fields = [*tabbed[1:-1], *split_words(tabbed[-1])]
        columns = len(tabbed) - 2
        return _Fields(number, tabbed[0], fields, columns, columns, closed=True)
    word, *fields = split_words(line)
    leading = 0
    while leading < min(MOST_COLUMNS, len(fields) - 1) and _NUMBER.fullmatch(fields[leading]):
        leading += 1
    decimals = [i + 1 for i in range(leading) if not _INTEGER.fullmatch(fields[i])]
    return _Fields(number, word, fields, leading, max(decimals, default=0))


def _decide(entries: list[_Fields], column: int, phones: set[str], name: str) -> None:
    """Decide whether integers in a column are probabilities or phones."""
    candidates = [
        entry
        for entry in entries
        if not entry.closed and entry.columns == column and entry.leading > column
    ]
    if not candidates:
        return
    tokens = {entry.fields[column] for entry in candidates}
    numeric = sum(entry.leading > column and entry.columns >= column for entry in entries)
    certain = sum(entry.columns > column for entry in entries)
    shown = ", ".join(sorted(tokens)[:5])
    where = f"{name}: {len(candidates)} pronunciations have the integer {shown} in column"
    if numeric >= NEARLY_ALL * len(entries) and not tokens & phones:
        for entry in candidates:
            entry.columns = column + 1
        logger.info(
            "%s %d: taken for probabilities, as %d of %d lines have a number there and none has it"
            " among its phones",
            *(where, column + 2, numeric, len(entries)),
        )
    elif tokens <= phones and not certain and (tokens - {"0", "1"} or numeric < len(entries) / 2):
        logger.info("%s %d: taken for phones, as it is a phone elsewhere", where, column + 2)
        for entry in candidates:
            entry.leading = column
    else:
        first = candidates[0]
        raise AmbiguousColumnError(
            f"{name}:{first.number}: {first.fields[column]!r} of the word {first.word!r} may be a "
            f"probability ({numeric} of {len(entries)} lines have a number there) or a phone: "
            "write a probability as 1.0, or give the phone a name with a letter"
        )
