"""Plans a run: which stages are done, why others are stale, and what would run."""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from operator import attrgetter
from pathlib import Path
from typing import Any

from toolkit.config.settings import flatten, result_parameters
from toolkit.stages.directory import RunDirectory
from toolkit.stages.inputs import InputNames, audio_input, fixed_folder, is_outside, same_setting
from toolkit.stages.marker import Marker, Progress, Provenance, UnreadableMarkerError
from toolkit.storage.digests import (
    AUDIO,
    Content,
    Digests,
    audio_names,
    combined,
    difference,
    listing,
)
from toolkit.storage.paths import overlap
from toolkit.storage.reading import reason, regular

LONGEST_LINE = 10_000
"""Characters of a message that are read."""

MOST_REASONS = 3
PLACE = "place"
"""Kind of an input of which only the existence counts."""
PATTERN = "pattern"
"""Kind of an input that is all files which a pattern matches."""


@dataclass(frozen=True)
class State:
    """The state of one stage.

    Its kind is "done", "stale" (done with other inputs or parameters), "partial" (interrupted),
    "failed" or "pending" (never run).
    """

    kind: str
    why: str = ""
    marker: Marker | None = None
    percent: int | None = None
    """How far the partial outputs are."""

    @property
    def done(self) -> bool:
        """Whether the stage need not run."""
        return self.kind == "done"

    def __str__(self) -> str:
        percent = "" if self.percent is None else f" {self.percent} %"
        return f"{self.kind}{percent}" + (f": {self.why}" if self.why else "")


@dataclass(frozen=True)
class Step:
    """What a run would do with one stage: `run`, `skip`, or `may run` if an input changes."""

    number: int
    title: str
    action: str
    state: State
    why: str


def settled(state: State, off: bool) -> State:
    """Return the state of a stage, which is done where its setting is off and it has something to
    lose: what it made stays for when the setting is on again."""
    made = state.marker is not None and bool(state.marker.outputs)
    keeps = made or state.kind in ("partial", "failed")
    return State("done", marker=state.marker) if off and keeps else state


class Inspector:
    """Compares the markers in a run directory with the present files and configuration.

    Args:
      directory: the run directory.
      config: the present configuration.
      digests: of the files in it.
      titles: the stages' titles by number, by which a marker is known to be of a stage that has
        another number now.
    """

    def __init__(
        self,
        directory: RunDirectory,
        config: Any,
        digests: Digests,
        titles: Mapping[int, str] | None = None,
    ) -> None:
        self.directory, self.config, self.digests = directory, config, digests
        self._numbers = {title: number for number, title in (titles or {}).items()}
        self.names = InputNames(directory.root, config)

    def state(self, stage: int) -> State:
        """Return the state of a stage; nothing is written."""
        directory = self.directory
        progress = Progress.read(directory.progress(stage))
        provenance = Provenance.read(directory.provenance(stage))
        percent = None
        if provenance and progress and progress.total:
            percent = int(100 * min(progress.done / progress.total, 1))
        if directory.publishing(stage).exists():
            return State("partial", "the next run puts its finished outputs in place", None, 100)
        try:
            marker = Marker.read(directory.marker(stage))
            reasons = self.changes(marker) if marker else []
        except UnreadableMarkerError as error:
            marker, reasons = None, [str(error)]
        if marker and not reasons:
            return State("done", marker=marker)
        if marker and self._number(marker) != stage:
            marker = None
        why = join_reasons(reasons)
        if directory.failure(stage).exists():
            first = _first_line(directory.failure(stage))
            return State("failed", first, marker, percent)
        if provenance:
            changes = join_reasons(self.provenance_changes(provenance))
            why = f"will start over, {changes}" if changes else why
            return State("partial", why, marker, percent)
        return State("stale", why, marker) if why else State("pending")

    def marker(self, stage: int) -> Marker | None:
        """Return the marker of a stage, None when there is none that can be read."""
        try:
            return Marker.read(self.directory.marker(stage))
        except UnreadableMarkerError:
            return None

    def outputs(self, stage: int) -> list[str]:
        """Return the names of what a stage made when it last finished."""
        marker = self.marker(stage)
        return sorted(marker.outputs) if marker and self._number(marker) == stage else []

    def _number(self, marker: Marker) -> int:
        """Return the number that the stage of a marker has now."""
        return self._numbers.get(marker.title, marker.stage)

    def changes(self, marker: Marker) -> list[str]:
        """Return why the stage of `marker` is no longer done; empty when it still is."""
        reasons = self.provenance_changes(marker.provenance)
        if (number := self._number(marker)) != marker.stage:
            reasons.insert(0, f"its marker is of stage {number}, which had this number before")
        for name, old in marker.outputs.items():
            new = self.digests.content(self.directory.root / name)
            if new is None:
                reasons.append(f"output `{name}` was deleted")
            elif change := difference(name, old, new):
                reasons.append(f"output {change}")
        return reasons

    def provenance_changes(self, provenance: Provenance) -> list[str]:
        """Return how parameters and inputs differ from those in `provenance`."""
        reasons = list(self._parameter_changes(provenance))
        for name, old in provenance.inputs.items():
            if self.names.is_gone(name):
                continue  # its setting names no file now, which is a change of a parameter
            shown = str(self.names.path(name)) if is_outside(name) else name
            shown = shown.removeprefix(audio_input(""))
            shown = str(fixed_folder(Path(shown))) if old.kind == PATTERN else shown
            change = difference(shown, old, self.present(name, old.kind))
            if change:
                reasons.append(f"input {change}")
        return reasons

    def present(self, name: str, kind: str) -> Content | None:
        """Return the present content of an input."""
        if kind == AUDIO:
            return self.audio(name.removeprefix(audio_input("")))[0]
        path = self.names.path(name)
        if kind == PLACE:
            return Content(0, "", kind=PLACE) if path.exists() else None
        if kind == PATTERN:
            return self._matches(path)
        since = self.digests.since
        return listing(path, since) if kind == "listing" else self.digests.content(path)

    def _matches(self, pattern: Path) -> Content | None:
        """Return the content of the files that a pattern matches, None if there are none."""
        folder = fixed_folder(pattern)
        paths = filter(os.path.isfile, sorted(glob(str(pattern), recursive=True)))
        found = {os.path.relpath(path, folder): self.digests.content(Path(path)) for path in paths}
        files = {name: content for name, content in found.items() if content is not None}
        digests = {name: content.digest for name, content in files.items()}
        size = sum(content.size for content in files.values())
        return Content(size, combined(digests), len(files), PATTERN, digests) if files else None

    def audio(
        self, manifest: str, found: Mapping[str, str] | None = None
    ) -> tuple[Content | None, dict[str, str]]:
        """Return the content of the audio files that a manifest names.

        Args:
          manifest: its path, relative to the run directory.
          found: digests by path that are known already.

        Returns:
          Their content, None without the manifest, and their digests by path; "" stands for a file
          that is not there.
        """
        path, known = self.directory.root / manifest, found or {}
        if not path.is_file():
            return None, {}
        files = {name: self.names.path(name) for name in audio_names(path)}
        digests = {str(f): known.get(str(f)) or self._digest(f) for f in files.values()}
        by_name = {name: digests[str(file)] for name, file in files.items()}
        return Content(0, combined(by_name), len(files), AUDIO), digests

    def _digest(self, file: Path) -> str:
        content = self.digests.content(file)
        return content.digest if content else ""

    def _parameter_changes(self, provenance: Provenance) -> Iterator[str]:
        recorded = provenance.parameters
        values = {}  # of the sections, and of the settings inside sections, that still exist
        for name in recorded:
            with contextlib.suppress(AttributeError):
                values[name] = attrgetter(name)(self.config)
        old = flatten(recorded)
        new = flatten({name: result_parameters(value) for name, value in values.items()})
        for key in sorted(old.keys() | new.keys()):
            if key not in new:
                yield f"`{key}` is no longer a parameter"
            elif key not in old:
                yield f"`{key}` {_show(new[key])} is a new parameter"
            elif same_setting(key, old[key], new[key], provenance.inputs):
                continue
            elif old[key] != new[key] or isinstance(old[key], bool) != isinstance(new[key], bool):
                before, after = _show(old[key]), _show(new[key])
                yield f"`{key}` {before} -> {after}" if before != after else f"`{key}` changed"


def plan(stages: Sequence[tuple[int, str, State]], forced: Iterable[int]) -> list[Step]:
    """Return what a run over `stages` (number, title, state; in order) would do.

    A stage that is done but reads an output of an earlier stage that would run *may* run: it does
    if that output changes.
    """
    steps: list[Step] = []
    unsettled: set[int] = set()
    for number, title, state in stages:
        if number in forced:
            step = Step(number, title, "run", state, "forced")
        elif not state.done:
            step = Step(number, title, "run", state, _why(state))
        elif sources := sorted(_makers(state.marker, stages) & unsettled):
            names = ", ".join(str(source) for source in sources)
            step = Step(number, title, "may run", state, f"if stage {names} changes its outputs")
        else:
            step = Step(number, title, "skip", state, "done")
        if step.action != "skip":
            unsettled.add(number)
        steps.append(step)
    return steps


def join_reasons(reasons: list[str]) -> str:
    """Return the first few reasons on one line."""
    more = len(reasons) - MOST_REASONS
    return "; ".join(reasons[:MOST_REASONS]) + (f"; and {more} more" if more > 0 else "")


def _why(state: State) -> str:
    if state.kind == "pending":
        return "never run"
    return state.why if state.kind == "stale" else str(state)


def _makers(reader: Marker, stages: Sequence[tuple[int, str, State]]) -> set[int]:
    """Return the stages that make an input of `reader`; where unknown, those without a marker."""
    markers = {number: state.marker for number, _, state in stages}
    unknown = {number for number, marker in markers.items() if marker is None}
    makers: set[int] = set()
    for name in reader.provenance.inputs:
        if not is_outside(name):
            owners = {
                number
                for number, marker in markers.items()
                if marker and any(overlap(name, output) for output in marker.outputs)
            }
            makers |= owners or unknown
    return makers


def _first_line(failure: Path) -> str:
    try:
        with open(regular(failure), encoding="utf-8", errors="replace") as file:
            return file.readline(LONGEST_LINE).rstrip("\n")
    except OSError as error:
        return f"{failure.name} cannot be read: {reason(error)}"


def _show(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
