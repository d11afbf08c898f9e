"""Normalisation of references and hypotheses before scoring."""

import hashlib
import re
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args

from toolkit.errors import ToolkitError
from toolkit.lang.tables import UNKNOWN
from toolkit.lang.text_policy import QUOTES, TextCounts, TextPolicy
from toolkit.storage.lines import WHITE_SPACE, read_lines, single_spaced, split_words
from toolkit.storage.reading import quoted

Rules = Literal["none", "case", "basic", "english"]
RULES: tuple[Rules, ...] = get_args(Rules)

_UNSEEN = re.compile(r"[\u00ad\u061c\u200c-\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]")
"""Characters without a glyph that separate nothing: soft hyphens, joiners and non-joiners, marks of
direction. The zero-width space separates words."""
_MAPPING = re.compile(r"(.+?)\s*=>\s*(.*)")
_CONTEXT = re.compile(r"\s*/\s*\[\s*\]\s*__\s*\[\s*\]\s*$")


class NormaliseError(ToolkitError):
    """A file of word mappings that cannot be read."""


class ScoringFilter:
    """Normalises a text: drops words, applies rules, then maps words.

    The rules are

    - none: words are compared as they are, as in Kaldi's compute-wer;
    - case: lower case, as in sclite without `-s`;
    - basic: case folded (ß is ss), without tags (see `toolkit.corpus.tags`), without punctuation
      and symbols except apostrophes inside words, and without soft hyphens, joiners, non-joiners
      and marks of direction, in Unicode's compatibility form (NFKC); the zero-width space separates
      words; for any language;
    - english: those of the toolkit's own lexicon and language models (see
      `toolkit.lang.text_policy.TextPolicy`): A to Z and the apostrophe are kept, hyphens separate
      words, and all else, tags and words with digits included, is removed and counted.

    Args:
      rules: one of `RULES`.
      drop: words to remove before anything else, regardless of case, such as `<UNK>` and
        `[noise]`; Kaldi's recipes do this with a `wer_output_filter`.
      mapping: a file of words to replace by others, see `WordMap`.
      drop_hyphens: remove hyphens before the rules, like `DH` of sclite's `-c`: e-mail is email.

    Raises:
      NormaliseError: an entry of `drop` is not one word, or the file cannot be read.
    """

    def __init__(
        self,
        rules: Rules = "none",
        drop: Sequence[str] = (),
        mapping: Path | None = None,
        drop_hyphens: bool = False,
    ) -> None:
        if rules not in RULES:
            raise ValueError(f"rules must be one of {', '.join(RULES)}, not {rules!r}")
        self._rules = rules
        self._drop_hyphens = drop_hyphens
        self._policy = TextPolicy()
        self._counts = TextCounts()
        for word in drop:
            if len(split_words(word)) != 1:
                raise NormaliseError(
                    f"{quoted(word)} is not one word to drop: give each word separately. To remove "
                    "a sequence of words, write a line `FROM WORDS =>` in a file of replacements"
                )
        self._drop = frozenset(word.strip(WHITE_SPACE).casefold() for word in drop)
        self._map = WordMap.read(mapping, self._apply) if mapping is not None else None
        self.name = self._named(drop)
        """Describes the normalisation in full, to be printed with the error rate."""

    def _named(self, drop: Sequence[str]) -> str:
        """Return the name of the normalisation, with the versions of its rules."""
        versions = {"none": "none", "case": "case-1", "basic": "basic-5"}
        name = versions.get(self._rules, f"{self._policy.id}+tags-1")
        if self._drop_hyphens:
            name += " without hyphens"
        if drop:
            name += f" without {' '.join(sorted(set(drop)))}"
        return f"{name} mapped by {self._map.name}" if self._map else name

    def __call__(self, text: str) -> str:
        """Return the normalised text, its words separated by single spaces."""
        words = split_words(text)
        if self._drop:
            words = [word for word in words if word.casefold() not in self._drop]
        text = self._apply(" ".join(words))
        return self._map(text) if self._map else text

    def _apply(self, text: str) -> str:
        """Apply the rules to a text."""
        if self._drop_hyphens:
            text = single_spaced(text.replace("-", ""))
        if self._rules == "none":
            return text
        if self._rules == "case":
            return text.lower()
        if self._rules == "basic":
            return basic(text, self._counts)
        words = self._policy.words(text, self._counts)
        return " ".join(word for word in words if word != UNKNOWN)

    def remarks(self) -> list[str]:
        """Return warnings about what was removed."""
        remarks = []
        removed = self._counts.removed.copy()
        for word, count in self._counts.unknown.items():
            removed.update({letter: count * word.count(letter) for letter in set(word)})
        if removed:
            most = ", ".join(repr(c) for c, _ in removed.most_common(5))
            remarks.append(
                f"the rules {self._policy.id} removed {sum(removed.values())} characters, such as "
                f"{most}. They remove characters that are neither English letters nor punctuation, "
                "and words with digits. Numbers in digits, for instance, are not scored"
            )
        if tags := self._counts.tags + self._counts.marks:
            most = ", ".join(repr(tag) for tag, _ in tags.most_common(5))
            remarks.append(f"{sum(tags.values())} tags were removed, such as {most}")
        return remarks


def basic(text: str, counts: TextCounts | None = None) -> str:
    """Apply the rules `basic` of `ScoringFilter`; `counts` collects the tags that are removed."""
    text = TextPolicy().without_tags(text, counts)
    if not text.isascii():
        text = unicodedata.normalize("NFKC", _UNSEEN.sub("", text.translate(QUOTES)))
        text = unicodedata.normalize("NFKC", text.casefold())
    text = text.lower()
    is_kept = [False, *map(_kept, text), False]
    around = zip(text, is_kept, is_kept[1:], is_kept[2:], strict=False)
    characters = (c if keep or (c == "'" and a and b) else " " for c, a, keep, b in around)
    return " ".join("".join(characters).split())


def _kept(character: str) -> bool:
    """Return whether a character is kept: letters, marks and numbers; all others separate words."""
    return character.isalnum() or _is_mark(character)


def _is_mark(character: str) -> bool:
    """Return whether a character is a combining mark."""
    return not character.isascii() and unicodedata.category(character)[0] == "M"


class WordMap:
    """Replaces words or sequences of words by others.

    At each position the longest entry that matches is applied, once: its replacement is not mapped
    again. (NIST's rfilter1 applies the first rule of its GLM file that matches.)
    """

    def __init__(self, entries: dict[tuple[str, ...], tuple[str, ...]], name: str) -> None:
        self.name = name
        self._entries = entries
        self._lengths: dict[str, list[int]] = {}
        """Lengths of the entries by their first word, longest first."""
        for words in sorted(entries, key=lambda words: (-len(words), words)):
            lengths = self._lengths.setdefault(words[0], [])
            if len(words) not in lengths:
                lengths.append(len(words))

    @classmethod
    def read(cls, path: Path, apply: Callable[[str], str] = str) -> "WordMap":
        """Read lines of `FROM WORDS => TO WORDS`; an empty right side removes the words.

        NIST's GLM lines `[FROM] => [TO] / [ ] __ [ ]` are accepted too; `;;` begins a comment, and
        lines that begin with `*` are skipped. Alternatives (`{ A / B }`) and other contexts are not
        supported.

        Args:
          path: the file.
          apply: normalises both sides of an entry.

        Raises:
          NormaliseError: a line is malformed; the message names the file and line.
        """
        entries: dict[tuple[str, ...], tuple[str, ...]] = {}
        digest = hashlib.sha256()
        for number, line in read_lines(path, NormaliseError):
            digest.update(line.encode() + b"\n")
            line = line.split(";;")[0].strip()
            if line and not line.startswith("*"):
                _add(entries, line, apply, f"{path}:{number}")
        return cls(entries, f"{Path(path).name} (sha256 {digest.hexdigest()[:8]})")

    def __call__(self, text: str) -> str:
        """Return `text` with its words mapped."""
        words = split_words(text)
        if not any(word in self._lengths for word in words):
            return text
        mapped: list[str] = []
        at = 0
        # From left to right, the longest phrase that begins here; its result is not mapped again.
        while at < len(words):
            for length in self._lengths.get(words[at], ()):
                phrase = tuple(words[at : at + length])
                if phrase in self._entries:
                    mapped += self._entries[phrase]
                    at += length
                    break
            else:
                mapped.append(words[at])
                at += 1
        return " ".join(mapped)


def _add(
    entries: dict[tuple[str, ...], tuple[str, ...]],
    line: str,
    apply: Callable[[str], str],
    place: str,
) -> None:
    """Parse a line of replacements and add it to `entries`."""
    match = _MAPPING.fullmatch(_CONTEXT.sub("", line))
    if match is None:
        raise NormaliseError(f"{place}: expected `FROM WORDS => TO WORDS`, found {quoted(line)}")
    sides = [side.strip() for side in match.groups()]
    sides = [s[1:-1] if s.startswith("[") and s.endswith("]") else s for s in sides]
    if set("".join(sides)) & set("{}[]/"):
        raise NormaliseError(
            f"{place}: {quoted(line)}: alternatives and contexts are not supported; give one line "
            "of plain words for each"
        )
    source, target = (tuple(split_words(apply(side))) for side in sides)
    if not source:
        raise NormaliseError(
            f"{place}: the left side of {quoted(line)} is empty after normalisation"
        )
    if entries.get(source, target) != target:
        raise NormaliseError(
            f"{place}: {' '.join(source)!r} is mapped to different words in an earlier line: "
            "remove one of the two lines"
        )
    entries[source] = target
