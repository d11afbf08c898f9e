"""What a small transducer says, by enumeration."""

from itertools import pairwise

from toolkit.fsa.fst import Fst


def words_of(fst: Fst) -> list[tuple[int, ...]]:
    """The words of every arc."""
    words, splits = fst.words.tolist(), fst.splits.tolist()
    return [tuple(words[a:b]) for a, b in pairwise(splits)]
