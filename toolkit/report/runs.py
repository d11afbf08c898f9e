"""The runs below a folder: stages, results and size of each."""

import os
import re
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.report.folder import ReportError, RunFolder
from toolkit.score.results import Result, ResultsError, read_results

_MARKER = re.compile(r"\d\d\.json")
WIDTH = 100


class RunsError(ToolkitError):
    """A folder of runs that is not there."""


@dataclass(frozen=True)
class Run:
    """A run directory."""

    path: str
    recipe: str
    """Its name; empty where it is not known."""
    profile: str
    stages_done: int
    ended: str
    """When the last stage ended, in ISO format; empty if none has."""
    bytes: int
    """The sizes of its files."""
    best: dict[str, tuple[float, str]] = field(default_factory=dict)
    """By split the lowest word error rate in percent, and the system."""


def find_runs(folder: Path) -> list[Run]:
    """Return the runs in a folder or below it, by path.

    Links are followed to run directories and to folders of them, as of runs on another disk, unless
    those lie below the folder too. What cannot be read, or is removed meanwhile by a run that goes
    on, is left out.

    Raises:
      RunsError: there is no such folder.
    """
    if not folder.is_dir():
        raise RunsError(f"{folder} is not a folder: name one with run directories below it")
    found, linked = [], []
    for parent, folders, _ in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if _is_run(Path(parent)):
            found.append(Path(parent))
            folders.clear()
        for path in (Path(parent, name) for name in folders):
            if path.is_symlink():
                linked += [path] if _is_run(path) else filter(_is_run, _inside(path))
    known = {os.path.realpath(path) for path in found}
    for path in sorted(linked, key=lambda path: (len(path.parts), path)):
        if (real := os.path.realpath(path)) not in known:
            known.add(real)
            found.append(path)
    runs = []
    for path in sorted(found):
        with suppress(ReportError):  # the run was removed meanwhile
            runs.append(_run(path, _markers(path / "stages")))
    return runs


def _is_run(path: Path) -> bool:
    stages = path / "stages"
    return bool(_markers(stages)) or os.path.lexists(stages / "last_command.json")


def _inside(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir())
    except OSError:
        return []


def _markers(stages: Path) -> list[Path]:
    try:
        return sorted(path for path in stages.iterdir() if _MARKER.fullmatch(path.name))
    except OSError:
        return []


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _run(root: Path, paths: Sequence[Path]) -> Run:
    run = RunFolder.open(root)
    markers = [marker for path in paths if isinstance(marker := run.json(path.absolute()), dict)]
    last = run.json("stages/last_command.json")
    last = last if isinstance(last, dict) else {}
    size = sum(
        _size(os.path.join(parent, name)) for parent, _, names in os.walk(root) for name in names
    )
    return Run(
        str(root),
        _text(last.get("recipe")),
        _text(last.get("profile")),
        len(markers),
        max((_text(marker.get("ended")) for marker in markers), default=""),
        size,
        _best(root),
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _best(root: Path) -> dict[str, tuple[float, str]]:
    """The results of the run, or, before its last stage, of what it has decoded.

    What was decoded again since the last stage replaces the row in the results.
    """
    results = root / "results.json"
    decoded = [row for path in sorted(root.glob("decode/*/rows.json")) for row in _rows(path)]
    newest = {row.key: row for row in decoded}
    listed = _rows(results) if results.exists() else decoded
    best: dict[str, tuple[float, str]] = {}
    for row in (newest.get(row.key, row) for row in listed):
        if row.split not in best or row.wer < best[row.split][0]:
            best[row.split] = (row.wer, row.system)
    return best


def _rows(path: Path) -> list[Result]:
    try:
        return read_results(path)
    except ResultsError:
        return []


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.{0 if size >= 1e7 else 1}f} MB"


def lines(runs: Sequence[Run]) -> list[str]:
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
                f"WER {best}", WIDTH - 4, initial_indent="    ", subsequent_indent="    "
            )
    return table
