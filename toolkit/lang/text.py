"""Text of language models and transcripts: reading files, and the normalisation of both."""

import glob
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from toolkit.corpus.tags import is_tag
from toolkit.errors import ToolkitError
from toolkit.storage.lines import LineCounts, TextLines, decoded_lines, is_utf8


class TextError(ToolkitError):
    """Text that is missing or cannot be read."""


TITLES = {"MR": "MISTER", "MRS": "MISSUS", "DR": "DOCTOR"}
QUOTES = str.maketrans("‘’ʼ＇`´", "''''''")


# Letters of ordinary Georgian (Mkhedruli) have no case: Python's capitals of them, which few fonts
# have, are for headings.
GEORGIAN = {code: code - 0x1C90 + 0x10D0 for code in range(0x1C90, 0x1CC0)}


def in_upper_case(text: str) -> str:
    """Return letters of any alphabet in upper case, composed (NFC), with ASCII's apostrophe."""
    upper = unicodedata.normalize("NFC", text).upper().translate(QUOTES)
    return unicodedata.normalize("NFC", upper).translate(GEORGIAN)


_ELIDED = (
    "BOUT CAUSE COURSE CUSE EM FORE GAINST KAY N NEATH ROUND TIL TIS TWAS TWEEN TWERE TWILL TWIXT"
    " TWOULD"
)
ELISIONS = frozenset(_ELIDED.split())
"""What English has words of with an apostrophe before it."""
_MARKS = re.compile(r"((?<![^\W_])[^\W_]+|)('+)(?=([^\W_]*))")  # with the letters on both sides


def without_quotes(text: str) -> str:
    """Return English text without the apostrophes, and backticks, that are quotation marks.

    Those are two or more in a row; one before a word, unless the word is of `ELISIONS`; one behind
    punctuation; and behind a word the next one after an opening one, unless it may belong to the
    word (BOYS', GOIN').
    """
    text = unicodedata.normalize("NFC", text.translate(QUOTES))  # é is a letter
    kept: list[str] = []
    done = 0
    opened = -1  # where the word begins before which an opening mark stands
    for found in _MARKS.finditer(text):
        before, marks, behind = found.groups()
        apostrophe = len(marks) == 1 and bool(before)
        if not before and behind:
            apostrophe = behind.upper() in ELISIONS
            opened = found.end() if len(marks) == 1 + apostrophe else opened
        elif apostrophe and not behind and opened >= 0:
            apostrophe = found.start() != opened and before.lower().endswith(("s", "n"))
            opened = opened if apostrophe else -1
        elif not apostrophe:
            opened = -1
        kept += [text[done : found.end() - len(marks)], "'" if apostrophe else " "]
        done = found.end()
    return "".join([*kept, text[done:]])


class Normaliser:
    """Turns written English into spoken words of A to Z and the apostrophe, in upper case.

    Accents are dropped (NFKD), hyphens, punctuation and quotation marks (`without_quotes`) separate
    words, the titles MR, MRS and DR are spelled out (the form of LibriSpeech's transcripts), and
    every other character (digits, other alphabets, symbols) is removed and counted in `removed`.
    Normalising twice changes nothing.
    """

    id = "english-upper-2"
    """Identifies these rules wherever their output is stored; other rules need another id."""

    def __init__(self) -> None:
        self.removed: Counter[str] = Counter()

    def words(self, text: str) -> list[str]:
        """Return the normalised words of `text`."""
        return self._words(self._unquoted(text), keep_foreign=False)

    def _unquoted(self, text: str) -> str:
        return without_quotes(text)

    def transcript(self, text: str) -> str:
        """Return `text` normalised, with the characters that `words` removes still in it.

        The check reports these: a digit in a transcript stands for a spoken word, which training
        must not ignore. Tags such as <noise> or [laughter] stay as they are.
        """
        words = []
        for token in self._unquoted(text).split():
            words += [token] if is_tag(token) else self._words(token, keep_foreign=True)
        return " ".join(words)

    def _words(self, text: str, keep_foreign: bool) -> list[str]:
        if not text.isascii():
            text = unicodedata.normalize("NFKD", text.translate(QUOTES))
            text = "".join(_simplify(c) for c in text)
        text = text.upper().replace("`", "'")
        foreign = _FOREIGN.findall(text)
        if foreign and not keep_foreign:
            self.removed.update(foreign)
            # An apostrophe between a digit and a letter is a quotation mark without the digit.
            text = self._unquoted(_FOREIGN.sub("", text))
        words = _PUNCTUATION.sub(" ", text).split()
        return [TITLES.get(word, word) for word in words if word.strip("'")]

    def __call__(self, text: str) -> str:
        """Return `text` normalised, its words separated by single spaces."""
        return " ".join(self.words(text))


class FirstNormaliser(Normaliser):
    """The rules of runs and bundles before 2026-11-28: apostrophes that quote stay with words."""

    id = "english-upper-1"

    def _unquoted(self, text: str) -> str:
        return text


_PUNCTUATION = re.compile(r"[-.,;:!?\"()\[\]{}/\\_]")
_FOREIGN = re.compile(r"[^A-Z'\s\-.,;:!?\"()\[\]{}/\\_]")


def _simplify(character: str) -> str:
    """Drop an accent; turn Unicode punctuation into a hyphen, which separates words."""
    category = unicodedata.category(character)
    if character.isascii():
        return character
    if category == "Mn":
        return ""
    return "-" if category.startswith("P") else character


ASCII_SPACE = " \t\r\n\f\v"


def ascii_fields(line: str) -> list[str]:
    """Split a line at ASCII's white space alone, as OpenFst, SRILM and KenLM do.

    `str.split` also splits at U+00A0 and others, which are part of words there.
    """
    if line.isascii():
        return line.split()
    return [field for field in _SPACES.split(line) if field]


_SPACES = re.compile(f"[{ASCII_SPACE}]+")


def text_files(source: Path) -> list[Path]:
    """List the files that `source` names, in sorted order.

    Args:
      source: a file, a folder (its *.txt and *.txt.gz, at any depth) or a glob pattern.

    Raises:
      TextError: nothing is there.
    """
    source = Path(source)
    if source.is_file():
        return [source]
    if source.is_dir():
        found = [p for p in source.rglob("*") if p.name.endswith((".txt", ".txt.gz"))]
        problem = "no .txt or .txt.gz file in the folder"
    else:
        found = [Path(p) for p in glob.glob(str(source), recursive=True)]
        problem = "no file, folder or pattern matches"
    files = sorted(p for p in found if p.is_file())
    if not files:
        raise TextError(f"language model text: {problem} {source}")
    return files


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end) of a UTF-8 text file, gzipped or not.

    For files of programs: symbol tables, models. In text and dictionaries that people write, faulty
    lines are left out, see `toolkit.storage.lines.TextLines`.

    Raises:
      TextError: the file cannot be read, with the line where it broke.
    """
    number = 0
    try:
        for number, line in decoded_lines(path):
            if not is_utf8(line):
                counts = LineCounts()
                for _ in decoded_lines(path, counts):
                    pass
                raise TextError(f"{path}:{number}: not UTF-8: {counts.describe(line)}")
            yield number, line
    except FileNotFoundError as error:
        raise TextError(f"{path}: no such file") from error
    except UnicodeDecodeError as error:
        raise TextError(f"{path}:{number + 1}: damaged {error.encoding}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise TextError(f"{path}: cannot be read after line {number}: {error}") from error


class WordRules(Protocol):
    """Rules that turn a text into words."""

    def words(self, text: str, /) -> list[str]:
        """Return the words of a text."""


def read_sentences(source: Path, rules: WordRules) -> Iterator[list[str]]:
    """Yield the words of every line of `source` that has any (see `text_files`).

    Raises:
      TextError: a file cannot be read, or too many lines are not UTF-8; a few are left out with a
        warning.
    """
    lines = TextLines(TextError)
    for path in text_files(source):
        for _, line in lines.read(path):
            words = rules.words(line)
            if words:
                yield words
    lines.finish()


def check_sentences(source: Path) -> None:
    """Check that a text can be read, without normalising it: see `read_sentences`."""
    lines = TextLines(TextError)
    for path in text_files(source):
        for _ in lines.read(path):
            pass
    lines.finish()


def count_words(sentences: Iterable[Iterable[str]]) -> Counter[str]:
    """Count the words of `sentences`."""
    counts: Counter[str] = Counter()
    for words in sentences:
        counts.update(words)
    return counts
