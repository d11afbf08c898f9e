"""The output of `run.py --list`, `--dry-run` and `--stale-code`, which change nothing."""

import json
import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from toolkit.stages.declaration import RunOptions, Stage
from toolkit.stages.log import duration, headline
from toolkit.stages.marker import CodeVersion, Provenance, code_version
from toolkit.stages.plan import PlannedStage, Planner, State
from toolkit.stages.runner import refusal

WIDTH = 100
GAP = "  "
INDENT = " " * 7
"""Indentation of the lines below a row of the table, which aligns them with the titles."""


@dataclass(frozen=True)
class Row:
    """A row of the table of stages; every cell may be empty."""

    stage: str
    title: str
    kind: str
    """The state in a word: `stale`."""
    reason: str
    """The text after the kind: `: lm.text has changed`."""
    time: str
    code: str
    """Difference between the present code and the code that made the outputs."""
    result: str


HEAD = Row("stage", "title", "state", "", "time", "code", "result")


def show_list(planner: Planner, source: Path, as_json: bool = False) -> None:
    """Print each stage's state, time and result, and its code if that is not the present one.

    Args:
      planner: planner of the run directory.
      source: the recipe's folder.
      as_json: whether to print JSON instead of a table.
    """
    numbers = [stage.number for stage in planner.stages]
    planned = planner.plan(numbers[0], numbers[-1])
    present = code_version(source)
    codes = [
        [f"{name} {old}" for name, old, _ in _code_differences(planner, p.stage, p.state, present)]
        for p in planned
    ]
    reasons = [p.stage.skip_reason(planner.config) for p in planned]
    if as_json:
        data = [_plain(*row) for row in zip(planned, codes, reasons, strict=True)]
        click.echo(json.dumps(data, indent=1))
        return
    for line in table_lines([_row(*row) for row in zip(planned, codes, reasons, strict=True)]):
        click.echo(line)


def _row(planned: PlannedStage, code: Sequence[str], skip_reason: str) -> Row:
    """Return the table row of a stage."""
    stage, state, marker = planned.stage, planned.state, planned.state.marker
    kind = str(replace(state, why=""))
    reason = str(state).removeprefix(kind)
    reason += f" (will run {planned.why})" if planned.action == "may run" else ""
    time = duration(marker.seconds) if marker else ""
    results = headline(marker.headline) if marker else ""
    if skip_reason:
        results = f"does nothing: {skip_reason}"
    return Row(str(stage.number), stage.title, kind, reason, time, "; ".join(code), results)


def _plain(planned: PlannedStage, code: Sequence[str], skip_reason: str) -> dict[str, Any]:
    """Return the state of a stage as plain data, for --json."""
    stage, state, marker = planned.stage, planned.state, planned.state.marker
    return {
        "stage": stage.number,
        "title": stage.title,
        "off": stage.when if skip_reason else None,
        "state": state.kind,
        "percent": state.percent,
        "reason": state.why or None,
        "action": planned.action,
        "seconds": marker.seconds if marker else None,
        "peak_bytes": marker.peak_bytes if marker else None,
        "other_code": list(code),
        "result": {k: _number(v) for k, v in marker.headline.items()} if marker else {},
    }


def _number(value: Any) -> Any:
    """Return a number for JSON; None for infinity and NaN, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show_stale_code(planner: Planner, source: Path) -> None:
    """Print the stages whose code or packages differ from the present ones, with both versions."""
    is_empty = True
    for stage in planner.stages:
        state = planner.state(stage)
        differences = _code_differences(planner, stage, state, code_version(source))
        changes = [f"{name} {old} -> {new}" for name, old, new in differences]
        if changes:
            is_empty = False
            click.echo(f"{stage.number:3d} {stage.title} ({state.kind}): {'; '.join(changes)}")
    if is_empty:
        click.echo("all finished stages were run with the current code and packages")


def show_plan(planner: Planner, options: RunOptions) -> None:
    """Print which stages a run would skip, run or refuse, and why."""
    for stage in planner.stages:
        state = planner.state(stage)
        if stage.number < options.first and not state.done:
            click.echo(
                f"warning: stage {stage.number} ({stage.title}) is {state} and not part of this run"
            )
    for planned in planner.plan(options.first, options.last, options.forced):
        stage, skip_reason = planned.stage, planned.stage.skip_reason(planner.config)
        verb = "would skip" if planned.action == "skip" else "would run"
        colon = "" if planned.action == "may run" else ":"
        text = _refusal(planner, options, planned) or f"{verb}{colon} {planned.why}"
        if skip_reason and planned.why != "forced":
            text = f"does nothing: {skip_reason}"
        click.echo(f"{stage.number:3d} {stage.title}: {text}")


def _code_differences(
    planner: Planner, stage: Stage, state: State, present: CodeVersion
) -> list[tuple[str, str, str]]:
    """Return how the code of each attempt at a stage's outputs differs from the present code.

    Each difference, (what differs, its old value, its new value), is listed once. If there are
    partial outputs, the attempts are those that worked on them.
    """
    path = planner.directory.provenance(stage.number)
    provenance = None if state.done else Provenance.read(path)
    if provenance is None and state.marker:
        provenance = state.marker.provenance
    attempts = provenance.attempts if provenance else []
    return list(dict.fromkeys(d for a in attempts for d in a.code.differences(present)))


def _refusal(planner: Planner, options: RunOptions, planned: PlannedStage) -> str | None:
    """Return the message if a run would refuse to continue a stage, else None."""
    number = planned.stage.number
    if planned.action != "run" or number in options.forced or options.accept_code_change:
        return None
    provenance = Provenance.read(planner.directory.provenance(number))
    if provenance is None or planner.changes(provenance):
        return None
    changes = provenance.code_changes(code_version(options.source))
    return f"would stop: {refusal(number, changes)}" if changes else None


def table_lines(rows: Sequence[Row]) -> list[str]:
    """Return the lines of a table of stages, in at most 100 columns.

    If everything fits, each row is one line. Otherwise reasons and results that are too long stand
    below their row, and the codes below the table.
    """
    wide = [
        (r.stage, r.title, f"{r.kind}{r.reason}", r.time, r.code, r.result) for r in (HEAD, *rows)
    ]
    if not any(row.code for row in rows):
        wide = [(*cells[:4], cells[5]) for cells in wide]
    table = _aligned(wide)
    return table if max(map(len, table)) <= WIDTH else list(_folded(rows))


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[-1] = 0
    return [
        GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _folded(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of a table within the width; longer texts stand below their row."""
    stage, kind, time = (
        max(len(getattr(row, name)) for row in (HEAD, *rows)) for name in ("stage", "kind", "time")
    )
    # Titles are shortened first, then reasons; both share what the other columns leave.
    width = WIDTH - stage - kind - time - 3 * len(GAP)
    titles = [textwrap.shorten(row.title, width, placeholder="...") for row in rows]
    room = WIDTH - stage - max(len(HEAD.title), *map(len, titles)) - time - 3 * len(GAP)
    states = [f"{row.kind}{row.reason}" for row in rows]
    cells = [
        (row.stage, title, state if len(state) <= room else row.kind, row.time, "|")
        for row, title, state in zip(rows, titles, states, strict=True)
    ]
    # "|" marks where the result begins: it is appended below if the line has room for it.
    head, *table = _aligned([(HEAD.stage, HEAD.title, HEAD.kind, HEAD.time, HEAD.result), *cells])
    yield (
        head
        if any(row.result for row in rows) and len(head) <= WIDTH
        else head[: -len(HEAD.result)].rstrip()
    )
    for row, line, state in zip(rows, table, states, strict=True):
        line = line.removesuffix("|")
        fits = len(line) + len(row.result) <= WIDTH
        yield (line + row.result if fits else line).rstrip()
        if len(state) > room:
            yield from _below(state)
        if not fits:
            yield from _below(row.result)
    # Stages that were run with the same code share a line.
    codes: dict[str, list[str]] = {}
    for row in rows:
        if row.code:
            codes.setdefault(row.code, []).append(row.stage)
    for code, stages in codes.items():
        text = f"code of {', '.join(stages)}: {code}"
        yield from textwrap.wrap(text, WIDTH, subsequent_indent=GAP, break_on_hyphens=False)


def _below(text: str) -> list[str]:
    """Return the lines of a text that stands below its row."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False
    )
