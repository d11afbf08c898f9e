"""Transcripts in icefall's files of results, `recogs-*.txt`: two lines of each cut.

1089-134686-0000-0:	ref=['HE', 'HOPED']
1089-134686-0000-0:	hyp=['HE', 'HOPES']
"""

import ast
import re
from collections.abc import Sequence
from pathlib import Path

from toolkit.score.lines import Side, TranscriptError
from toolkit.storage.reading import quoted
from toolkit.storage.words import split_words

_LINE = re.compile(r"(\S[^\t]*):\t(\w+)=(.*)")
"""Name of a cut, what the line has of it (`timestamp_hyp` too), and its value in Python."""


def is_recogs(lines: Sequence[str]) -> bool:
    """Whether all lines, which are not blank, are of such a file."""
    matches = (_LINE.fullmatch(line) for line in lines)  # of a long text the first line decides
    return bool(lines) and all(match and match[3][:1] in "[(" for match in matches)


def recogs_texts(path: Path, lines: Sequence[tuple[int, str]], side: Side) -> dict[str, str]:
    """Return the references or the hypotheses of such a file by the names of their cuts.

    Args:
      path: for messages.
      lines: (number, line), without blank ones.
      side: which of them.

    Raises:
      TranscriptError: a line is malformed, or names a cut a second time; the message names it.
    """
    texts: dict[str, str] = {}
    for number, line in lines:
        match = _LINE.fullmatch(line)
        if match is None:
            raise TranscriptError(f"{path}:{number}: neither `name:<tab>ref=[...]` nor `hyp=[...]`")
        name, key, value = match.groups()
        if key != side:
            continue
        if name in texts:
            raise TranscriptError(f"{path}:{number}: {quoted(name)} has a second {side}")
        texts[name] = " ".join(_words(f"{path}:{number}", value))
    return texts


def _words(place: str, value: str) -> list[str]:
    try:
        words = ast.literal_eval(value)  # literals alone: nothing is executed
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise TranscriptError(f"{place}: {value[:40]!r} is no list of words") from error
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise TranscriptError(f"{place}: {value[:40]!r} is no list of words")
    return [part for word in words for part in split_words(word)]
