"""Characters as output units of CTC models (A16)."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from string import ascii_lowercase

from toolkit.lang.policy import AS_GIVEN, TextPolicy
from toolkit.lang.text import in_upper_case
from toolkit.lang.units.units import BLANK, UnitsError, check_labels, write_symbols
from toolkit.storage.words import WHITE_SPACE, split_words

SPACE = " "
SEPARATOR = "_"
MORE_SEPARATORS = tuple(map(chr, range(0x2400, 0x2427)))
"""Pictures of control characters, which stand in for the separator where texts have that."""
ENGLISH = (*ascii_lowercase, "'")


class Characters:
    """Space, letters, separator, blank, in this order; by default a to z and the apostrophe (A16).

    The separator stands between two equal letters ("co_ol"), so that no label ever follows itself
    and a network need not learn to put a blank there.

    Args:
      letters: in upper or lower case; another language's are a list that its transcripts give
        (`of_texts`), which the paper, of English, has no need of.
      policy: how text becomes words; as-given letters keep their case.
      separator: the separator.

    Raises:
      UnitsError: something among the letters is not one character, is there twice, or is white
        space or the separator.
    """

    kind = "characters"

    def __init__(
        self,
        letters: Iterable[str] = ENGLISH,
        policy: TextPolicy | None = None,
        separator: str = SEPARATOR,
    ) -> None:
        self.policy = policy
        self._as_given = policy is not None and policy.id == AS_GIVEN
        self._capitals = [SPACE, *map(self._folded, letters), separator]
        small = self._capitals if self._as_given else map(_lower, self._capitals)
        self.symbols = [*small, BLANK]
        self.size = len(self.symbols)
        self.blank = self.size - 1
        self.separator = self.blank - 1
        """Index of the separator."""
        self.space = 0
        """Index of the space, the only symbol outside words."""
        self._ids = {capital: i for i, capital in enumerate(self._capitals[: self.separator])}
        for letter in self._capitals[1 : self.separator]:
            is_space = letter in WHITE_SPACE if self._as_given else letter.isspace()
            if len(letter) != 1 or is_space or letter == separator:
                raise UnitsError(f"{letter!r} is no letter")
        if len(self._ids) < self.separator:
            raise UnitsError("a letter is among the units twice")

    @classmethod
    def of_texts(cls, texts: Iterable[str], policy: TextPolicy | None = None) -> "Characters":
        """Return the 30 symbols of English (A16), or the letters of texts that have others.

        As given, letters keep their case, and a text may have the separator as a letter: then
        another character separates.
        """
        if policy is not None and policy.id == AS_GIVEN:
            letters = {letter for text in texts for letter in "".join(split_words(text))}
            separator = next(s for s in (SEPARATOR, *MORE_SEPARATORS) if s not in letters)
            return cls(sorted(letters), policy, separator)
        letters = {_upper(letter) for text in texts for letter in "".join(text.split())}
        if letters <= set(map(_upper, ENGLISH)):
            return cls(policy=policy)
        return cls(sorted(letters), policy)

    def _folded(self, letter: str) -> str:
        return letter if self._as_given else _upper(letter)

    def encode(self, text: str) -> list[int]:
        """See `Units`."""
        ids: list[int] = []
        words = split_words(text) if self._as_given else text.split()
        for character in " ".join(words):
            index = self._ids.get(self._folded(character))
            if index is None:
                raise UnitsError(
                    f"{character!r} is not among the {self.separator - 1} letters of the units; "
                    "normalise the transcript, or choose word pieces (units.kind=bpe)"
                )
            if ids and index == ids[-1]:
                ids.append(self.separator)
            ids.append(index)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """See `Units`."""
        ids = check_labels(ids, self.blank)
        text = "".join(self._capitals[i] for i in ids if i != self.separator)
        return " ".join(split_words(text) if self._as_given else text.split())

    def save(self, folder: Path) -> None:
        """See `Units`."""
        write_symbols(self, folder)


@lru_cache(4096)
def _upper(letter: str) -> str:
    """The capital, of letters that have one (not of "ß", whose capitals are two)."""
    capital = in_upper_case(letter)
    return capital if len(capital) == 1 else letter


def _lower(capital: str) -> str:
    """The small letter of a capital, if it is one character that has this capital."""
    small = capital.lower()
    return small if len(small) == 1 and _upper(small) == capital else capital
