"""The object given to a stage's function: configuration, inputs and paths for its outputs."""

import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import Any

from toolkit.config.settings import flatten, result_parameters, to_plain
from toolkit.errors import ToolkitError
from toolkit.processes.devices import choose_device
from toolkit.stages.directory import RunDirectory
from toolkit.stages.inputs import audio_input
from toolkit.stages.marker import Progress, Provenance
from toolkit.stages.plan import PATTERN, PLACE, Inspector
from toolkit.storage.digests import Content, FileDigest
from toolkit.storage.paths import overlap

RESERVED = ("stages", "profiles", ".partial", "log.txt")
PROGRESS_EVERY = 1.0  # seconds
NAMED = 3  # stages in an error


class MissingInputError(ToolkitError):
    """A stage needs a file that is not there."""


class DeclarationError(ToolkitError):
    """A stage declares an impossible input or output: an error in the recipe."""


@dataclasses.dataclass(frozen=True)
class OtherStage:
    """Another stage of the recipe, with what this stage's error messages need of it."""

    number: int
    title: str
    outputs: tuple[str, ...]


class Run:
    """One run of one stage. What the stage reads through it decides when its result is stale.

    Attributes:
      stage: the stage's number.
      jobs: how many worker processes to use; results must not depend on it.
      command: the command line of this run, for result tables.

    `settle` waits for an input that a stage beside this one makes.
    """

    def __init__(
        self,
        stage: int,
        inspector: Inspector,
        provenance: Provenance,
        other_stages: list[OtherStage],
        device: str | None,
        jobs: int,
        command: str,
        seconds_before: float = 0.0,
        settle: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.stage, self.jobs, self.command = stage, jobs, command
        self.config = RecordedConfig(inspector.config, self)
        self.outputs: list[str] = []
        self.provenance = provenance
        self._inspector = inspector
        self._directory: RunDirectory = inspector.directory
        self._other_stages, self._device = other_stages, device
        self._settle = settle
        self._needed: set[str] = set()
        self._seen: dict[str, str] = {}
        self._started = time.monotonic() - seconds_before
        self._progress_written = -PROGRESS_EVERY

    def need(self, name: str | Path) -> Path:
        """Return the path of an input and record its content.

        Args:
          name: a file or folder relative to the run directory, or an absolute path outside it.

        Raises:
          MissingInputError: it does not exist; the message names the stages that are not done.
        """
        name = self._relative(name)
        self._needed_content(name)
        return self._directory.root / name

    def exists(self, name: str) -> bool:
        """Return whether the run directory has a file or folder `name`; nothing is recorded."""
        return (self._directory.root / name).exists()

    def digest(self, name: str) -> str:
        """Return the digest of the content of an input, which is recorded as by `need`."""
        return self._needed_content(self._relative(name)).digest

    def _needed_content(self, name: str) -> Content:
        """Record an input by its relative name and return its content, see `need`."""
        if any(overlap(name, output) for output in self.outputs):
            raise DeclarationError(f"stage {self.stage} needs `{name}`, which it makes itself")
        for other in self._other_stages:
            if other.number > self.stage and _made_by(other, name):
                raise DeclarationError(
                    f"stage {self.stage} needs `{name}`, which stage {other.number} makes later"
                )
        begun = time.monotonic()
        self._settle(name)
        self._started += time.monotonic() - begun  # the time of another stage
        content = self._inspector.present(name, "content")
        if content is None:
            raise MissingInputError(self._missing(name))
        self._record_input(name, content)
        return content

    def need_outside(self, path: str | Path, whole: bool = False) -> Path:
        """Return the path of an input outside the run directory and record it.

        A file is recorded by content. Where it is does not matter if the configuration says it,
        see `toolkit.stages.inputs`.

        Args:
          path: a file or a folder.
          whole: record a folder by the contents of its files too, which are read once and again
            when size, times or inode change; otherwise, as for a corpus whose audio is watched by
            `need_audio`, by names, sizes and modification times alone.

        Raises:
          MissingInputError: it does not exist, or is a pipe or a device; the message names the
            setting that holds it.
        """
        listed = Path(path).is_dir() and not whole
        return self._need_outside(path, "listing" if listed else "content")

    def need_matches(self, pattern: str | Path) -> None:
        """Record the files outside the run directory that a pattern matches, by their contents.

        Files that match it later, or no longer, are a change too.

        Raises:
          MissingInputError: it matches no file.
        """
        self._need_outside(pattern, PATTERN)

    def need_audio(self, manifest: str) -> dict[str, str]:
        """Record the contents of the audio files that a manifest of cuts names.

        They are read once, if `remember` has not been told of them, and again only if size, times
        or inode change.

        Args:
          manifest: its path, relative to the run directory.

        Returns:
          Digests by absolute path, "" for files that are not there.

        Raises:
          MissingInputError: there is no such manifest.
        """
        content, digests = self._inspector.audio(manifest, self._seen)
        if content is None:
            raise MissingInputError(self._missing(manifest))
        self._record_input(audio_input(manifest), content)
        return digests

    def remember(self, path: str, found: FileDigest) -> None:
        """Note the digest of an audio file that was read, for `need_audio` afterwards."""
        self._seen[path] = found.digest
        self._inspector.digests.remember(Path(path), found)

    def need_place(self, path: str | Path) -> Path:
        """Return a path outside the run directory that the stage does not read.

        That it exists is recorded, so that the stage is done wherever it is.

        Raises:
          MissingInputError: as `need_outside`.
        """
        return self._need_outside(path, PLACE)

    def _need_outside(self, path: str | Path, kind: str) -> Path:
        path = Path(path).absolute()
        content = self._inspector.present(str(path), kind)
        if content is None:
            fault = "is not a regular file" if path.exists() else "does not exist"
            raise MissingInputError(f"`{path}` {fault}{self._key_hint(path)}")
        self._record_input(str(path), content)
        return path

    def make(self, name: str) -> Path:
        """Return where to build the output `name`, a file or folder of the run directory.

        The path is the same in each attempt, and what an interrupted attempt left there is kept
        as long as parameters and inputs are the same, so that a long stage can resume from it. The
        output is renamed to `name` once the stage has succeeded.

        Raises:
          LinkError: a link stands where the output is built or will be, or on the way there.
        """
        path = PurePosixPath(name)
        inside = bool(path.parts) and not path.is_absolute() and ".." not in path.parts
        if not inside or path.parts[0] in RESERVED:
            raise DeclarationError(f"stage {self.stage}: `{name}` cannot be the name of an output")
        name = str(path)
        if name not in self.outputs:
            if any(overlap(name, output) for output in self.outputs):
                raise DeclarationError(f"stage {self.stage}: the output `{name}` overlaps another")
            for other in self._other_stages:
                if _made_by(other, name):
                    raise DeclarationError(
                        f"stage {self.stage} makes `{name}`, which stage {other.number} makes too; "
                        f"if it no longer does, run it again first: --force {other.number}"
                    )
            if any(overlap(name, needed) for needed in self._needed):
                raise DeclarationError(f"stage {self.stage} makes `{name}`, which it also needs")
            self.outputs.append(name)
            self._write_provenance()
        partial = self._directory.partial(self.stage, name)
        self._directory.refuse_links(partial, self._directory.root / name)
        partial.parent.mkdir(parents=True, exist_ok=True)
        return partial

    def previous(self, made: Path) -> Path | None:
        """Return an output as the stage finished it last, so that parts of it can be taken over.

        The marker will then name the attempts that made it, too.

        Args:
          made: what `make` has returned for the output.

        Returns:
          None if there is none, if it is not as it was, if other code or packages made it, or after
          `--force`.
        """
        name = made.relative_to(self._directory.partial(self.stage)).as_posix()
        marker = self._inspector.marker(self.stage)
        if self.provenance.forced or marker is None or name not in marker.outputs:
            return None
        made_by, attempts = marker.provenance.attempts, self.provenance.attempts
        if not attempts or any(attempt.code.changes(attempts[-1].code) for attempt in made_by):
            return None
        present = self._inspector.present(name, "content")
        if present is None or present.digest != marker.outputs[name].digest:
            return None
        attempts[:0] = [attempt for attempt in made_by if attempt not in attempts]
        self._write_provenance()
        return self._directory.root / name

    def progress(self, done: float, total: float) -> None:
        """Record that `done` of `total` units of work are done, for `--list`."""
        now = time.monotonic()
        if now - self._progress_written >= PROGRESS_EVERY:
            self._progress_written = now
            progress = Progress(done, total, self.seconds)
            self._directory.write(self._directory.progress(self.stage), progress.to_json())
            if self.provenance.update_numeric() and self.outputs:
                self._write_provenance()

    @property
    def seconds(self) -> float:
        """Wall time of this attempt and of those that it resumes."""
        return time.monotonic() - self._started

    @property
    def device(self) -> str:
        """The torch device to compute on, see `choose_device`."""
        return choose_device(self._device)

    def setting(self, key: str) -> Any:
        """Return a setting inside a section, and record it without the rest of the section.

        Args:
          key: dotted, such as `lm.order`.
        """
        value = attrgetter(key)(self._inspector.config)
        self.record_parameter(key, value)
        return value

    def record_parameter(self, name: str, value: Any) -> None:
        """Record that the stage has read a section of the configuration, or a setting inside it."""
        if name not in self.provenance.parameters:
            self.provenance.parameters[name] = result_parameters(value)
            if self.outputs:
                self._write_provenance()

    def _record_input(self, name: str, content: Content) -> None:
        self._needed.add(name)
        names = self._inspector.names.names(name, self.provenance.parameters)
        if any(self.provenance.inputs.get(each) != content for each in names):
            self.provenance.inputs |= dict.fromkeys(names, content)
            if self.outputs:
                self._write_provenance()

    def _write_provenance(self) -> None:
        """Write it before anything that depends on it is written."""
        self.provenance.update_numeric()
        path = self._directory.provenance(self.stage)
        self._directory.write(path, self.provenance.to_json())

    def _relative(self, name: str | Path) -> str:
        path = os.path.normpath(self._directory.root / name)
        root = str(self._directory.root)
        return os.path.relpath(path, root) if path.startswith(root + os.sep) else path

    def _missing(self, name: str) -> str:
        message = f"`{name}` is missing"
        makers = [other for other in self._other_stages if _made_by(other, name)]
        earlier = [other for other in self._other_stages if other.number < self.stage]
        missing = [o for o in earlier if not self._inspector.state(o.number).done]
        if stages := makers or missing:
            names = ", ".join(f"{other.number} ({other.title})" for other in stages[:NAMED])
            names += f" and {len(stages) - NAMED} more" if len(stages) > NAMED else ""
            message += f"; {'made by' if makers else 'not done yet:'} stage {names}"
            message += f". Run from there: --stage {stages[0].number}"
        return message

    def _key_hint(self, path: Path) -> str:
        for key, value in flatten(to_plain(self._inspector.config)).items():
            if value == str(path):
                return f"; say where it is with --set {key}=PATH"
        return ""


class RecordedConfig:
    """A configuration that records which of its top-level fields are read.

    Methods and properties of the configuration run on this object, so that the fields they read
    are recorded too.
    """

    def __init__(self, config: Any, run: Run) -> None:
        self._config, self._run = config, run
        self._names = {field.name for field in dataclasses.fields(config)}

    def __getattr__(self, name: str) -> Any:
        if name in self._names:
            value = getattr(self._config, name)
            self._run.record_parameter(name, value)
            return value
        attribute = getattr(type(self._config), name)
        bind = getattr(type(attribute), "__get__", None)
        return bind(attribute, self, type(self._config)) if bind else attribute


def plain_headline(headline: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a stage's headline numbers as plain numbers (a tensor or numpy scalar is one too)."""
    return {
        str(name): value if isinstance(value, bool | int | float | str) else float(value)
        for name, value in (headline or {}).items()
    }


def _made_by(other: OtherStage, name: str) -> bool:
    return any(overlap(name, output) for output in other.outputs)
