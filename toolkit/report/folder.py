"""Tolerant reading of a run directory: unfinished and partly damaged runs can be shown too."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from toolkit.errors import ToolkitError
from toolkit.stages.directory import RunDirectory
from toolkit.storage.reading import DAMAGE_ERRORS, regular

DAMAGE = (ToolkitError, *DAMAGE_ERRORS)
"""Exceptions that reading damaged files may raise."""

T = TypeVar("T")


class ReportError(ToolkitError):
    """A folder that holds no run."""


@dataclass
class RunFolder:
    """The files of a run; a file that cannot be read counts as missing and is noted."""

    root: Path
    problems: list[str] = field(default_factory=list)
    """Files that could not be read, with reasons, for the end of the page."""

    @classmethod
    def open(cls, root: Path) -> "RunFolder":
        """Return the run in a folder.

        Raises:
          ReportError: the folder does not exist, or no stage was ever started in it.
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
        """The run directory as the runner sees it."""
        return RunDirectory(self.root)

    def name(self, path: Path) -> str:
        """Return a path relative to the run directory, or to `.partial/NN`, to show on the page."""
        parts = path.relative_to(self.root).parts
        return "/".join(parts[2:] if parts[0] == ".partial" else parts)

    def find(self, pattern: str) -> list[Path]:
        """Return the files that match a pattern, those of unfinished stages included.

        Files of finished stages come before those of unfinished ones.
        """
        finished = sorted(self.root.glob(pattern))
        return finished + sorted(self.root.glob(f".partial/[0-9]*/{pattern}"))

    def text(self, path: str | Path) -> str | None:
        """Return a file's text, None when there is none."""
        try:
            return regular(self.root / path).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            self.note(self.root / path, error)
            return None

    def json(self, path: str | Path) -> Any:
        """Return the content of a JSON file, None when it is missing or damaged."""
        text = self.text(path)
        if text is None:
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:  # damaged, or nested too deep
            self.note(self.root / path, error)
            return None

    def table(self, path: str | Path) -> list[dict[str, str]]:
        """Return the rows of a tab-separated file with a header; none when it is missing."""
        lines = (self.text(path) or "").splitlines()
        if not lines:
            return []
        head = lines[0].split("\t")
        rows = [line.split("\t") for line in lines[1:] if line]
        return [dict(zip(head, row, strict=False)) for row in rows if len(row) == len(head)]

    def part(self, make: Callable[[], T], otherwise: T) -> T:
        """Return what `make` makes of the run's files, `otherwise` when they are damaged."""
        try:
            return make()
        except DAMAGE as error:
            problem = f"a part of the page could not be made: {type(error).__name__}: {error}"
            self.problems.append(problem)
            return otherwise

    def note(self, path: Path, error: Exception | str) -> None:
        """Note a file that cannot be read."""
        path = Path(path)
        name = path.relative_to(self.root) if path.is_relative_to(self.root) else path
        self.problems.append(f"{name}: {error}")
