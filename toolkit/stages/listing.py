"""What `run.py --list`, `--dry-run` and `--stale-code` print; they change nothing."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from toolkit.stages.declaration import Declaration
from toolkit.stages.directory import RunDirectory
from toolkit.stages.inputs import InputNames
from toolkit.stages.log import duration, headline
from toolkit.stages.marker import CodeVersion, Provenance, code_version
from toolkit.stages.plan import Inspector, State, Step, plan, settled
from toolkit.stages.runner import refusal
from toolkit.stages.stage import Request, Stage
from toolkit.stages.table import Row, lines


def show_list(
    recipe: Declaration, directory: RunDirectory, config: Any, as_json: bool = False
) -> None:
    """Print each stage's state, time and result, and its code where that is not the present one."""
    steps = plan(_states(recipe, _inspector(recipe, directory, config), config), ())
    codes = [
        _other_code(recipe, _codes(directory, step.number, step.state), "{old}") for step in steps
    ]
    off = _off(recipe, config)
    if as_json:
        plain = [_plain(step, code, off) for step, code in zip(steps, codes, strict=True)]
        click.echo(json.dumps(plain, indent=1))
        return
    rows = [_row(step, code, off) for step, code in zip(steps, codes, strict=True)]
    for line in lines(rows):
        click.echo(line)


def _row(step: Step, code: Sequence[str], off: Mapping[int, Stage]) -> Row:
    state, marker = step.state, step.state.marker
    kind = str(replace(state, why=""))
    reason = str(state).removeprefix(kind)
    reason += f" (will run {step.why})" if step.action == "may run" else ""
    time = duration(marker.seconds) if marker else ""
    results = headline(marker.headline) if marker else ""
    if step.number in off:
        results = f"does nothing: {off[step.number].lack}"
    return Row(str(step.number), step.title, kind, reason, time, "; ".join(code), results)


def _plain(step: Step, code: Sequence[str], off: Mapping[int, Stage]) -> dict[str, Any]:
    state, marker = step.state, step.state.marker
    return {
        "stage": step.number,
        "title": step.title,
        "off": off[step.number].when if step.number in off else None,
        "state": state.kind,
        "percent": state.percent,
        "reason": state.why or None,
        "action": step.action,
        "seconds": marker.seconds if marker else None,
        "peak_bytes": marker.peak_bytes if marker else None,
        "other_code": list(code),
        "result": {k: _number(v) for k, v in marker.headline.items()} if marker else {},
    }


def _number(value: Any) -> Any:
    """Return None for an infinity and for no number, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show_stale_code(recipe: Declaration, directory: RunDirectory, config: Any) -> None:
    """Print the stages that other code or other packages have made, with both."""
    found = False
    for number, title, state in _states(recipe, _inspector(recipe, directory, config), config):
        if changes := _other_code(recipe, _codes(directory, number, state), "{old} -> {new}"):
            found = True
            click.echo(f"{number:3d} {title} ({state.kind}): {'; '.join(changes)}")
    if not found:
        click.echo("no stage was made by other code or other packages than the present ones")


def show_plan(recipe: Declaration, directory: RunDirectory, request: Request) -> None:
    """Print which stages a run would skip, make or refuse, and why."""
    inspector = _inspector(recipe, directory, request.config)
    states, off = _states(recipe, inspector, request.config), _off(recipe, request.config)
    for number, title, state in states:
        if number < request.first and not state.done:
            click.echo(f"warning: stage {number} ({title}) is {state}; not in this run")
    chosen = [state for state in states if request.first <= state[0] <= request.last]
    for step in plan(chosen, request.forced):
        verb = {"run": "would run", "skip": "would skip", "may run": "would run"}[step.action]
        colon = "" if step.action == "may run" else ":"
        said = _refusal(recipe, inspector, request, step) or f"{verb}{colon} {step.why}"
        if step.number in off and step.why != "forced":
            said = f"does nothing: {off[step.number].lack}"
        click.echo(f"{step.number:3d} {step.title}: {said}")


def _inspector(recipe: Declaration, directory: RunDirectory, config: Any) -> Inspector:
    folders = InputNames(directory.root, config).folders
    titles = {stage.number: stage.title for stage in recipe.stages}
    return Inspector(directory, config, directory.load_digests(folders), titles)


def _states(recipe: Declaration, inspector: Inspector, config: Any) -> list[tuple[int, str, State]]:
    return [
        (s.number, s.title, settled(inspector.state(s.number), not s.asked_for(config)))
        for s in recipe.stages
    ]


def _off(recipe: Declaration, config: Any) -> dict[int, Stage]:
    """The stages that the configuration does not ask for, by number."""
    return {stage.number: stage for stage in recipe.stages if not stage.asked_for(config)}


def _codes(directory: RunDirectory, stage: int, state: State) -> list[CodeVersion]:
    """Return the code of each attempt at a stage's outputs, those of partial outputs if any."""
    provenance = None if state.done else Provenance.read(directory.provenance(stage))
    if provenance is None and state.marker:
        provenance = state.marker.provenance
    return [attempt.code for attempt in provenance.attempts] if provenance else []


def _other_code(recipe: Declaration, codes: Iterable[CodeVersion], form: str) -> list[str]:
    """Return what of the present code and packages is not that of `codes`, each thing once."""
    found = []
    for code in codes:
        for name, old, new in code.differences(code_version(recipe.folder)):
            found.append(form.format(old=f"{name} {old}", new=new))
    return list(dict.fromkeys(found))


def _refusal(recipe: Declaration, inspector: Inspector, request: Request, step: Step) -> str | None:
    """Return in what words a run would refuse to continue a stage, None if it would not."""
    settled = step.action != "run" or step.number in request.forced or request.accept_code_change
    path = inspector.directory.provenance(step.number)
    provenance = None if settled else Provenance.read(path)
    if provenance is None or inspector.provenance_changes(provenance):
        return None
    changes = provenance.code_changes(code_version(recipe.folder))
    return f"would stop: {refusal(step.number, changes)}" if changes else None
