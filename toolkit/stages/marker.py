"""The provenance of a stage's outputs, and the marker of a finished stage."""

import dataclasses
import json
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from toolkit.config.fields import from_plain
from toolkit.environment import git_state, numeric_environment, result_versions
from toolkit.errors import ToolkitError
from toolkit.storage.digests import Content, digest_bytes
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import DAMAGE_ERRORS, NATURAL, read_json, validated

SCHEMA = 2
_CONTENTS = {str: {"size": NATURAL, "digest": str}}
_CODE = {"commit": str | None, "dirty": bool, "diff": str, "versions": {str: str | None}}
_ATTEMPT = {"started": str, "code": _CODE, "numeric": {str: str | int | None}}
_PROVENANCE = {
    "parameters": {str: Any},
    "inputs": _CONTENTS,
    "attempts": [_ATTEMPT],
    "forced": bool,
}
_MARKER = {
    **{"stage": NATURAL, "title": str, "parameters_digest": str, "outputs": _CONTENTS},
    **{"command": str, "started": str, "ended": str, "seconds": float, "peak_bytes": NATURAL},
    **{"headline": {str: Any}},
}
_PROGRESS = {"done": float, "total": float, "seconds": float}


@dataclass(frozen=True)
class CodeVersion:
    """The code and the packages that a process runs with."""

    commit: str | None
    """Commit of the recipe's repository; None outside of git."""
    dirty: bool
    """Whether tracked files differ from the commit."""
    diff: str
    """Digest of `git diff HEAD`; empty if nothing differs."""
    versions: dict[str, str | None]
    """Versions of packages, see `toolkit.environment.result_versions`."""

    def __str__(self) -> str:
        if self.commit is None:
            return "none"
        return self.commit[:12] + (f" with changes {self.diff[:8]}" if self.dirty else "")

    def changes(self, now: "CodeVersion") -> list[str]:
        """Return how `now` differs: "commit a -> b", "torch 2.14 -> 2.15"; empty if it is equal.

        A package that only one of the two versions names counts as equal.
        """
        return [f"{name} {old} -> {new}" for name, old, new in self.differences(now)]

    def differences(self, now: "CodeVersion") -> list[tuple[str, str, str]]:
        """Return (what differs, its old value, its new value) of each change; see `changes`."""
        pairs = [("commit", str(self), str(now))]
        for name, new in now.versions.items():
            if name in self.versions:
                pairs.append((name, self.versions[name] or "none", new or "none"))
        return [(name, old, new) for name, old, new in pairs if old != new]


@cache
def code_version(folder: Path) -> CodeVersion:
    """Return the code that a recipe in `folder` runs with, as it is at the first call."""
    state = git_state(folder)
    return CodeVersion(state.commit, state.dirty, state.diff, result_versions())


@dataclass(frozen=True)
class Attempt:
    """One of the processes that worked on a stage."""

    started: str
    code: CodeVersion
    numeric: dict[str, str | int | None]
    """Numeric environment, see `toolkit.environment.numeric_environment`."""


@dataclass
class Provenance:
    """Parameters, inputs and code that outputs are made from.

    Partial outputs are resumed only with the same provenance.
    """

    parameters: dict[str, Any] = field(default_factory=dict)
    """What the stage read of the configuration, as plain data: whole sections by name, single
    settings by dotted key."""
    inputs: dict[str, Content] = field(default_factory=dict)
    """Size and digests of the inputs by name, see `toolkit.stages.plan`."""
    attempts: list[Attempt] = field(default_factory=list)
    """The attempts that worked on the outputs, in order."""
    forced: bool = False
    """Whether `--force` started the stage; if so, the same command resumes it."""

    def code_changes(self, code: CodeVersion) -> list[str]:
        """Return how `code` differs from that of the last attempt, see `CodeVersion.changes`."""
        return self.attempts[-1].code.changes(code) if self.attempts else []

    def update_numeric(self) -> bool:
        """Note the present numeric environment of the last attempt; return whether it changed.

        The numeric environment of torch is known only after the stage has loaded torch.
        """
        numeric = numeric_environment()
        if not self.attempts or self.attempts[-1].numeric == numeric:
            return False
        self.attempts[-1] = replace(self.attempts[-1], numeric=numeric)
        return True

    def to_plain(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "parameters": self.parameters,
            "inputs": _contents_to_plain(self.inputs),
            "attempts": [dataclasses.asdict(attempt) for attempt in self.attempts],
            "forced": self.forced,
        }

    def to_json(self) -> str:
        """Return the content of `.partial/NN.json`."""
        return json.dumps(self.to_plain(), indent=1) + "\n"

    @classmethod
    def from_plain(cls, data: Any) -> "Provenance":
        """Return a provenance from its JSON form.

        Raises:
          ValueError, TypeError, LookupError: it is damaged.
        """
        validated(data, _PROVENANCE)
        inputs, attempts = _contents_from_plain(data["inputs"]), []
        for attempt in data["attempts"]:
            code = CodeVersion(**{name: attempt["code"][name] for name in _CODE})
            attempts.append(Attempt(attempt["started"], code, attempt["numeric"]))
        return cls(data["parameters"], inputs, attempts, data["forced"])

    @classmethod
    def read(cls, path: Path) -> "Provenance | None":
        """Return the provenance of partial outputs; None if there is none that can be read."""
        try:
            return cls.from_plain(read_json(path))
        except DAMAGE_ERRORS:
            return None


@dataclass(frozen=True)
class Progress:
    """Progress of a stage's partial outputs: `done` of `total` units of work."""

    done: float
    total: float
    seconds: float
    """Wall time spent on the partial outputs."""

    def to_json(self) -> str:
        """Return the content of `.partial/NN.progress.json`."""
        return json.dumps(vars(self)) + "\n"

    @classmethod
    def read(cls, path: Path) -> "Progress | None":
        """Return the progress of partial outputs; None if there is none that can be read."""
        try:
            data = read_json(path, _PROGRESS)
            return cls(data["done"], data["total"], data["seconds"])
        except DAMAGE_ERRORS:
            return None


class UnreadableMarkerError(ToolkitError):
    """A marker that is damaged or was written by another version of the runner.

    The runner logs the message as the reason why the stage runs again.
    """


@dataclass(frozen=True)
class Marker:
    """The record of a finished stage. It names no host or user, so that markers can be compared."""

    stage: int
    title: str
    provenance: Provenance
    outputs: dict[str, Content]
    """Size and digests of the outputs by path relative to the run directory."""
    command: str
    started: str
    ended: str
    seconds: float
    """Wall time; interrupted attempts are included as far as they reported progress."""
    headline: dict[str, Any]
    peak_bytes: int = 0
    """Peak resident size of the process and its workers together in the last attempt."""

    @property
    def code(self) -> CodeVersion:
        """The code of the last attempt."""
        return self.provenance.attempts[-1].code

    def write(self, path: Path) -> None:
        """Write the marker as readable JSON, whole or not at all."""
        data = {
            "schema": SCHEMA,
            "stage": self.stage,
            "title": self.title,
            **self.provenance.to_plain(),
            "parameters_digest": parameters_digest(self.provenance.parameters),
            "outputs": _contents_to_plain(self.outputs),
            "command": self.command,
            "started": self.started,
            "ended": self.ended,
            "seconds": self.seconds,
            "peak_bytes": self.peak_bytes,
            "headline": self.headline,
        }
        write_atomically(path, json.dumps(data, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> "Marker | None":
        """Return the marker at `path`; None if there is none.

        Raises:
          UnreadableMarkerError: it is damaged or of another schema.
        """
        try:
            data = read_json(path, {"schema": int})
            if data["schema"] != SCHEMA:
                raise UnreadableMarkerError(
                    "the marker was written by another version of the runner"
                )
            validated(data, _MARKER)
            provenance = Provenance.from_plain(data)
            outputs = _contents_from_plain(data["outputs"])
            intact = data["parameters_digest"] == parameters_digest(data["parameters"])
        except FileNotFoundError:
            return None
        except DAMAGE_ERRORS as error:
            raise UnreadableMarkerError("the marker is damaged") from error
        if not provenance.attempts:
            raise UnreadableMarkerError("the marker is damaged")
        # A marker proves which parameters made a result: one edited by hand proves nothing.
        if not intact:
            raise UnreadableMarkerError("the marker's parameters were edited")
        if not all(map(_is_inside, outputs)):
            raise UnreadableMarkerError("the marker lists outputs outside the run directory")
        return cls(
            stage=data["stage"],
            title=data["title"],
            provenance=provenance,
            outputs=outputs,
            command=data["command"],
            started=data["started"],
            ended=data["ended"],
            seconds=data["seconds"],
            headline=data["headline"],
            peak_bytes=data["peak_bytes"],
        )


def _is_inside(name: str) -> bool:
    """Return whether a relative path stays below its folder, as paths of outputs must."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def outputs_of(path: Path, title: str | None = None) -> list[str]:
    """Return the names of the outputs in the marker at `path`; empty if it cannot be read.

    Args:
      path: path of the marker.
      title: if given, the outputs of a stage with another title, which had this number before, are
        left out.
    """
    try:
        marker = Marker.read(path)
    except UnreadableMarkerError:
        return []
    return sorted(marker.outputs) if marker and title in (None, marker.title) else []


def _contents_to_plain(contents: dict[str, Content]) -> dict[str, Any]:
    """Return sizes and digests as plain data for JSON."""
    return {
        name: {key: value for key, value in dataclasses.asdict(content).items() if value != {}}
        for name, content in sorted(contents.items())
    }


def _contents_from_plain(data: dict[str, Any]) -> dict[str, Content]:
    """Restore what `_contents_to_plain` returned."""
    return {name: from_plain(Content, content) for name, content in data.items()}


def parameters_digest(parameters: dict[str, Any]) -> str:
    """Return a digest of parameters that does not depend on the order of keys."""
    return digest_bytes(json.dumps(parameters, sort_keys=True).encode())
