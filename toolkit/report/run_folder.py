"""A run directory as the report reads it, and the list of runs below a folder."""

import json
import os
import re
import textwrap
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from toolkit.errors import ToolkitError
from toolkit.score.results import Result, ResultsError, read_results
from toolkit.stages.directory import RunDirectory
from toolkit.storage.reading import DAMAGE_ERRORS, regular

DAMAGE = (ToolkitError, *DAMAGE_ERRORS)
"""Exceptions that reading damaged files may raise."""

T = TypeVar("T")


class ReportError(ToolkitError):
    """A folder is not a run directory."""


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
            raise ReportError(f"{root} is not a folder: give a run directory (exp/<profile>)")
        if not (root / "stages").is_dir() and not (root / "data").is_dir():
            raise ReportError(
                f"{root} is not a run directory: it has neither stages/ nor data/. A recipe's "
                "run.py makes a run directory, by default exp/<profile> in the recipe's folder"
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
        """Return the result of `make`, or `otherwise` if files of the run are damaged."""
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


_MARKER_NAME = re.compile(r"\d\d\.json")
LINE_WIDTH = 100


class RunsError(ToolkitError):
    """The folder of runs does not exist."""


@dataclass(frozen=True)
class Run:
    """A run directory."""

    path: str
    recipe: str
    """Name of the recipe; empty if it is not known."""
    profile: str
    stages_done: int
    ended: str
    """When the last stage ended, in ISO format; empty if none has."""
    bytes: int
    """Size of all files of the run in bytes."""
    best: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Lowest word error rate in percent, and its system, by split."""


def find_runs(folder: Path) -> list[Run]:
    """Return the runs in a folder or below it, by path.

    Links to run directories and to folders of runs are followed, for example to another disk,
    unless the runs lie below the folder too. Runs that cannot be read, or are removed meanwhile,
    are left out.

    Raises:
      RunsError: there is no such folder.
    """
    if not folder.is_dir():
        raise RunsError(f"{folder} is not a folder: give a folder that contains run directories")
    # 1. Walk the folder. Below a run there are no other runs; links are only collected.
    roots, linked = [], []
    for parent, folders, _ in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if _is_run(Path(parent)):
            roots.append(Path(parent))
            folders.clear()
        for path in (Path(parent, name) for name in folders):
            if path.is_symlink():
                linked += [path] if _is_run(path) else filter(_is_run, _folders_in(path))
    # 2. Add linked runs that are not below the folder. If several links lead to a run, use the one
    # nearest to the folder.
    real_paths = {os.path.realpath(path) for path in roots}
    for path in sorted(linked, key=lambda path: (len(path.parts), path)):
        if (real := os.path.realpath(path)) not in real_paths:
            real_paths.add(real)
            roots.append(path)
    runs = []
    for path in sorted(roots):
        with suppress(ReportError):  # the run was removed meanwhile
            runs.append(_read_run(path, _markers(path / "stages")))
    return runs


def _is_run(path: Path) -> bool:
    """Return whether a folder has markers of stages or the record of a command."""
    stages = path / "stages"
    return bool(_markers(stages)) or os.path.lexists(stages / "last_command.json")


def _folders_in(folder: Path) -> list[Path]:
    """Return the folders in a folder, sorted; none if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir())
    except OSError:
        return []


def _markers(stages: Path) -> list[Path]:
    """Return the paths of the stages' markers, sorted; none if the folder cannot be read."""
    try:
        return sorted(path for path in stages.iterdir() if _MARKER_NAME.fullmatch(path.name))
    except OSError:
        return []


def _file_size(path: str) -> int:
    """Return the size of a file in bytes; 0 if it is gone."""
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _read_run(root: Path, paths: Sequence[Path]) -> Run:
    """Read the entry of a run directory for the list of runs."""
    run = RunFolder.open(root)
    markers = [marker for path in paths if isinstance(marker := run.json(path.absolute()), dict)]
    last_command = run.json("stages/last_command.json")
    last_command = last_command if isinstance(last_command, dict) else {}
    size = sum(
        _file_size(os.path.join(parent, name))
        for parent, _, names in os.walk(root)
        for name in names
    )
    return Run(
        str(root),
        _string(last_command.get("recipe")),
        _string(last_command.get("profile")),
        len(markers),
        max((_string(marker.get("ended")) for marker in markers), default=""),
        size,
        _best_results(root),
    )


def _string(value: Any) -> str:
    """Return a value if it is a string, else an empty string."""
    return value if isinstance(value, str) else ""


def _best_results(root: Path) -> dict[str, tuple[float, str]]:
    """Return the lowest WER of each split, with its system.

    The results come from results.json, or from the decodes if the last stage has not written that
    file. A decode that was repeated since then replaces its row in results.json.
    """
    results = root / "results.json"
    decoded = [
        row for path in sorted(root.glob("decode/*/rows.json")) for row in _readable_results(path)
    ]
    newest = {row.key: row for row in decoded}
    listed = _readable_results(results) if results.exists() else decoded
    best: dict[str, tuple[float, str]] = {}
    for row in (newest.get(row.key, row) for row in listed):
        if row.split not in best or row.wer < best[row.split][0]:
            best[row.split] = (row.wer, row.system)
    return best


def _readable_results(path: Path) -> list[Result]:
    """Return the rows of a results.json; none if it cannot be read."""
    try:
        return read_results(path)
    except ResultsError:
        return []


def _megabytes(size: int) -> str:
    """Format a size in megabytes."""
    return f"{size / 1e6:.{0 if size >= 1e7 else 1}f} MB"


def table_lines(runs: Sequence[Run]) -> list[str]:
    """Return the lines of a table; results stand below their run."""
    if not runs:
        return ["no runs here"]
    width = max(len(run.path) for run in runs)
    table = [f"{'run':<{width}}  stages  ended             size"]
    for run in runs:
        ended = run.ended[:16].replace("T", " ")
        table.append(
            f"{run.path:<{width}}  {run.stages_done:6d}  {ended:<16}  {_megabytes(run.bytes)}"
        )
        best = ", ".join(f"{split} {wer:.2f} ({who})" for split, (wer, who) in run.best.items())
        if best:
            table += textwrap.wrap(
                f"WER {best}", LINE_WIDTH - 4, initial_indent="    ", subsequent_indent="    "
            )
    return table
