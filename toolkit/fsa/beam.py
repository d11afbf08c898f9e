"""Beams: how much of the search space a search keeps."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import ToolkitError

MOST_ACTIVE = 2**31 - 1


class GraphMismatchError(ToolkitError):
    """The graph and the acoustic model do not belong together."""

    @classmethod
    def check(cls, top_label: int, columns: int, graph: Path | str = "the graph") -> None:
        """Check that every label has a column in the scores.

        Args:
          top_label: the graph's highest label.
          columns: P of the scores.
          graph: what the message calls the graph, such as its file.

        Raises:
          GraphMismatchError: it has none: the search would read beyond the scores.
        """
        if top_label > columns:
            raise cls(
                f"{graph} has {top_label} pdfs, the acoustic model {columns}: they come from"
                " different runs; make the graph again with this model's topology"
            )


@dataclass(frozen=True)
class Beam:
    """How much of the search space is kept."""

    search: float = 15.0
    """Score below the best partial path at which a path is dropped, in scaled log units."""
    output: float = 6.0
    """Score below the best path within which the lattice keeps alternatives."""
    min_active: int = 30
    """States per frame below which the beam widens by a quarter with every frame."""
    max_active: int = 4000
    """States per frame beyond which the beam narrows by a fifth with every frame, until there are
    fewer: a frame may keep some more."""

    def __post_init__(self) -> None:
        if not (self.search > 0 and self.output > 0):
            raise ValueError("beams must be positive")
        if math.isinf(self.search):
            raise ValueError("search is infinite, which max_active could not narrow; try 100")
        if not 0 < self.min_active < self.max_active:
            raise ValueError("need 0 < min_active < max_active")
        if self.max_active > MOST_ACTIVE:
            raise ValueError(f"max_active must be at most {MOST_ACTIVE}")

    def widened(self, factor: float) -> "Beam":
        """The same beam, `factor` times as wide: for a second try; its numbers are kept valid."""
        fewest = min(max(int(self.min_active * factor), 1), MOST_ACTIVE - 1)
        most = min(max(int(self.max_active * factor), fewest + 1), MOST_ACTIVE)
        return Beam(self.search * factor, self.output, fewest, most)

    def with_retries(self, factors: Iterable[float]) -> list["Beam"]:
        """This beam, then the same widened by each of `factors`.

        Raises:
          ValueError: a factor that is not positive and finite.
        """
        factors = tuple(factors)
        if not all(0 < factor < math.inf for factor in factors):
            raise ValueError(f"retries are {factors}, need to be positive factors")
        return [self, *(self.widened(factor) for factor in factors)]
