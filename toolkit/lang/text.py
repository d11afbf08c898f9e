"""Text of language models and transcripts: reading files, and the normalisation of both."""

import glob
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from toolkit.corpus.tags import is_tag
from toolkit.errors import ToolkitError
from toolkit.storage.lines import TextLines


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
_MARKS = re.compile(r"((?<![^\W_])[^\W_]+|)('+)(?=([^\W_]*)((?:'[^\W_]+)*))")
"""Apostrophes with the letters on both sides, and the parts of the word behind them (TISN, 'T)."""


def without_quotes(text: str, lexicon: Collection[str] = frozenset()) -> str:
    """Return English text without the apostrophes, and backticks, that are quotation marks.

    Those are two or more in a row; one before a word, unless the word is of `ELISIONS` or the
    lexicon has it with the apostrophe; one behind punctuation; and behind a word the next one after
    an opening one, unless it may belong to the word (BOYS', GOIN').
    """
    text = unicodedata.normalize("NFC", text.translate(QUOTES))  # é is a letter
    kept: list[str] = []
    done = 0
    opened = -1  # where the word begins before which an opening mark stands
    for found in _MARKS.finditer(text):
        before, marks, behind, more = found.groups()
        apostrophe = len(marks) == 1 and bool(before)
        if not before and behind:
            whole = f"'{behind}{more}".upper()
            apostrophe = behind.upper() in ELISIONS or whole in lexicon
            opened = found.end() if len(marks) == 1 + apostrophe else opened
        elif apostrophe and not behind and opened >= 0:
            apostrophe = found.start() != opened and before.lower().endswith(("s", "n"))
            opened = opened if apostrophe else -1
        elif not apostrophe:
            opened = -1
        kept += [text[done : found.end() - len(marks)], "'" if apostrophe else " "]
        done = found.end()
    return "".join([*kept, text[done:]])


def known_edges(word: str, lexicon: Collection[str]) -> str:
    """Return a word with those apostrophes at its edges with which the lexicon has it.

    Of several such words that with most of them; where there is none, the word without any.
    """
    inner = word.strip("'")
    before, behind = ("'" if word[edge] == "'" else "" for edge in (0, -1))
    spellings = (f"{before}{inner}{behind}", f"{before}{inner}", f"{inner}{behind}")
    return next((spelling for spelling in spellings if spelling in lexicon), inner)


def split_clitics(word: str, lexicon: Collection[str]) -> list[str]:
    """Split a word that the lexicon lacks at its clitics: M'APPELLE into M' and APPELLE.

    As in the Montreal Forced Aligner a clitic is an entry of the lexicon that ends with the
    apostrophe (M', QU') or begins with it ('S). Clitics are taken off until the lexicon has what
    remains, those before the word first; what remains need not be known. Unlike there the longest
    clitic comes first, and hyphens, which separate words in any case, are no matter here.
    """
    before: list[str] = []
    behind: list[str] = []
    while word not in lexicon:
        marks = [place for place, letter in enumerate(word) if letter == "'"]
        ends = [mark + 1 for mark in reversed(marks) if word[mark:].strip("'")]
        begins = [mark for mark in marks if word[:mark].strip("'")]
        if end := next((end for end in ends if word[:end] in lexicon), None):
            before.append(word[:end])
            word = known_edges(word[end:], lexicon)
        elif begin := next((begin for begin in begins if word[begin:] in lexicon), None):
            behind.insert(0, word[begin:])
            word = known_edges(word[:begin], lexicon)
        else:
            break
    return [*before, word, *behind]


class Normaliser:
    """Turns written English into spoken words of A to Z and the apostrophe, in upper case.

    Accents are dropped (NFKD), hyphens, punctuation and quotation marks (`without_quotes`) separate
    words, the titles MR, MRS and DR are spelled out (the form of LibriSpeech's transcripts), and
    every other character (digits, other alphabets, symbols) is removed and counted in `removed`.
    Normalising twice changes nothing.
    """

    id = "english-upper-2"
    """Identifies these rules wherever their output is stored; other rules need another id."""

    def __init__(self, lexicon: Collection[str] = frozenset(), split_clitics: bool = False) -> None:
        """Take the words that have pronunciations, for rules that ask for them (`uses_lexicon`).

        Args:
          lexicon: the words, as these rules write them; empty where there is no lexicon.
          split_clitics: split words that the lexicon lacks at its clitics, see `split_clitics`.
        """
        self.removed: Counter[str] = Counter()
        self.split: Counter[str] = Counter()
        """Words that were split at clitics."""
        self._lexicon = lexicon
        self._split_clitics = split_clitics

    uses_lexicon = False
    """Whether the rules ask which words the lexicon has."""

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

    def _as_in_lexicon(self, word: str) -> list[str]:
        """Return a word with those apostrophes at its edges that the lexicon has, or its parts."""
        if "'" not in word or word in self._lexicon:
            return [word]
        word = known_edges(word, self._lexicon)
        parts = split_clitics(word, self._lexicon) if self._split_clitics else [word]
        if len(parts) > 1:
            self.split[word] += 1
        return parts

    def __call__(self, text: str) -> str:
        """Return `text` normalised, its words separated by single spaces."""
        return " ".join(self.words(text))


class FirstNormaliser(Normaliser):
    """The rules of runs and bundles before 2026-11-28: apostrophes that quote stay with words."""

    id = "english-upper-1"

    def _unquoted(self, text: str) -> str:
        return text


class ThirdNormaliser(Normaliser):
    """The rules of `Normaliser`; and an apostrophe at the edge of a word stays for a reason only.

    The lexicon has the word with it (DOGS', 'TIS). Without a lexicon the reason is the spelling:
    one behind S or N (DOGS', GOIN') or behind a word of `CUT_WORDS`, and one before a word of
    `ELISIONS`. Words are split at clitics if that is asked for, see `split_clitics`.
    """

    id = "english-upper-3"
    uses_lexicon = True

    def _unquoted(self, text: str) -> str:
        return without_quotes(text, self._lexicon)

    def _words(self, text: str, keep_foreign: bool) -> list[str]:
        words = []
        for word in super()._words(text, keep_foreign):
            parts = self._as_in_lexicon(word) if self._lexicon else [_spelled_edges(word)]
            words += [TITLES.get(part, part) for part in parts]
        return words


def _spelled_edges(word: str) -> str:
    """Return a word with those apostrophes at its edges that English spells."""
    inner = word.strip("'")
    if word == inner:
        return word
    before = "'" if word[0] == "'" and inner in ELISIONS else ""
    is_cut = inner[-1] in "SN" or inner in CUT_WORDS
    return before + inner + ("'" if word[-1] == "'" and is_cut else "")


CUT_WORDS = frozenset({"MO", "O", "OL", "T", "TH", "WI"})
"""What English has words of with an apostrophe behind it, beside those in S and N."""


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
