"""The report's provenance: commands, versions and settings of a run, and the end of its log."""

import json
from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import Any

from toolkit.report.folder import RunFolder
from toolkit.report.page import Cell, Column, Row, Table
from toolkit.report.stages import StageView
from toolkit.stages.marker import CodeVersion

LOG_LINES = 60
MOST_SETTINGS = 30_000
"""Most characters of the settings that are shown."""


def commands_table(stages: Sequence[StageView]) -> Table | None:
    """Return a table of commands, commits and versions, with the stages that each has run."""
    finished = [(_made_by(stage), stage.number) for stage in stages if stage.marker]
    if not finished:
        return None
    found: dict[tuple[str, str, str], list[int]] = {}
    for made_by, number in finished:
        found.setdefault(made_by, []).append(number)
    rows = [
        Row([Cell(_ranges(numbers)), Cell(command), Cell(commit), Cell(versions)])
        for (command, commit, versions), numbers in found.items()
    ]
    columns = [Column("stages"), *(Column(n, text=True) for n in ("command", "commit", "versions"))]
    return Table("Commands and versions", columns, rows)


def _made_by(stage: StageView) -> tuple[str, str, str]:
    marker = stage.marker
    assert marker is not None
    commits = [_commit(attempt.code) for attempt in marker.provenance.attempts]
    versions = ", ".join(f"{n} {v}" for n, v in marker.code.versions.items() if v)
    return marker.command, ", ".join(dict.fromkeys(commits)), versions


def _commit(code: CodeVersion) -> str:
    commit = (code.commit or "unknown")[:12]
    return commit + (" with local changes" if code.dirty else "")


def _ranges(numbers: Sequence[int]) -> str:
    """Format numbers as ranges, such as `1-3, 5`."""
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(numbers), key=lambda item: item[1] - item[0])
    ]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def settings(stages: Sequence[StageView]) -> str:
    """Return the settings that the stages have read, collapsed."""
    sections: dict[str, Any] = {}
    for stage in stages:
        sections |= stage.marker.provenance.parameters if stage.marker else {}
    text = json.dumps(sections, indent=1, ensure_ascii=False)
    if len(text) > MOST_SETTINGS:
        text = text[:MOST_SETTINGS] + "\n..."
    return _folded("Settings that the stages have read", text) if sections else ""


def log_end(run: RunFolder) -> str:
    """Return the last lines of the log, collapsed."""
    lines = (run.text("log.txt") or "").splitlines()[-LOG_LINES:]
    return _folded(f"The last {len(lines)} lines of log.txt", "\n".join(lines)) if lines else ""


def problems(run: RunFolder) -> str:
    """Return the list of files that could not be read, collapsed."""
    lines = "\n".join(dict.fromkeys(run.problems))
    return _folded(f"{len(run.problems)} files or parts could not be read", lines) if lines else ""


def _folded(title: str, text: str) -> str:
    inside = f'<pre tabindex="0">{escape(text)}</pre>'
    return f"<details><summary>{escape(title)}</summary>{inside}</details>"
