"""The one rule by which lines and transcripts are split into words: at ASCII white space.

Kaldi, sclite and awk split at the same six characters. Unicode's other spaces (no-break space,
ideographic space, line separators) are part of a word, as they are for those programs.
"""

import re

WHITE_SPACE = " \t\n\v\f\r"
"""The characters between words."""
_OTHER = re.compile(r"[^\S \t\n\v\f\r]")


def split_words(text: str) -> list[str]:
    """Split a text at ASCII white space; there are no empty words."""
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
    """Whether a text has white space that separates no words: any that is not ASCII's."""
    return _OTHER.search(text) is not None


def _encoded(text: str) -> list[bytes]:
    return text.encode("utf-8", "surrogatepass").split()
