"""The object given to a stage's function: configuration, inputs and paths for its outputs."""

import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from toolkit.config.settings import flatten, result_parameters, to_plain
from toolkit.errors import ToolkitError
from toolkit.processes import ranks
from toolkit.processes.devices import choose_device
from toolkit.stages.directory import RunDirectory
from toolkit.stages.marker import Progress, Provenance
from toolkit.stages.plan import PATTERN, Planner, audio_input, is_outside
from toolkit.storage.digests import Content, FileDigest
from toolkit.storage.paths import overlap

RESERVED = ("stages", "profiles", ".partial", "log.txt")
PROGRESS_EVERY = 1.0  # seconds
MOST_NAMED = 3
"""Largest number of stages that an error message names."""


class MissingInputError(ToolkitError):
    """A stage needs a file that is not there."""


class DeclarationError(ToolkitError):
    """A stage declares an impossible input or output: an error in the recipe."""


@dataclasses.dataclass(frozen=True)
class StageOutputs:
    """Number, title and outputs of another stage of the recipe, for error messages."""

    number: int
    title: str
    outputs: tuple[str, ...]


class Run:
    """One run of one stage; what the stage reads through this object decides when it is stale.

    Attributes:
      stage: the stage's number.
      config: the configuration; each section that is read is recorded.
      jobs: how many worker processes to use; results must not depend on it.
      command: the command line of this run, for result tables.
      provenance: parameters and inputs recorded so far. None on ranks other than 0, which record
        nothing and use the same paths as rank 0.

    Args:
      seconds_before: wall time of the interrupted attempts that this one resumes.
      wait_for: called with the name of an input, which a background stage may be making.
    """

    def __init__(
        self,
        stage: int,
        planner: Planner,
        provenance: Provenance | None,
        other_stages: list[StageOutputs],
        device: str | None,
        jobs: int,
        command: str,
        seconds_before: float = 0.0,
        wait_for: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.stage, self.jobs, self.command = stage, jobs, command
        self.config = RecordedConfig(planner.config, self)
        self.outputs: list[str] = []
        self.provenance = provenance
        self._planner = planner
        self._directory: RunDirectory = planner.directory
        self._other_stages, self._device = other_stages, device
        self._wait_for = wait_for
        self._needed: set[str] = set()
        self._audio_digests: dict[str, str] = {}
        self._started = time.monotonic() - seconds_before
        self._progress_written = -PROGRESS_EVERY

    def need(
        self, path: str | Path, compare: Literal["content", "listing", "existence"] = "content"
    ) -> Path:
        """Return the path of an input and record it.

        The location of a user's file or folder does not matter if the configuration names it, see
        `toolkit.stages.plan`.

        Args:
          path: relative to the run directory, or absolute for a file or folder of the user.
          compare: what makes the stage stale if it changes. "content": the content of the file, or
            of any file in the folder; files are read once, and again if size, times or inode
            change. "listing": the names, sizes and modification times in the folder, as for a
            corpus whose audio `need_audio` checks. "existence": whether the path exists.

        Raises:
          MissingInputError: it does not exist, or is a pipe or a device. The message names the
            stages that are not done, or the setting that holds the path.
        """
        name = self._name(path)
        full_path = self._directory.root / name
        self._need(name, "content" if compare == "listing" and full_path.is_file() else compare)
        return full_path

    def exists(self, name: str) -> bool:
        """Return whether the run directory has a file or folder `name`, without recording it."""
        return (self._directory.root / name).exists()

    def digest(self, path: str) -> str:
        """Return the digest of an input's content, and record the input as `need` does."""
        return self._need(self._name(path), "content").digest

    def need_matches(self, pattern: str | Path) -> None:
        """Record the contents of the user's files that match a pattern.

        Files that match it later, or no longer match, count as a change too.

        Raises:
          MissingInputError: it matches no file.
        """
        self._need(str(Path(pattern).absolute()), PATTERN)

    def need_audio(self, manifest: str) -> dict[str, str]:
        """Record the contents of the audio files that a manifest of cuts names.

        They are read once, unless `add_digest` has noted their digests, and again only if size,
        times or inode change.

        Args:
          manifest: its path, relative to the run directory.

        Returns:
          Digests by absolute path, "" for files that do not exist; empty on ranks other than 0.

        Raises:
          MissingInputError: there is no such manifest.
        """
        if self.provenance is None:
            return {}
        content, digests = self._planner.audio(manifest, self._audio_digests)
        if content is None:
            raise MissingInputError(self._missing(manifest))
        self._record_input(audio_input(manifest), content)
        return digests

    def add_digest(self, path: str, digest: FileDigest) -> None:
        """Note the digest of an audio file that a worker has just read, for `need_audio`."""
        self._audio_digests[path] = digest.digest
        self._planner.digests.add(Path(path), digest)

    def _need(self, name: str, kind: str) -> Content:
        """Record an input by its name and return its content, see `need`."""
        if self.provenance is None:
            if not (self._directory.root / name).exists() and kind != PATTERN:
                raise MissingInputError(f"`{name}` is missing on worker {ranks.rank()}'s host")
            return Content(0, "")
        # An input in the run directory is an output of another stage, which may still be running.
        if not is_outside(name):
            self._check_declared(name)
            waits_since = time.monotonic()
            self._wait_for(name)
            self._started += time.monotonic() - waits_since  # time of another stage
        content = self._planner.present(name, kind)
        if content is None:
            raise MissingInputError(self._missing(name))
        self._record_input(name, content)
        return content

    def _check_declared(self, name: str) -> None:
        """Raise a `DeclarationError` if this or a later stage makes the input `name`."""
        if any(overlap(name, output) for output in self.outputs):
            raise DeclarationError(f"stage {self.stage} needs `{name}`, which it makes itself")
        for stage in self._other_stages:
            if stage.number > self.stage and _made_by(stage, name):
                raise DeclarationError(
                    f"stage {self.stage} needs `{name}`, which stage {stage.number} makes later"
                )

    def make(self, name: str) -> Path:
        """Return where to build the output `name`, a file or folder of the run directory.

        The path is the same in each attempt. Files of an interrupted attempt are kept there while
        parameters and inputs are the same, so that a long stage can resume. The output is renamed
        to `name` once the stage has succeeded.

        Raises:
          LinkError: a link stands where the output is built or will be, or on the way there.
        """
        path = PurePosixPath(name)
        inside = bool(path.parts) and not path.is_absolute() and ".." not in path.parts
        if not inside or path.parts[0] in RESERVED:
            raise DeclarationError(f"stage {self.stage}: `{name}` cannot be the name of an output")
        name = str(path)
        if self.provenance is not None and name not in self.outputs:
            if any(overlap(name, output) for output in self.outputs):
                raise DeclarationError(
                    f"stage {self.stage}: the output `{name}` overlaps another output of the stage"
                )
            for stage in self._other_stages:
                if _made_by(stage, name):
                    raise DeclarationError(
                        f"stages {self.stage} and {stage.number} both make `{name}`; if stage "
                        f"{stage.number} no longer makes it, first run the recipe with --force "
                        f"{stage.number}"
                    )
            if any(overlap(name, needed) for needed in self._needed):
                raise DeclarationError(f"stage {self.stage} makes `{name}`, which it also needs")
            self.outputs.append(name)
            self._write_provenance()
        partial = self._directory.partial(self.stage, name)
        self._directory.refuse_links(partial, self._directory.root / name)
        partial.parent.mkdir(parents=True, exist_ok=True)
        return partial

    def previous(self, output: Path) -> Path | None:
        """Return the output of the last success, so that parts of it can be reused.

        The marker then also names the attempts that made this output.

        Args:
          output: the path that `make` returned for it.

        Returns:
          The path; None if there is no such output, if it was changed, if other code or packages
          made it, if the stage was forced, or if this rank is not 0.
        """
        name = output.relative_to(self._directory.partial(self.stage)).as_posix()
        marker = self._planner.marker(self.stage)
        if self.provenance is None or self.provenance.forced:
            return None
        if marker is None or name not in marker.outputs:
            return None
        # Parts of an output are reused only if all attempts that made it had the present code.
        made_by, attempts = marker.provenance.attempts, self.provenance.attempts
        if not attempts or any(attempt.code.changes(attempts[-1].code) for attempt in made_by):
            return None
        present = self._planner.present(name, "content")
        if present is None or present.digest != marker.outputs[name].digest:
            return None
        # The marker of the new output names these attempts as well: they made parts of it.
        attempts[:0] = [attempt for attempt in made_by if attempt not in attempts]
        self._write_provenance()
        return self._directory.root / name

    def progress(self, done: float, total: float) -> None:
        """Record that `done` of `total` units of work are done, for `--list`.

        Written at most once a second.
        """
        if self.provenance is None:
            return
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
        """Return a setting inside a section, and record it without the section's other settings.

        Args:
          key: dotted, such as `lm.order`.
        """
        value = attrgetter(key)(self._planner.config)
        self.record_parameter(key, value)
        return value

    def record_parameter(self, name: str, value: Any) -> None:
        """Record that the stage has read a section of the configuration, or a setting inside it."""
        if self.provenance is not None and name not in self.provenance.parameters:
            self.provenance.parameters[name] = result_parameters(value)
            if self.outputs:
                self._write_provenance()

    def _record_input(self, name: str, content: Content) -> None:
        """Record an input in the provenance, unless it is recorded already."""
        assert self.provenance is not None  # all callers check this
        self._needed.add(name)
        names = self._planner.names.names(name, self.provenance.parameters)
        if any(self.provenance.inputs.get(each) != content for each in names):
            self.provenance.inputs |= dict.fromkeys(names, content)
            if self.outputs:
                self._write_provenance()

    def _write_provenance(self) -> None:
        """Write the provenance before any output that depends on it is written."""
        assert self.provenance is not None
        self.provenance.update_numeric()
        path = self._directory.provenance(self.stage)
        self._directory.write(path, self.provenance.to_json())

    def _name(self, path: str | Path) -> str:
        """Return the path relative to the run directory, or absolute if it lies elsewhere."""
        normalised = os.path.normpath(self._directory.root / path)
        root = str(self._directory.root)
        if normalised.startswith(root + os.sep):
            return os.path.relpath(normalised, root)
        return str(Path(path).absolute()) if Path(path).is_absolute() else normalised

    def _missing(self, name: str) -> str:
        """Return the message for a missing input: the stage that makes it, or its setting."""
        if is_outside(name):
            fault = "is not a regular file" if Path(name).exists() else "does not exist"
            return f"`{name}` {fault}{self._key_hint(name)}"
        message = f"`{name}` is missing"
        makers = [stage for stage in self._other_stages if _made_by(stage, name)]
        earlier = [stage for stage in self._other_stages if stage.number < self.stage]
        states = {s.number: s for s in self._planner.stages}
        missing = [o for o in earlier if not self._planner.state(states[o.number]).done]
        if stages := makers or missing:
            names = ", ".join(f"{stage.number} ({stage.title})" for stage in stages[:MOST_NAMED])
            names += f" and {len(stages) - MOST_NAMED} more" if len(stages) > MOST_NAMED else ""
            message += f"; {'made by' if makers else 'not done yet:'} stage {names}"
            message += f". Run from there: --stage {stages[0].number}"
        return message

    def _key_hint(self, path: str) -> str:
        """Return advice on the setting whose value is this path; empty if there is none."""
        for key, value in flatten(to_plain(self._planner.config)).items():
            if value == path:
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


def _made_by(stage: StageOutputs, name: str) -> bool:
    """Return whether a stage makes the input `name`."""
    return any(overlap(name, output) for output in stage.outputs)
