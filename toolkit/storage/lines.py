"""Read text files: decode lines as UTF-8, find lines that are not, and split lines into words.

A faulty line has bytes that are not UTF-8, or a zero byte. There are three ways to read a file:

- `read_lines` raises an error at the first faulty line: for files that programs write (models,
  tables);
- `TextLines` leaves faulty lines out and lists them, and refuses a text with too many of them, see
  `too_many`: for files that people write;
- `decoded_lines` yields faulty lines too: for readers that name the utterance of such a line.

A UTF-16 or UTF-32 file that begins with a byte order mark is decoded. Only a newline ends a line,
as in Kaldi; Unicode's other line separators do not.

Lines and transcripts are split into words at ASCII white space (`split_words`). Kaldi, sclite and
awk split at the same six characters. Unicode's other spaces (no-break space, ideographic space,
line separators) are part of a word, as they are for those programs.
"""

import codecs
import gzip
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BufferedIOBase
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.storage.paths import printable
from toolkit.storage.reading import DAMAGE_ERRORS, reason, regular

logger = logging.getLogger(__name__)
MAX_FAULTY = 0.2
"""Largest share of faulty lines in a text that is read; see `too_many`."""
MIN_FAULTY = 20
"""Up to this number of faulty lines a text is read even if their share is larger."""
LISTED = 10
"""Largest number of faulty lines that a message lists."""
LONGEST_LINE = 120  # characters of a faulty line in a message
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # first, because it begins with UTF-16's mark
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_UNDECODED = re.compile("[\x00\ud800-\udfff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
ICONV = "`iconv -f cp1252 -t utf-8` (cp1251 for Cyrillic letters)"


def is_faulty(text: str) -> bool:
    """Return whether a text, decoded by surrogateescape, has a zero byte or an invalid byte."""
    return "\0" in text if text.isascii() else _UNDECODED.search(text) is not None


def is_utf8(text: str) -> bool:
    """Return whether a text, decoded by surrogateescape, has no byte that is not UTF-8."""
    return text.isascii() or _SURROGATE.search(text) is None


def shown(text: str) -> str:
    r"""Return a faulty text in backquotes, its wrong bytes as `\xff`; if long, only a part."""
    # The part around the first fault
    fault = _UNDECODED.search(text)
    start = max(0, fault.start() - LONGEST_LINE // 2) if fault else 0
    part = printable(text[start : start + LONGEST_LINE]).replace("\0", "\\x00")
    prefix, suffix = "..." if start else "", "..." if len(text) > start + LONGEST_LINE else ""
    return f"`{prefix}{part}{suffix}`"


@dataclass
class LineCounts:
    """Counts of the lines of one file."""

    lines: int = 0
    """Lines that are not blank."""
    faulty: int = 0
    """Lines that are not UTF-8 or have a zero byte."""
    zero_bytes: int = 0
    """Lines with a zero byte."""
    utf8_letters: bool = False
    """Whether any line, a faulty one included, has letters beyond ASCII in UTF-8."""

    @property
    def advice(self) -> str:
        """Advice that holds for every faulty line of the file; empty if there is none."""
        if not self.faulty or self.utf8_letters:
            return ""
        if self.zero_bytes:
            return "it is not text, or it is UTF-16: convert it with `iconv -f utf-16le -t utf-8`"
        return (
            "no line has UTF-8 letters beyond ASCII: the file may be in another encoding; convert "
            f"it with {ICONV}"
        )

    def describe(self, line: str) -> str:
        """Return a faulty line as `shown` does, with the advice for its file if there is any."""
        return f"{shown(line)}; {self.advice}" if self.advice else shown(line)


def decoded_lines(
    path: Path, error: type[ToolkitError], counts: LineCounts | None = None
) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end) of a text file, gzipped or not.

    A byte that is not UTF-8 becomes a surrogate, see `is_faulty`.

    Args:
      path: the file; a byte order mark is not part of its first line.
      error: the class of the error to raise.
      counts: counts to which the lines read are added.

    Raises:
      error: the file cannot be read, or its UTF-16 or UTF-32 is damaged; the message names it.
    """
    opener = gzip.open if str(path).endswith(".gz") else open
    number = 0
    try:
        with opener(regular(path), "rb") as file:
            for number, line in enumerate(_lines(file), 1):
                if counts is not None:
                    _count(line, counts)
                yield number, line
    except DAMAGE_ERRORS as cause:
        raise error(_failure(path, cause, number)) from cause


def _failure(path: Path, cause: Exception, number: int = 0) -> str:
    """Describe why a file cannot be read, and after which line."""
    if isinstance(cause, FileNotFoundError):
        return f"{path}: no such file"
    if isinstance(cause, UnicodeDecodeError):
        return f"{path}: not valid {cause.encoding}; save the file as UTF-8"
    place = f" after line {number}" if number else ""
    return f"{path}: cannot be read{place}: {reason(cause)}"


def read_lines(path: Path, error: type[ToolkitError]) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end) of a text file, gzipped or not.

    Raises:
      error: the file cannot be read, or a line is faulty; the message names file and line.
    """
    for number, line in decoded_lines(path, error):
        if is_faulty(line):
            raise error(f"{path}:{number}: {_fault(path, line, error)}")
        yield number, line


def _fault(path: Path, line: str, error: type[ToolkitError]) -> str:
    """Describe what is wrong with a faulty line."""
    if is_utf8(line):
        return "a zero byte: this is not a text file"
    # The advice depends on all lines of the file.
    counts = LineCounts()
    for _ in decoded_lines(path, error, counts):
        pass
    return f"not UTF-8: {counts.describe(line)}"


def read_content(path: Path, error: type[ToolkitError]) -> bytes:
    """Return the bytes of a file, decompressed where its name ends in .gz.

    Raises:
      error: the file cannot be read; the message names it.
    """
    try:
        content = regular(path).read_bytes()
        return gzip.decompress(content) if Path(path).suffix == ".gz" else content
    except DAMAGE_ERRORS as cause:
        raise error(_failure(path, cause)) from cause


def _lines(file: BufferedIOBase) -> Iterator[str]:
    """Yield the lines of a file without their ends; a byte order mark decides the encoding."""
    first = file.readline()
    for mark, encoding in _MARKS:
        if first.startswith(mark):
            # Newlines of UTF-16 and UTF-32 are found only after decoding.
            text = (first + file.read()).decode(encoding)
            for line in text.removesuffix("\n").split("\n"):
                yield line.rstrip("\r")
            return
    if first:
        yield first.decode("utf-8-sig", "surrogateescape").rstrip("\r\n")
    for raw in file:
        yield raw.decode("utf-8", "surrogateescape").rstrip("\r\n")


def _count(line: str, counts: LineCounts) -> None:
    """Add a line to `counts`."""
    # Most lines are ASCII: a fast check suffices.
    if line.isascii() and "\0" not in line:
        counts.lines += bool(line) and not line.isspace()
        return
    counts.lines += 1
    if not is_faulty(line):
        counts.utf8_letters = True
        return
    counts.faulty += 1
    counts.zero_bytes += "\0" in line
    # Does the line without the invalid bytes have letters beyond ASCII?
    counts.utf8_letters |= not _UNDECODED.sub("", line).isascii()


def too_many(faulty: int, total: int) -> bool:
    """Return whether a text is refused: all lines are faulty, or more than both limits allow."""
    return faulty > 0 and (faulty == total or (faulty > MIN_FAULTY and faulty > MAX_FAULTY * total))


@dataclass
class TextLines:
    """Reads the files of a text, leaves faulty lines out, and lists them.

    Call `finish` after the last line: it warns about faulty lines, or refuses the text.
    """

    error: type[ToolkitError]
    """The class of the errors that are raised."""
    listed: list[str] = field(default_factory=list)
    """The first faulty lines: `file:number: line`."""
    counts: dict[Path, LineCounts] = field(default_factory=dict)
    """Line counts by file."""

    def read(self, path: Path) -> Iterator[tuple[int, str]]:
        """Yield the lines of a file that are not faulty, with their numbers.

        Raises:
          error: the file cannot be read; the message names it.
        """
        counts = self.counts[path] = LineCounts()
        for number, line in decoded_lines(path, self.error, counts):
            if not is_faulty(line):
                yield number, line
            elif len(self.listed) < LISTED:
                self.listed.append(f"{path}:{number}: {shown(line)}")

    @property
    def faulty(self) -> int:
        """Number of faulty lines."""
        return sum(counts.faulty for counts in self.counts.values())

    def message(self) -> str:
        """Say how many lines are faulty, list the first ones, and advise; "" if none is faulty."""
        if not self.faulty:
            return ""
        total = sum(counts.lines for counts in self.counts.values())
        more = f", and {self.faulty - len(self.listed)} more" * (self.faulty > len(self.listed))
        advice = [f"; {path}: {c.advice}" for path, c in self.counts.items() if c.advice]
        return (
            f"{self.faulty} of {total} lines are not UTF-8: {'; '.join(self.listed)}{more}"
            f"{''.join(advice[:LISTED])}"
        )

    def finish(self) -> None:
        """Warn about faulty lines, which are left out.

        Raises:
          error: too many lines are faulty, see `too_many`.
        """
        if too_many(self.faulty, sum(counts.lines for counts in self.counts.values())):
            raise self.error(self.message())
        if self.faulty:
            logger.warning("left out: %s", self.message())


WHITE_SPACE = " \t\n\v\f\r"
"""The characters between words."""
# Unicode's white space (\s) that is not in `WHITE_SPACE`; some of it is ASCII: \x1c to \x1f
_OTHER = re.compile(r"[^\S \t\n\v\f\r]")


def split_words(text: str) -> list[str]:
    """Split a text at ASCII white space; there are no empty words."""
    # The fast way: here `str.split` splits at the same characters.
    if text.isascii() and _OTHER.search(text) is None:
        return text.split()
    return [word.decode("utf-8", "surrogatepass") for word in _encoded(text)]


def single_spaced(text: str) -> str:
    """Return the words of a text, separated by single spaces."""
    if text.isascii() and _OTHER.search(text) is None:
        return " ".join(text.split())
    return b" ".join(_encoded(text)).decode("utf-8", "surrogatepass")


def key_and_rest(line: str) -> tuple[str, str]:
    """Split a line into its first word and the remainder, without white space around the two.

    Both are empty for a blank line.
    """
    key, *remainder = re.split(r"[ \t\n\v\f\r]+", line.strip(WHITE_SPACE), maxsplit=1)
    return key, remainder[0] if remainder else ""


def has_other_space(text: str) -> bool:
    """Return whether a text has white space besides `WHITE_SPACE`, which separates no words."""
    return _OTHER.search(text) is not None


def _encoded(text: str) -> list[bytes]:
    """Return the words of a text in UTF-8: `bytes.split` splits at `WHITE_SPACE` alone."""
    return text.encode("utf-8", "surrogatepass").split()
