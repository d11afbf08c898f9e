"""excluded.tsv: the utterances that later stages leave out, and why."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.storage.files import open_atomically
from toolkit.storage.paths import places_of
from toolkit.storage.reading import reading

HEADER = "split\tutterance\tcopy\treason\n"


class ExclusionError(ToolkitError):
    """A list of excluded utterances that cannot be read."""


@dataclass(frozen=True, order=True)
class Exclusion:
    """One utterance to leave out."""

    split: str
    """Name of the split."""
    id: str
    """Utterance id."""
    copy: int
    """1 for the first cut of this id in the split, 2 for the second, and so on."""
    reason: str
    """Why it is left out."""


def write_exclusions(exclusions: Iterable[Exclusion], path: Path) -> None:
    """Write a header and one tab-separated line per exclusion, sorted.

    Paths in reasons are written as in manifests: later stages read this file, and a move must not
    change it.
    """
    places = places_of(path)
    with open_atomically(path) as file:
        file.write(HEADER)
        for item in sorted(exclusions):
            reason = " ".join(item.reason.split())
            reason = places.names_in(reason) if places else reason
            file.write(f"{item.split}\t{item.id}\t{item.copy}\t{reason}\n")


def read_exclusions(path: Path, split: str) -> set[tuple[str, int]]:
    """Return the (utterance id, copy) pairs to leave out of `split`.

    Raises:
      ExclusionError: the file is missing or damaged; the message names it and the line.
    """
    out = set()
    with reading(path, ExclusionError, "run the check again"), open(path, encoding="utf-8") as file:
        if file.readline() != HEADER:
            raise ValueError("its first line does not name the columns")
        for number, line in enumerate(file, start=2):
            fields = line.rstrip("\n").split("\t", 3)
            if len(fields) != 4 or not fields[2].isdecimal():
                raise ValueError(f"line {number} is not `split utterance copy reason`")
            if fields[0] == split:
                out.add((fields[1], int(fields[2])))
    return out
