"""What lies in a run directory, as far as it can be read: a page shows unfinished runs too."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.stages.directory import RunDirectory


class ReportError(ToolkitError):
    """A folder that holds no run."""


@dataclass
class RunFolder:
    """The files of a run; one that cannot be read counts as not there and is remembered."""

    root: Path
    problems: list[str] = field(default_factory=list)
    """What could not be read, for the page's end."""

    @classmethod
    def open(cls, root: Path) -> "RunFolder":
        """Return the run in a folder.

        Raises:
          ReportError: there is no such folder, or no stage was ever begun in it.
        """
        root = Path(root)
        if not root.is_dir():
            raise ReportError(f"{root} is not a folder: name the run directory, exp/<profile>")
        if not (root / "stages").is_dir() and not (root / "data").is_dir():
            raise ReportError(
                f"{root} is not a run directory: it has neither stages/ nor data/; "
                "a recipe's run.py makes one, by default exp/<profile> in its folder"
            )
        return cls(root.absolute())

    @property
    def directory(self) -> RunDirectory:
        """The runner's view of it."""
        return RunDirectory(self.root)

    def name(self, path: Path) -> str:
        """Return a path as the page names it: below the run directory, or below `.partial/NN`."""
        parts = path.relative_to(self.root).parts
        return "/".join(parts[2:] if parts[0] == ".partial" else parts)

    def find(self, pattern: str) -> list[Path]:
        """Return the files that fit a pattern, those of unfinished stages included.

        What a finished stage has published comes before a new attempt at the same.
        """
        finished = sorted(self.root.glob(pattern))
        return finished + sorted(self.root.glob(f".partial/[0-9]*/{pattern}"))

    def text(self, path: str | Path) -> str | None:
        """Return a file's text, None when there is none."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            self.note(self.root / path, error)
            return None

    def json(self, path: str | Path) -> Any:
        """Return what a JSON file holds, None when it is not there or damaged."""
        text = self.text(path)
        if text is None:
            return None
        try:
            return json.loads(text)
        except ValueError as error:
            self.note(self.root / path, error)
            return None

    def table(self, path: str | Path) -> list[dict[str, str]]:
        """Return the rows of a tab-separated file with a head; nothing when it is not there."""
        lines = (self.text(path) or "").splitlines()
        if not lines:
            return []
        head = lines[0].split("\t")
        rows = [line.split("\t") for line in lines[1:] if line]
        return [dict(zip(head, row, strict=False)) for row in rows if len(row) == len(head)]

    def note(self, path: Path, error: Exception | str) -> None:
        """Remember a file that cannot be read."""
        path = Path(path)
        name = path.relative_to(self.root) if path.is_relative_to(self.root) else path
        self.problems.append(f"{name}: {error}")
