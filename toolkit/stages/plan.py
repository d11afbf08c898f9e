"""Plan a run: which stages are done, why others are stale, and what would run.

Markers name the inputs of a stage so that the names stay valid when files are moved. An input in
the run directory is named by its path there; an input that a setting names, by the setting, such as
`{lm.text}`; an input in a corpus, by its path in the corpus's folder, such as `{corpus.root}/wav`.
Every other input is named by its absolute path.
"""

import contextlib
import itertools
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from glob import glob, has_magic
from operator import attrgetter
from pathlib import Path
from typing import Any

from toolkit.config.settings import flatten, result_parameters, to_plain
from toolkit.stages.declaration import Stage
from toolkit.stages.directory import RunDirectory
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
from toolkit.storage.paths import RUN, PathAliases, folder_of, overlap, parse_mapping
from toolkit.storage.reading import reason, regular

LONGEST_LINE = 10_000
"""Largest number of characters of a failure's message that are read."""

MOST_REASONS = 3
PATTERN = "pattern"
"""Kind of an input that consists of all files matching a pattern."""


@dataclass(frozen=True)
class State:
    """The state of one stage.

    Its kind is "done", "stale" (done with other inputs or parameters), "partial" (interrupted),
    "failed" or "pending" (never run).
    """

    kind: str
    why: str = ""
    """Why the stage is stale or failed, or what will happen to partial outputs; may be empty."""
    marker: Marker | None = None
    """The marker of the last success, if any."""
    percent: int | None = None
    """Progress of the partial outputs."""

    @property
    def done(self) -> bool:
        """Whether the stage need not run."""
        return self.kind == "done"

    def __str__(self) -> str:
        percent = "" if self.percent is None else f" {self.percent} %"
        return f"{self.kind}{percent}" + (f": {self.why}" if self.why else "")


@dataclass(frozen=True)
class PlannedStage:
    """A stage and its action in a run: `run`, `skip`, or `may run` if an input changes."""

    stage: Stage
    action: str
    state: State
    why: str


class Planner:
    """Compares the markers in a run directory with the present files and configuration.

    It writes nothing; `--list`, `--dry-run` and runs all use it.

    Args:
      directory: the run directory.
      stages: stages of the recipe.
      config: the present configuration.
      digests: digests of the files; None: those that the run directory has cached.
    """

    def __init__(
        self,
        directory: RunDirectory,
        stages: Sequence[Stage],
        config: Any,
        digests: Digests | None = None,
    ) -> None:
        self.directory, self.stages, self.config = directory, stages, config
        self.names = InputNames(directory.root, config)
        self.digests = digests or directory.load_digests(self.names.folders)
        self._numbers = {stage.title: stage.number for stage in stages}

    def plan(self, first: int, last: int, forced: Collection[int] = ()) -> list[PlannedStage]:
        """Return what a run over the stages `first` to `last` would do."""
        chosen = [stage for stage in self.stages if first <= stage.number <= last]
        return plan([(stage, self.state(stage)) for stage in chosen], forced)

    def state(self, stage: Stage) -> State:
        """Return the state of a stage; nothing is written.

        A stage that the configuration skips counts as done if it has outputs: they are kept until
        it is enabled again.
        """
        state = self._state(stage.number)
        has_outputs = state.marker is not None and bool(state.marker.outputs)
        can_lose = has_outputs or state.kind in ("partial", "failed")
        if can_lose and not stage.is_enabled(self.config):
            return State("done", marker=state.marker)
        return state

    def _state(self, stage: int) -> State:
        """Compute the state of a stage, see `state`."""
        directory = self.directory
        progress = Progress.read(directory.progress(stage))
        provenance = Provenance.read(directory.provenance(stage))
        percent = None
        if provenance and progress and progress.total:
            percent = int(100 * min(progress.done / progress.total, 1))
        # Interrupted between the end of the stage and the renaming of its outputs.
        if directory.publishing(stage).exists():
            return State("partial", "the next run puts its finished outputs in place", None, 100)
        try:
            marker = Marker.read(directory.marker(stage))
            reasons = self._marker_changes(marker) if marker else []
        except UnreadableMarkerError as error:
            marker, reasons = None, [str(error)]
        if marker and not reasons:
            return State("done", marker=marker)
        # The stage's number now belongs to another stage of the recipe.
        if marker and self._number(marker) != stage:
            marker = None
        why = join_reasons(reasons)
        if directory.failure(stage).exists():
            message = _first_line(directory.failure(stage))
            return State("failed", message, marker, percent)
        # An interrupted attempt resumes only with the parameters and inputs that it had.
        if provenance:
            changes = join_reasons(self.changes(provenance))
            why = f"will start over ({changes})" if changes else why
            return State("partial", why, marker, percent)
        return State("stale", why, marker) if why else State("pending")

    def marker(self, stage: int) -> Marker | None:
        """Return the marker of a stage; None if there is none that can be read."""
        try:
            return Marker.read(self.directory.marker(stage))
        except UnreadableMarkerError:
            return None

    def outputs(self, stage: int) -> list[str]:
        """Return the names of the outputs that a stage had when it last finished."""
        marker = self.marker(stage)
        return sorted(marker.outputs) if marker and self._number(marker) == stage else []

    def _number(self, marker: Marker) -> int:
        """Return the current number of a marker's stage, as recipes renumber stages."""
        return self._numbers.get(marker.title, marker.stage)

    def _marker_changes(self, marker: Marker) -> list[str]:
        """Return why the stage of `marker` is no longer done; empty if it still is."""
        # 1. Parameters and inputs. 2. The stage's number. 3. Outputs that were deleted or edited.
        reasons = self.changes(marker.provenance)
        if (number := self._number(marker)) != marker.stage:
            reasons.insert(0, f"its marker is from stage {number}, which had this number before")
        for name, old in marker.outputs.items():
            new = self.digests.content(self.directory.root / name)
            if new is None:
                reasons.append(f"output `{name}` was deleted")
            elif change := difference(name, old, new):
                reasons.append(f"output {change}")
        return reasons

    def changes(self, provenance: Provenance) -> list[str]:
        """Return how parameters and inputs differ from those in `provenance`, in words."""
        reasons = list(self._parameter_changes(provenance))
        for name, old in provenance.inputs.items():
            if self.names.is_gone(name):
                continue  # its setting no longer names a file: the changed parameter is a reason
            text = str(self.names.path(name)) if is_outside(name) else name
            text = text.removeprefix(audio_input(""))
            text = str(fixed_folder(Path(text))) if old.kind == PATTERN else text
            change = difference(text, old, self.present(name, old.kind))
            if change:
                reasons.append(f"input {change}")
        return reasons

    def present(self, name: str, kind: str) -> Content | None:
        """Return the current size and digest of an input; None if it does not exist.

        Args:
          name: name of the input.
          kind: "content", "listing" or "existence" (see `Run.need`), or `PATTERN` or `AUDIO`.
        """
        if kind == AUDIO:
            return self.audio(name.removeprefix(audio_input("")))[0]
        path = self.names.path(name)
        if kind == "existence":
            return Content(0, "", kind=kind) if path.exists() else None
        if kind == PATTERN:
            return self._matches(path)
        since = self.digests.since
        return listing(path, since) if kind == "listing" else self.digests.content(path)

    def _matches(self, pattern: Path) -> Content | None:
        """Return size and digests of the files that match a pattern; None if there are none."""
        folder = fixed_folder(pattern)
        paths = filter(os.path.isfile, sorted(glob(str(pattern), recursive=True)))
        contents = {os.path.relpath(p, folder): self.digests.content(Path(p)) for p in paths}
        files = {name: content for name, content in contents.items() if content is not None}
        digests = {name: content.digest for name, content in files.items()}
        size = sum(content.size for content in files.values())
        return Content(size, combined(digests), len(files), PATTERN, digests) if files else None

    def audio(
        self, manifest: str, known_digests: Mapping[str, str] | None = None
    ) -> tuple[Content | None, dict[str, str]]:
        """Return the digests of the audio files that a manifest names.

        Args:
          manifest: its path, relative to the run directory.
          known_digests: digests that are already known, by path; those files are not read.

        Returns:
          Their number and combined digest, None without the manifest; and the digest of each file
          by path, "" for a file that does not exist.
        """
        path = self.directory.root / manifest
        if not path.is_file():
            return None, {}
        files = {name: self.names.path(name) for name in audio_names(path)}
        known_digests = known_digests or {}
        digests = {str(f): known_digests.get(str(f)) or self._digest(f) for f in files.values()}
        by_name = {name: digests[str(file)] for name, file in files.items()}
        return Content(0, combined(by_name), len(files), AUDIO), digests

    def _digest(self, file: Path) -> str:
        """Return the digest of a file; "" if it does not exist."""
        content = self.digests.content(file)
        return content.digest if content else ""

    def _parameter_changes(self, provenance: Provenance) -> Iterator[str]:
        """Yield the settings that differ from those in `provenance`, with both values."""
        recorded = provenance.parameters
        # Compare what the stage read then with the same settings of the present configuration.
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
                yield f"`{key}` ({_show(new[key])}) is a new parameter"
            elif same_setting(key, old[key], new[key], provenance.inputs):
                continue  # only the path differs: `changes` compares the contents
            # In Python True == 1: a change between bool and number counts too.
            elif old[key] != new[key] or isinstance(old[key], bool) != isinstance(new[key], bool):
                old_text, new_text = _show(old[key]), _show(new[key])
                yield (
                    f"`{key}` {old_text} -> {new_text}"
                    if old_text != new_text
                    else f"`{key}` changed"
                )


def plan(stages: Sequence[tuple[Stage, State]], forced: Collection[int]) -> list[PlannedStage]:
    """Return what a run over stages in these states would do.

    A stage that is done but reads an output of an earlier stage that would run *may* run: it does
    if that output changes.
    """
    planned: list[PlannedStage] = []
    changing: set[int] = set()
    for stage, state in stages:
        if stage.number in forced:
            planned.append(PlannedStage(stage, "run", state, "forced"))
        elif not state.done:
            planned.append(PlannedStage(stage, "run", state, _why(state)))
        # Whether its inputs change is known only once the stages that make them have run.
        elif sources := sorted(_makers(state.marker, stages) & changing):
            why = f"if stage {', '.join(map(str, sources))} changes its outputs"
            planned.append(PlannedStage(stage, "may run", state, why))
        else:
            planned.append(PlannedStage(stage, "skip", state, "done"))
        if planned[-1].action != "skip":
            changing.add(stage.number)
    return planned


def join_reasons(reasons: list[str]) -> str:
    """Return the first few reasons on one line."""
    more = len(reasons) - MOST_REASONS
    return "; ".join(reasons[:MOST_REASONS]) + (f"; and {more} more" if more > 0 else "")


def _why(state: State) -> str:
    """Return why a stage is not done."""
    if state.kind == "pending":
        return "never run"
    return state.why if state.kind == "stale" else str(state)


def _makers(reader: Marker | None, stages: Sequence[tuple[Stage, State]]) -> set[int]:
    """Return the stages that make an input of `reader`.

    For an input that no marker lists, these are all stages without a marker.
    """
    markers = {stage.number: state.marker for stage, state in stages}
    # A stage without a marker may make any input that no other stage makes.
    unknown = {number for number, marker in markers.items() if marker is None}
    makers: set[int] = set()
    for name in reader.provenance.inputs if reader else ():
        if not is_outside(name):
            owners = {
                number
                for number, marker in markers.items()
                if marker and any(overlap(name, output) for output in marker.outputs)
            }
            makers |= owners or unknown
    return makers


def _first_line(failure: Path) -> str:
    """Return the first line of the file of a stage's failure: its message."""
    try:
        with open(regular(failure), encoding="utf-8", errors="replace") as file:
            return file.readline(LONGEST_LINE).rstrip("\n")
    except OSError as error:
        return f"{failure.name} cannot be read: {reason(error)}"


def _show(value: Any) -> str:
    """Return a setting's value as short text."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


MAP = "map_paths"
"""Last part of the keys of settings with mappings `OLD=NEW`; the NEW of mapping N is the alias
`{KEY.N}`."""
ROOT = "root"
"""Last part of the keys of settings whose folder is an alias: names may begin with it."""


class InputNames:
    """Names and paths of inputs under one configuration.

    Args:
      root: the run directory.
      config: configuration of the recipe.
    """

    def __init__(self, root: Path, config: Any) -> None:
        settings = flatten(to_plain(config))
        self._root = root
        self._settings = {key: value for key, value in settings.items() if is_path(value)}
        self._mapped = {
            f"{key}.{number}": parse_mapping(mapping)[1]
            for key, mappings in settings.items()
            if key.split(".")[-1] == MAP
            for number, mapping in enumerate(mappings)
        }

    @cached_property
    def folders(self) -> dict[str, str]:
        """The folders of the path aliases, by the settings that define them."""
        settings = self._settings.items()
        roots = {key: folder_of(value) for key, value in settings if key.split(".")[-1] == ROOT}
        return {**roots, **self._mapped}

    def names(self, path: str, sections: Iterable[str]) -> list[str]:
        """Return the names that markers may use for an input: settings, a path alias, or its path.

        Args:
          path: absolute, or relative to the run directory.
          sections: what the stage has read of the configuration: top-level fields, and dotted
            settings; the input is not named after other settings, on which the stage does not
            depend.
        """
        sections = tuple(sections)
        read = {
            key
            for key in (*self._settings, *self._mapped)
            if any(key == section or key.startswith(f"{section}.") for section in sections)
        }
        exact = [f"{{{key}}}" for key in sorted(read) if self._settings.get(key) == path]
        folders = {key: folder for key, folder in self.folders.items() if key in read}
        name = PathAliases(folders).name(path)
        # `{KEY}` may name a file whose folder is the alias: the folder itself is named `{KEY}/`.
        return exact or [f"{name}/" if name.startswith("{") and name.endswith("}") else name]

    def is_gone(self, name: str) -> bool:
        """Return whether an input was named after a setting that is no longer a path."""
        setting, brace, _ = name.removeprefix("{").partition("}")
        is_path_setting = setting in self._settings or setting in self._mapped
        return bool(brace) and name.startswith("{") and not is_path_setting

    def path(self, name: str) -> Path:
        """Return the path of an input; if its setting is gone, the path does not exist."""
        if name.startswith("{") and name.endswith("}") and name[1:-1] in self._settings:
            return Path(self._settings[name[1:-1]])
        return self._root / PathAliases({RUN: str(self._root), **self.folders}).path(name)


def fixed_folder(pattern: Path) -> Path:
    """Return the folder in or below which all matches of a pattern lie."""
    return Path(*itertools.takewhile(lambda part: not has_magic(part), pattern.parts))


def audio_input(manifest: str) -> str:
    """Return the name in markers of the audio files that a manifest lists."""
    return f"{AUDIO}:{manifest}"


def is_path(value: Any) -> bool:
    """Return whether a plain setting is an absolute path, as all paths in a configuration are."""
    return isinstance(value, str) and value.startswith("/")


def is_outside(name: str) -> bool:
    """Return whether an input lies outside the run directory, by its name."""
    return name.startswith(("/", "{"))


def same_setting(key: str, old: Any, new: Any, inputs: Mapping[str, Any]) -> bool:
    """Return whether a setting is only a new path to an input that the stage has recorded.

    If so, the contents decide whether the stage is stale, see `Planner.changes`.
    """
    if f"{{{key}}}" in inputs:
        return is_path(old) and is_path(new)
    if key.split(".")[-1] != MAP or not old or not isinstance(new, list) or len(old) != len(new):
        return False
    old_mappings, new_mappings = list(map(parse_mapping, old)), list(map(parse_mapping, new))
    return all(
        first[0] == second[0]
        and (first == second or any(name.startswith(f"{{{key}.{number}}}") for name in inputs))
        for number, (first, second) in enumerate(zip(old_mappings, new_mappings, strict=True))
    )
