"""Counts of disturbances over all calls, in a small JSON file, and their table."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from toolkit.storage.files import write_atomically

OVER = "over"
"""A fault that found the stage at its end already, or that the stage did not come to feel."""
FAILED = "failed"
"""A trial that ended otherwise than it should, whatever its faults were."""


@dataclass
class Counts:
    """Counts of all trials so far."""

    faults: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    """By recipe, stage and kind of fault."""
    compared: dict[str, int] = field(default_factory=dict)
    """Trials by recipe; each ends by comparing."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Total processor time of a recipe's trials."""
    durations: dict[str, dict[str, float]] = field(default_factory=dict)
    """Seconds that a stage takes undisturbed."""
    seeds: dict[str, list[int]] = field(default_factory=dict)
    """By recipe."""
    failures: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> "Counts":
        """Return the counts in a file, or empty ones if it does not exist."""
        return cls(**json.loads(path.read_text())) if path.exists() else cls()

    def write(self, path: Path) -> None:
        """Write the counts atomically."""
        write_atomically(path, json.dumps(asdict(self), indent=1) + "\n")

    def add(self, recipe: str, stage: int, kind: str) -> None:
        """Count a fault."""
        of_stage = self.faults.setdefault(recipe, {}).setdefault(str(stage), {})
        of_stage[kind] = of_stage.get(kind, 0) + 1

    def interruptions(self, recipe: str, stage: int) -> int:
        """Return how often a stage was disturbed."""
        of_stage = self.faults.get(recipe, {}).get(str(stage), {})
        return sum(count for kind, count in of_stage.items() if kind not in (OVER, FAILED))

    def of(self, recipe: str, stage: int, kind: str) -> int:
        """Return how often a fault of one kind disturbed a stage."""
        return self.faults.get(recipe, {}).get(str(stage), {}).get(kind, 0)

    def used(self, recipe: str, seed: int) -> None:
        """Record a seed."""
        seeds = self.seeds.setdefault(recipe, [])
        self.seeds[recipe] = sorted({*seeds, seed})

    def next_stage(self, stages: Iterable[tuple[str, int]]) -> tuple[str, int]:
        """Return the first of those (recipe, stage) that were disturbed, or failed, least."""
        return min(stages, key=lambda each: self.interruptions(*each) + self.of(*each, FAILED))

    def next_kinds(self, recipe: str, stage: int, kinds: Sequence[str], number: int) -> list[str]:
        """Return the kinds of faults that a stage has had least, the first of `kinds` first."""
        return sorted(kinds, key=lambda kind: self.of(recipe, stage, kind))[:number]

    def table(self, stages: dict[str, list[int]], kinds: Sequence[str]) -> str:
        """Return the table of the documentation: a row for each recipe, and one of all.

        Args:
          stages: of each recipe.
          kinds: of faults, in the order of the columns.
        """
        heads = ("recipe", "seeds", "stages", "least per stage", *kinds, "in all", "compared")
        heads += ("failures", "processor time, s")
        lines = [f"| {' | '.join(heads)} |", "|---|---|" + "---:|" * (len(heads) - 2)]
        rows = []
        for recipe, numbers in stages.items():
            least = min(self.interruptions(recipe, n) for n in numbers)
            by_kind = [sum(self.of(recipe, n, kind) for n in numbers) for kind in kinds]
            failed = sum(text.startswith(f"{recipe} ") for text in self.failures)
            seeds = ", ".join(map(str, self.seeds.get(recipe, [])))
            compared = self.compared.get(recipe, 0)
            seconds = round(self.seconds.get(recipe, 0))
            rows.append([len(numbers), least, *by_kind, sum(by_kind), compared, failed, seconds])
            lines.append(f"| {recipe} | {seeds} | {' | '.join(map(str, rows[-1]))} |")
        columns = list(zip(*rows, strict=True))
        total = [sum(columns[0]), min(columns[1]), *map(sum, columns[2:])]
        lines.append(f"| all | | {' | '.join(map(str, total))} |")
        return "\n".join(lines)
