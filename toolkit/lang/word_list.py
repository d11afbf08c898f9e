"""Lists of words that join the vocabulary: a file's, or the lexicon's."""

import re
from collections.abc import Collection
from pathlib import Path

from toolkit.lang.lang import LangError
from toolkit.lang.lexicon import Lexicon
from toolkit.lang.text import WordRules
from toolkit.storage.lines import TextLines
from toolkit.storage.words import split_words

_VARIANT = re.compile(r"(.+)\(\d+\)")


def read_words(path: Path, rules: WordRules) -> set[str]:
    """Read the words of a file, gzipped or not, normalised.

    A line is a word, a word with what a lexicon or a table of counts has behind it, or a count and
    a word (the form of `uniq -c`). Blank lines and those that start with `#` or `;;;` are skipped.
    What the rules divide (TWENTY-ONE) joins as its parts.

    Raises:
      LangError: the file has no word.
    """
    words: set[str] = set()
    lines = TextLines(LangError)
    for _, line in lines.read(path):
        fields = split_words(line)
        if not fields or line.startswith((";;;", "#")):
            continue
        counted = len(fields) == 2 and fields[0].isdecimal()
        word = fields[1] if counted else fields[0]
        variant = _VARIANT.fullmatch(word)
        words.update(rules.words(variant.group(1) if variant else word))
    lines.finish()
    if not words:
        raise LangError(f"{path} has no word in it; it needs one per line")
    return words


def possible_words(lexicon: Lexicon, rules: WordRules) -> Collection[str]:
    """Return the words of a lexicon that texts can have once they are normalised."""
    return [word for word in lexicon if rules.words(word) == [word]]
