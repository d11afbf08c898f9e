"""Reads users' pronunciation dictionaries, with or without probabilities.

A line is a word, up to four numbers, and phones. This covers Kaldi's lexicon.txt, lexiconp.txt and
lexiconp_silprob.txt, and the dictionaries of the Montreal Forced Aligner, whose lines may differ in
their number of columns. A number with a decimal point is a probability. Whether an integer, such as
1, is a probability or a phone (X-SAMPA has digits) is decided from the whole file.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from toolkit.lang.lexicon import (
    STRESSED_VOWEL,
    Lexicon,
    LexiconError,
    Pronunciation,
    without_stress,
    without_variant_number,
)
from toolkit.lang.probabilities import (
    LEXICON_FILE,
    EntryProbabilities,
    LexiconProbabilities,
    read_ends,
)
from toolkit.lang.text_policy import TextPolicy
from toolkit.storage.lines import LISTED, TextLines, split_words, too_many
from toolkit.storage.reading import quoted

logger = logging.getLogger(__name__)

LEAST = 0.01
"""Floor of probabilities and factors, as in the Montreal Forced Aligner."""
EXTRA_QUESTIONS = "extra_questions.txt"
"""File of questions in a dict or lang folder; the language stage copies it to lang/."""
EVEN = 0.5
"""Probability of silence for dictionaries without one, as in Kaldi."""


@dataclass(frozen=True)
class Dictionary:
    """Words with pronunciations (without position suffixes), and probabilities if any."""

    lexicon: Lexicon
    """Words as a text policy spells them."""
    probabilities: LexiconProbabilities | None = None
    """Probabilities of pronunciations and of silence around them; None: the dictionary has none."""
    notes: tuple[str, ...] = ()
    """Remarks on changes to the entries, and on the use of probabilities."""
    extra_questions: Path | None = None
    """Kaldi's file of phone sets, which trees use as questions; None: the dictionary has none."""


def read_dictionary(
    path: Path, strip_stress: bool = False, policy: TextPolicy | None = None
) -> Dictionary:
    """Read a pronunciation dictionary with its probabilities.

    Args:
      path: a file, see `toolkit.lang.dictionary.read_entries`; `silprob.txt` in the folder of
        lexiconp_silprob.txt is also read. `toolkit.kaldi.dict_lang.read_lexicon` reads folders.
      strip_stress: see `read_entries`.
      policy: how words are spelled; by default in upper case.

    Raises:
      LexiconError: the file has a fault; the message names file and line.
    """
    lexicon = Lexicon()
    entries: dict[tuple[str, Pronunciation], EntryProbabilities] = {}
    lines = with_numbers = 0
    for number, word, numbers, phones in read_entries(path, strip_stress, policy):
        lexicon.add(word, phones)
        lines += 1
        with_numbers += bool(numbers)
        probabilities = _probabilities(f"{path}:{number}", numbers)
        earlier = entries.get((word, phones))
        # Add the probabilities of entries that become equal without case or stress.
        if earlier is not None:
            share = min(1.0, earlier.pronunciation + probabilities.pronunciation)
            probabilities = EntryProbabilities(share, earlier.silence_after, *_factors(earlier))
        entries[word, phones] = probabilities
    if not with_numbers:
        return Dictionary(lexicon)
    ends = (EVEN, 1.0, 1.0, EVEN)
    silence = path.with_name("silprob.txt")
    if path.name == LEXICON_FILE and silence.is_file():
        ends = read_ends(silence)
    note = f"probabilities of {with_numbers} of {lines} pronunciations are used"
    return Dictionary(lexicon, LexiconProbabilities(entries, *ends), (note,))


def _factors(entry: EntryProbabilities) -> tuple[float, float]:
    """Return an entry's factors for silence and for no silence before it."""
    return entry.silence_before, entry.no_silence_before


def _probabilities(where: str, numbers: tuple[float, ...]) -> EntryProbabilities:
    """Return the probabilities of a line from its columns `numbers`, up to four."""
    # Defaults of missing columns: `EVEN` for silence; the others do not change a score.
    share, silence, *factors = [*numbers, *(1.0, EVEN, 1.0, 1.0)[len(numbers) :]]
    if max(share, silence) > 1:
        raise LexiconError(f"{where}: {max(share, silence):g} is not a probability between 0 and 1")
    silence = min(max(silence, LEAST), 1 - LEAST)
    silence_before, no_silence_before = (max(factor, LEAST) for factor in factors)
    return EntryProbabilities(max(share, LEAST), silence, silence_before, no_silence_before)


_DECIMAL = re.compile(r"[0-9]*\.[0-9]+|[0-9]+\.")
MAX_COLUMNS = 4
"""Largest number of columns of a pronunciation: its probability, the probability of silence after
it, and the factors of silence and of no silence before it."""
NEARLY_ALL = 0.9
"""If at least this share of lines has a number in a column, integers there can be probabilities."""
_NUMBER = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_INTEGER = re.compile(r"[0-9]+")


def read_entries(
    path: Path, strip_stress: bool = False, policy: TextPolicy | None = None
) -> Iterator[tuple[int, str, tuple[float, ...], Pronunciation]]:
    """Yield (line number, word, probabilities, phones) of a dictionary, gzipped or not.

    Its lines are `WORD P1 P2 ...` (Kaldi), `WORD(2) P1 ...` (CMU), or have up to four columns of
    probabilities after the word, see `toolkit.lang.dictionary`. Lines that start with `;;;` or `#`
    are comments, and so is text after ` #`. Blank lines are skipped. A few lines that are not
    UTF-8, have no phones, or have a number among the phones are skipped with a warning. With the
    policy as-given, a line that starts with `#` is an entry if its phones occur in other entries,
    and `WORD(2)` is a variant if there is an entry WORD.

    Args:
      path: the dictionary file.
      strip_stress: remove the stress digits 0 to 2 where the phones are ARPAbet; digits of other
        phones, such as tones, stay.
      policy: how words are spelled; by default as the normalisers write them: in upper case,
        composed (NFC), with ASCII's apostrophe.

    Raises:
      LexiconError: too many faulty lines (see `toolkit.storage.lines`), an integer that may be a
        probability or a phone, or a file without entries; the message names file and line.
    """
    # 1. Separate the entries from comments, which may turn out to be entries in step 3.
    text = TextLines(LexiconError)
    policy = policy or TextPolicy()
    lines, comments = [], []
    for number, line in text.read(path):
        if not line.startswith((";;;", "#")):
            lines.append((number, line.partition(" #")[0]))
        elif line.startswith("#") and not policy.folds:
            comments.append((number, line))
    text.finish()
    try:
        entries = parse_dictionary(lines, str(path))
    except AmbiguousColumnError as error:
        raise LexiconError(str(error)) from error
    if not entries:
        raise LexiconError(f"{path}: the lexicon has no entry")
    # 2. Check and spell the entries.
    faults = {entry.number: fault for entry in entries if (fault := _fault(entry))}
    first_faults = [f"{path}:{number}: {fault}" for number, fault in islice(faults.items(), LISTED)]
    if too_many(len(faults), len(entries)):
        raise LexiconError(first_faults[0])
    if faults:
        logger.warning(
            "%s: left out %d of %d lines: %s",
            path,
            len(faults),
            len(entries),
            "; ".join(first_faults),
        )
    entries = [entry for entry in entries if entry.number not in faults]
    words = {entry.word for entry in entries}
    strips = strip_stress and _has_arpabet_stress(path, {p for e in entries for p in e.phones})
    for entry in entries:
        phones = tuple(map(without_stress, entry.phones)) if strips else entry.phones
        word = without_variant_number(entry.word)
        if not policy.folds and word not in words:
            word = entry.word
        yield entry.number, policy.lexicon_key(word), entry.numbers, phones
    # 3. Comments whose phones all occur in entries are entries of words that begin with `#`.
    inventory = {phone for entry in entries for phone in entry.phones}
    for number, line in comments:
        word, *spoken = split_words(line)
        if spoken and inventory.issuperset(spoken):
            yield number, word, (), tuple(map(without_stress, spoken) if strips else spoken)


def _fault(entry: "DictionaryLine") -> str:
    """Describe what is wrong with a line; empty if nothing is."""
    if not entry.phones:
        return f"the word {quoted(entry.word)} has no phones"
    if number := next(filter(_DECIMAL.fullmatch, entry.phones), None):
        return f"the number {quoted(number)} is among the phones"
    return ""


def _has_arpabet_stress(path: Path, phones: Iterable[str]) -> bool:
    """Whether all digits at the ends of phones are stress digits of ARPAbet vowels."""
    other_digits = [
        p for p in sorted(phones) if p[-1:].isdecimal() and not STRESSED_VOWEL.fullmatch(p)
    ]
    if other_digits:
        logger.warning(
            "%s: the digit in the phone %s is not an ARPAbet stress mark, so the digits of phones "
            "are kept",
            path,
            other_digits[0],
        )
    return not other_digits


class AmbiguousColumnError(ValueError):
    """Raised for an integer that may be a probability or a phone; the message names the line."""


@dataclass(frozen=True)
class DictionaryLine:
    """A parsed line: a word with one pronunciation."""

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
    """A line whose columns are not all identified yet."""

    number: int
    word: str
    fields: list[str]
    leading: int
    """How many fields at the beginning are numbers."""
    columns: int
    """How many of the leading fields are certainly probabilities."""
    closed: bool = False
    """Whether tabs show that no other field is a probability."""


def parse_dictionary(lines: Iterable[tuple[int, str]], name: str) -> list[DictionaryLine]:
    """Split the lines of a dictionary into words, probabilities and phones.

    Args:
      lines: line numbers and lines without comments; blank lines are skipped.
      name: name of the file, for messages.

    Raises:
      AmbiguousColumnError: an integer may be a probability or a phone.
    """
    # 1. Split the lines. Tabs separate columns, unless some tabs are between phones.
    split = [(number, line) for number, line in lines if line.strip()]
    tabbed = [[part.strip() for part in line.split("\t") if part.strip()] for _, line in split]
    phones_have_tabs = any(not _NUMBER.fullmatch(p) for parts in tabbed for p in parts[1:-1])
    entries = [
        _fields(number, line, [] if phones_have_tabs else parts)
        for (number, line), parts in zip(split, tabbed, strict=True)
    ]
    # 2. Integers after a line's leading numbers are certainly phones.
    phones = {
        field
        for entry in entries
        for field in entry.fields[entry.columns if entry.closed else entry.leading :]
        if _INTEGER.fullmatch(field)
    }
    # 3. Decide about the other integers, column by column.
    for column in range(MAX_COLUMNS):
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
    """Split a line; `tabbed` holds its parts if tabs separate columns."""
    if len(tabbed) > 2 and len(tabbed) - 2 <= MAX_COLUMNS:
        fields = [*tabbed[1:-1], *split_words(tabbed[-1])]
        columns = len(tabbed) - 2
        return _Fields(number, tabbed[0], fields, columns, columns, closed=True)
    word, *fields = split_words(line)
    leading = 0
    while leading < min(MAX_COLUMNS, len(fields) - 1) and _NUMBER.fullmatch(fields[leading]):
        leading += 1
    # All numbers up to the last one with a decimal point are probabilities.
    decimals = [i + 1 for i in range(leading) if not _INTEGER.fullmatch(fields[i])]
    return _Fields(number, word, fields, leading, max(decimals, default=0))


def _decide(entries: list[_Fields], column: int, phones: set[str], name: str) -> None:
    """Decide whether the undecided integers of a column are probabilities or phones.

    They are probabilities if nearly all lines have a number there, and none of them is a phone
    elsewhere. They are phones if all of them are phones elsewhere, no line has a certain
    probability there, and they are not just 0 and 1 in most lines.
    """
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
    examples = ", ".join(sorted(tokens)[:5])
    where = f"{name}: {len(candidates)} pronunciations have the integer {examples} in column"
    if numeric >= NEARLY_ALL * len(entries) and not tokens & phones:
        for entry in candidates:
            entry.columns = column + 1
        logger.info(
            "%s %d: these integers are read as probabilities, because %d of %d lines have a number "
            "in this column, and no line has these integers as phones",
            where,
            column + 2,
            numeric,
            len(entries),
        )
    elif tokens <= phones and not certain and (tokens - {"0", "1"} or numeric < len(entries) / 2):
        logger.info(
            "%s %d: these integers are read as phones, because other lines have them as phones",
            where,
            column + 2,
        )
        for entry in candidates:
            entry.leading = column
    else:
        first = candidates[0]
        raise AmbiguousColumnError(
            f"{name}:{first.number}: {first.fields[column]!r} of the word {first.word!r} may be a "
            f"probability ({numeric} of {len(entries)} lines have a number in this column) or a "
            "phone: if it is a probability, write it with a decimal point (1.0); if it is a phone, "
            "add a letter to its name"
        )
