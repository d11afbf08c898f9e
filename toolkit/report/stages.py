"""The stages of a run, with states derived from markers, tracebacks and the log."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from html import escape

from toolkit.report.folder import RunFolder
from toolkit.stages.log import duration, headline
from toolkit.stages.marker import Marker, Progress, UnreadableMarkerError
from toolkit.storage.digests import Content
from toolkit.storage.paths import overlap

BEGUN = re.compile(r"^\S+ == (\d+) (.*) \(--stage \d+\)$", re.MULTILINE)
"""The line that the stage log has at the beginning of a stage."""
KINDS = ("done", "stale", "partial", "failed")
TRACE = 4000
"""Most characters of a traceback that are shown, from its end."""


@dataclass(frozen=True)
class StageView:
    """A stage that was started at least once."""

    number: int
    title: str
    kind: str
    """One of `KINDS`."""
    why: str = ""
    """Why it is not done; empty if it is."""
    marker: Marker | None = None
    seconds: float = 0.0
    trace: str = ""
    """Traceback of the failure."""


def read_stages(run: RunFolder) -> list[StageView]:
    """Return the stages in order.

    Unlike the recipe's `--list`, which knows the configuration, this only compares the markers with
    each other and checks that the outputs exist; no file is hashed.
    """
    titles = {int(number): title for number, title in BEGUN.findall(run.text("log.txt") or "")}
    markers: dict[int, Marker | None] = {}
    for path in sorted((run.root / "stages").glob("[0-9]*.json")):
        if path.stem.isdecimal():
            try:
                markers[int(path.stem)] = Marker.read(path)
            except UnreadableMarkerError as error:
                markers[int(path.stem)] = None
                run.note(path, error)
    failed = _numbers(run, "stages/[0-9]*.failed.txt")
    partial = _numbers(run, ".partial/[0-9]*.json")
    numbers = sorted({*markers, *failed, *partial})
    return [_view(run, number, titles, markers, failed, partial) for number in numbers]


def _numbers(run: RunFolder, pattern: str) -> set[int]:
    """Return the stage numbers in file names; `.partial/07.progress.json` counts too."""
    names = [path.name.partition(".")[0] for path in run.root.glob(pattern)]
    return {int(name) for name in names if name.isdecimal()}  # not those of somebody's copies


def _view(
    run: RunFolder,
    number: int,
    titles: dict[int, str],
    markers: dict[int, Marker | None],
    failed: set[int],
    partial: set[int],
) -> StageView:
    marker = markers.get(number)
    title = marker.title if marker else titles.get(number, "")
    spent = marker.seconds if marker else 0.0
    text = (run.text(run.directory.failure(number)) or "") if number in failed else ""
    if number in failed and not (marker and _passed_over(text, number, markers)):
        return StageView(
            number, title, "failed", text.partition("\n")[0], marker, spent, text[-TRACE:]
        )
    if number in partial:
        progress = Progress.read(run.directory.progress(number))
        share = f"{100 * min(1.0, progress.done / (progress.total or 1)):.0f} %" if progress else ""
        seconds = progress.seconds if progress else 0.0
        return StageView(number, title, "partial", share, marker, seconds)
    if marker is None:
        return StageView(number, title, "stale", "its marker cannot be read")
    why = _stale(run, marker, [other for other in markers.values() if other])
    return StageView(number, title, "stale" if why else "done", why, marker, spent)


def _passed_over(failure: str, number: int, markers: Mapping[int, Marker | None]) -> bool:
    """Whether a later stage was started after a failure, whose time is in the third line.

    An attempt with other settings may fail and leave the outputs of the one before as they are. The
    run goes on with these where its settings are theirs again.
    """
    lines = failure.splitlines()
    later = [marker.started for n, marker in markers.items() if n > number and marker]
    try:
        when = datetime.fromisoformat(lines[2])
        return any(datetime.fromisoformat(started) > when for started in later)
    except (IndexError, ValueError, TypeError):  # not a time, or one without a zone
        return False


def _stale(run: RunFolder, marker: Marker, markers: list[Marker]) -> str:
    """Return why a stage is out of date, empty if it is not."""
    for name in marker.outputs:
        if not (run.root / name).exists():
            return f"output {name} was deleted"
    for name, content in marker.provenance.inputs.items():
        for other in markers:
            for output, made in other.outputs.items():
                if overlap(name, output) and _differs(name, content, output, made):
                    return f"input {name} has been changed by stage {other.stage}"
    return ""


def _differs(name: str, read: Content, output: str, made: Content) -> bool:
    """Whether the content that a stage has read differs from the output that is there now."""
    if name == output:
        return read.digest != made.digest
    if name.startswith(f"{output}/"):
        inside = name.removeprefix(f"{output}/")
        if not read.files:
            return made.files.get(inside) != read.digest
        own = {file: d for file, d in made.files.items() if file.startswith(f"{inside}/")}
        return own != {f"{inside}/{file}": digest for file, digest in read.files.items()}
    inside = output.removeprefix(f"{name}/")
    if not made.files:
        return read.files.get(inside) != made.digest
    own = {file: d for file, d in read.files.items() if file.startswith(f"{inside}/")}
    return own != {f"{inside}/{file}": digest for file, digest in made.files.items()}


def stage_table(stages: list[StageView]) -> str:
    """Return a table of the stages with state, time and result as HTML."""
    longest = max((stage.seconds for stage in stages), default=0.0) or 1.0
    rows = "".join(_row(stage, longest) for stage in stages)
    return (
        '<div class="table stages"><div class="scroll" tabindex="0" role="region" '
        'aria-label="Stages"><table><thead><tr><th scope="col">stage</th><th scope="col" '
        'class="text">title</th><th scope="col" class="text">state</th><th scope="col">time</th>'
        '<th scope="col" title="Peak of the process and its workers together">memory</th>'
        '<th scope="col" class="text">result</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div></div>"
    )


def _row(stage: StageView, longest: float) -> str:
    width = 100 * stage.seconds / longest
    result = headline(stage.marker.headline) if stage.marker else ""
    time = duration(stage.seconds) if stage.seconds else ""
    trace = f'<pre tabindex="0">{escape(stage.trace)}</pre>' if stage.trace else ""
    trace = f"<details><summary>traceback</summary>{trace}</details>" if trace else ""
    why = f' <span class="why">{escape(stage.why)}</span>' if stage.why else ""
    return (
        f'<tr><th scope="row">{stage.number}</th><td class="text">{escape(stage.title)}</td>'
        f'<td class="text"><span class="state {stage.kind}">{stage.kind}</span>{why}{trace}</td>'
        f'<td>{escape(time)}<i class="bar" style="width:{width:.1f}%"></i></td>'
        f"<td>{escape(_memory(stage.marker))}</td>"
        f'<td class="text result">{escape(result)}</td></tr>'
    )


def _memory(marker: Marker | None) -> str:
    if marker is None or not marker.peak_bytes:
        return ""
    mebibytes = marker.peak_bytes / 2**20
    return f"{mebibytes:,.0f} MiB" if mebibytes < 1000 else f"{mebibytes / 1024:.1f} GiB"


def counts(stages: list[StageView]) -> str:
    """Say how many stages are in which state: "22 done, 1 failed"."""
    found = {kind: sum(stage.kind == kind for stage in stages) for kind in KINDS}
    return ", ".join(f"{number} {kind}" for kind, number in found.items() if number)
