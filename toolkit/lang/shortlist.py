"""The shortlist of a neural language model: its words, and the probabilities of all others."""

import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.lang.tables import END, START, UNKNOWN
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_json, reading

SPECIAL = (START, END, UNKNOWN)


class ShortlistError(ToolkitError):
    """A shortlist that cannot be read."""


@dataclass(frozen=True)
class Shortlist:
    """Words with an id each; all others share the probability of <UNK>.

    A word that is not in the shortlist has a fixed share of p(<UNK> | words before it), so that the
    probabilities of all words of the recogniser sum to at most 1.
    """

    words: tuple[str, ...]
    """Words by id; the first are <s>, </s> and <UNK>."""
    shares: Mapping[str, float]
    """Share of the probability of <UNK>, above 0, of the recogniser's other words."""
    smallest_share: float
    """Share of every word that is neither in `words` nor in `shares`."""

    @classmethod
    def of(
        cls, counts: Mapping[str, int], vocabulary: Collection[str], size: int | None
    ) -> "Shortlist":
        """Choose the most frequent words of a text; words of equal counts are sorted.

        The shares of all others are proportional to their count plus one, so that words that are
        not in the text have a share, too.

        Args:
          counts: counts of all words of the text.
          vocabulary: the recogniser's words; others are never in the shortlist.
          size: largest number of words; None takes all that occur.
        """
        in_vocabulary = set(vocabulary) - set(SPECIAL)
        ranked = sorted(in_vocabulary & counts.keys(), key=lambda word: (-counts[word], word))[
            :size
        ]
        unlisted = in_vocabulary.difference(ranked)
        # Add-one smoothing over the unlisted words and one class for all unknown words.
        tokens = sum(counts.values()) - sum(counts[word] for word in ranked)
        total = tokens + len(unlisted) + 1
        shares = {word: (counts.get(word, 0) + 1) / total for word in sorted(unlisted)}
        return cls((*SPECIAL, *ranked), shares, 1 / total)

    @classmethod
    def load(cls, path: Path) -> "Shortlist":
        """Read what `save` wrote.

        Raises:
          ShortlistError: the file is missing or damaged.
        """
        schema = {"words": [str], "shares": {str: float}, "smallest_share": float}
        with reading(path, ShortlistError, "train the language model again"):
            content = read_json(path, schema)
            if tuple(content["words"][:3]) != SPECIAL or len(set(content["words"])) < len(
                content["words"]
            ):
                raise ValueError("words that occur twice, or without <s>, </s>, <UNK>")
            if not all(
                0 < s <= 1 for s in (*content["shares"].values(), content["smallest_share"])
            ):
                raise ValueError("shares that are not above 0 and at most 1")
        return cls(tuple(content["words"]), content["shares"], content["smallest_share"])

    def save(self, path: Path) -> None:
        """Write as JSON."""
        content = {
            "words": self.words,
            "shares": self.shares,
            "smallest_share": self.smallest_share,
        }
        write_atomically(path, json.dumps(content, ensure_ascii=False, indent=0) + "\n")

    def ids(self, words: Iterable[str]) -> list[int]:
        """Return the id of every word, that of <UNK> for one outside the shortlist."""
        unknown = SPECIAL.index(UNKNOWN)
        return [self._ids.get(word, unknown) for word in words]

    def log_shares(self, words: Iterable[str]) -> list[float]:
        """Return the natural logarithm of every word's share: 0 for those with an id."""
        return [
            0.0 if word in self._ids else math.log(self.shares.get(word, self.smallest_share))
            for word in words
        ]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}
