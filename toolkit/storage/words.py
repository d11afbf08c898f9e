"""Splitting of lines and transcripts into words, at ASCII white space.

Kaldi, sclite and awk split at the same six characters. Unicode's other spaces (no-break space,
ideographic space, line separators) are part of a word, as they are for those programs. Everything
in the toolkit that splits text follows this rule.
"""

import re

WHITE_SPACE = " \t\n\v\f\r"
"""The characters between words."""
# White space of Unicode's (\s) that is none of `WHITE_SPACE`; ASCII has it too: \x1c to \x1f
_OTHER = re.compile(r"[^\S \t\n\v\f\r]")


def split_words(text: str) -> list[str]:
    """Split a text at ASCII white space; there are no empty words."""
    # The fast way, where `str.split` splits at the same characters
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
    """Whether a text has white space other than `WHITE_SPACE`, which does not separate words."""
    return _OTHER.search(text) is not None


def _encoded(text: str) -> list[bytes]:
    """Return the words of a text in UTF-8: `bytes.split` splits at `WHITE_SPACE` alone."""
    return text.encode("utf-8", "surrogatepass").split()
