"""excluded.tsv: the utterances that later stages leave out, and why."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from toolkit.stages.files import open_atomically

HEADER = "split\tutterance\tcopy\treason\n"


@dataclass(frozen=True, order=True)
class Exclusion:
    """One utterance to leave out."""

    split: str
    """Name of the split."""
    id: str
    """Utterance id."""
    copy: int
    """1 for the first cut of this id in the split, 2 for the second..."""
    reason: str
    """What is wrong with it."""


def write_exclusions(exclusions: Iterable[Exclusion], path: Path) -> None:
    """Write a header and one tab-separated line per exclusion, sorted."""
    with open_atomically(path) as file:
        file.write(HEADER)
        for item in sorted(exclusions):
            reason = " ".join(item.reason.split())
            file.write(f"{item.split}\t{item.id}\t{item.copy}\t{reason}\n")


def read_exclusions(path: Path, split: str) -> set[tuple[str, int]]:
    """Return the (utterance id, copy) pairs to leave out of `split`."""
    out = set()
    with open(path, encoding="utf-8") as file:
        next(file)
        for line in file:
            name, id, copy, _ = line.rstrip("\n").split("\t", 3)
            if name == split:
                out.add((id, int(copy)))
    return out
