"""NIST's grammar of transcripts: alternatives, words that may be left out, word fragments.

    { a / b c / @ } d     a, or b c, or nothing; then d. Alternatives may hold alternatives.
    @                     no word
    (uh)                  with `Grammar.optional`: the word uh, which may be left out
    wo-   -rd             with `Grammar.fragments`: any word that begins or ends like this
    word*                 word (a mark of mispronunciation)
    word;tag              word (tags follow a semicolon)

The rules are those of sclite, which reads references and hypotheses in the same way.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from toolkit.errors import ToolkitError
from toolkit.storage.reading import quoted
from toolkit.storage.words import WHITE_SPACE, split_words

NO_WORD = "@"
_MARKED = re.compile(r"[{}@;*]")
_WORD = re.compile(rf"[^{WHITE_SPACE}]+")
_PART = re.compile(rf"[{{}}/]|[^{WHITE_SPACE}{{}}/]+")


_DEEPEST = 50
"""Alternatives within alternatives; more are taken for damage."""


class GrammarError(ToolkitError):
    """A transcript in which braces do not match."""


@dataclass(frozen=True)
class Grammar:
    """What marks in a transcript mean beyond alternatives."""

    fragments: bool = False
    """A word with a hyphen at its end or beginning matches the words that begin or end like it, as
    in sclite with -F."""
    optional: bool = False
    """A word in parentheses may be left out, as in sclite with -D."""

    def marks(self, text: str) -> bool:
        """Whether anything in a text may mean more than words as they are."""
        return (
            _MARKED.search(text) is not None
            or (self.optional and "(" in text)
            or (self.fragments and "-" in text)
        )

    def is_optional(self, word: str) -> bool:
        """Whether a word may be left out."""
        return self.optional and len(word) > 2 and word[0] == "(" and word[-1] == ")"

    def spoken(self, word: str) -> str:
        """Return a word without the parentheses of one that may be left out."""
        return word[1:-1] if self.is_optional(word) else word


@dataclass(frozen=True)
class Choice:
    """One of several sequences of words and choices."""

    alternatives: tuple["Items", ...]


Items = Sequence["str | Choice"]
"""A parsed transcript, or an alternative of it."""


def parse(text: str) -> Items:
    """Parse a transcript; alternatives without a word are dropped, as in sclite.

    Raises:
      GrammarError: a brace has no counterpart, stands inside a word, or encloses no word.
    """
    tokens = list(_tokens(text))
    (items,), _ = _alternatives(tokens, 0, nested=False)
    return items


def _tokens(text: str) -> Iterator[str]:
    """Yield words and braces, and within braces the slashes; braces are balanced."""
    depth, at = 0, 0
    while match := (_WORD if depth == 0 else _PART).search(text, at):
        token, at = match[0], match.end()
        if depth == 0 and token[0] == "{":
            token, at = "{", match.start() + 1
        elif (depth == 0 and set(token) & set("{}")) or (
            token not in ("{", "}", "/") and text[at : at + 1] == "{"
        ):
            raise GrammarError(
                f"{quoted(text.strip())}: a brace without a counterpart or inside the word "
                f"{quoted(token)}"
            )
        depth += (token == "{") - (depth > 0 and token == "}")
        if depth > _DEEPEST:
            raise GrammarError(f"alternatives within alternatives, more than {_DEEPEST} deep")
        yield token
    if depth:
        raise GrammarError(f"{quoted(text.strip())}: a {{ without its }}")


def _alternatives(tokens: Sequence[str], at: int, nested: bool) -> tuple[Sequence[Items], int]:
    """Read alternatives from token `at` to the brace that closes them; return where it ends."""
    found: list[list[str | Choice]] = [[]]
    while at < len(tokens):
        token = tokens[at]
        at += 1
        if nested and token == "}":
            break
        if nested and token == "/":
            found.append([])
        elif token == "{":
            inner, at = _alternatives(tokens, at, nested=True)
            filled = tuple(items for items in inner if items)
            if not filled:
                shown = quoted(" ".join(tokens))
                raise GrammarError(f"{shown}: braces without a word: write @ for none")
            found[-1].append(Choice(filled))
        else:
            found[-1].append(_unmarked(token))
    return found, at


def _unmarked(word: str) -> str:
    """Remove the tags of a word, and the mark of mispronunciation."""
    word = word.partition(";")[0] or word
    return word[:-1] if len(word) > 1 and word[-1] == "*" else word


def mapped(items: Items, apply: Callable[[str], str], grammar: Grammar) -> Items:
    """Apply a normalisation to the words between braces; an alternative without words becomes @."""
    found: list[str | Choice] = []
    run: list[str] = []

    def finish() -> None:
        found.extend(split_words(apply(" ".join(run))) if run else ())
        run.clear()

    for item in items:
        if isinstance(item, Choice):
            finish()
            parts = (mapped(part, apply, grammar) or [NO_WORD] for part in item.alternatives)
            found.append(Choice(tuple(parts)))
        elif item == NO_WORD:
            finish()
            found.append(item)
        elif grammar.is_optional(item):
            finish()
            for whole in split_words(apply(item)):  # rules may name it with its parentheses
                own = [whole]
                if grammar.is_optional(whole):
                    own = [f"({word})" for word in split_words(apply(whole[1:-1]))]
                found += own
        else:
            run.append(item)
    finish()
    return found
