"""Reads text of language models as sentences."""

import glob
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from toolkit.errors import ToolkitError
from toolkit.storage.lines import TextLines


class TextError(ToolkitError):
    """Text that is missing or cannot be read."""


def text_files(source: Path) -> list[Path]:
    """List the files that `source` names, in sorted order.

    Args:
      source: a file, a folder (its *.txt and *.txt.gz, at any depth) or a glob pattern.

    Raises:
      TextError: there is no file.
    """
    source = Path(source)
    if source.is_file():
        return [source]
    if source.is_dir():
        paths = [p for p in source.rglob("*") if p.name.endswith((".txt", ".txt.gz"))]
        problem = "no .txt or .txt.gz file in the folder"
    else:
        paths = [Path(p) for p in glob.glob(str(source), recursive=True)]
        problem = "no file, folder or pattern matches"
    files = sorted(p for p in paths if p.is_file())
    if not files:
        raise TextError(f"language model text: {problem} {source}")
    return files


class WordRules(Protocol):
    """Rules that turn a text into words."""

    def words(self, text: str, /) -> list[str]:
        """Return the words of a text."""


def read_sentences(source: Path, rules: WordRules) -> Iterator[list[str]]:
    """Yield the words of every line of `source` that has words (see `text_files`).

    Raises:
      TextError: a file cannot be read, or too many lines are not UTF-8; a few are skipped with a
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
