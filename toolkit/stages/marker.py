"""The marker of a finished stage: its parameters, inputs and outputs, when and by which code."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from toolkit.config.convert import from_plain
from toolkit.errors import ToolkitError
from toolkit.stages.code import (
    GIT_FORM,
    VERSIONS_FORM,
    Attempt,
    Code,
    attempts_from_plain,
    attempts_to_plain,
)
from toolkit.stages.stage_code import StageCode
from toolkit.storage.digest import Content, digest_bytes
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import DAMAGE_ERRORS, NATURAL, read_json, validated

SCHEMA = 1
_CONTENTS = {str: {"size": NATURAL, "digest": str}}
_FORM = {
    **{"stage": NATURAL, "title": str, "parameters": {str: Any}, "parameters_digest": str},
    **{"inputs": _CONTENTS, "outputs": _CONTENTS, "versions": VERSIONS_FORM, "git": GIT_FORM},
    **{"command": str, "started": str, "ended": str, "seconds": float, "headline": {str: Any}},
}


_LATER = {"peak_bytes", "attempts", "stage_code"}
"""Fields that markers from before they were recorded lack."""


class UnreadableMarkerError(ToolkitError):
    """A marker that is damaged or was written by another version of the runner.

    The runner gives its message as the reason why the stage runs again.
    """


@dataclass(frozen=True)
class Marker:
    """A finished stage. It names no host and no user, so that markers can be compared."""

    stage: int
    title: str
    parameters: dict[str, Any]
    """Each configuration section that the stage read, and each setting that it read alone by its
    dotted key, as plain data."""
    inputs: dict[str, Content]
    """By name, see `toolkit.stages.inputs`."""
    outputs: dict[str, Content]
    """By path relative to the run directory."""
    versions: dict[str, str | None]
    """Of the last attempt, like `git`."""
    git: dict[str, Any]
    """`Code.git`."""
    command: str
    started: str
    ended: str
    seconds: float
    """Wall time, including that of interrupted attempts as far as they reported progress."""
    headline: dict[str, Any]
    peak_bytes: int | None = None
    """Peak resident size of the process and its workers together in the last attempt; None in
    markers from before it was recorded."""
    attempts: list[Attempt | None] = field(default_factory=list)
    """The attempts that made the outputs, in order; None stands for those of a partial record from
    before code was recorded. Empty in markers from before."""
    stage_code: StageCode | None = None
    """The code of this stage alone. None where attempts with different code made the outputs, and
    in markers from before it was recorded."""

    @property
    def codes(self) -> list[Code | None]:
        """The code of each attempt; None where it is not known."""
        if self.attempts:
            return [attempt.code if attempt else None for attempt in self.attempts]
        known = Code(self.git, None, self.versions)
        return [known if self.git.get("commit") else None]

    def write(self, path: Path) -> None:
        """Write the marker as readable JSON, whole or not at all."""
        plain = {"schema": SCHEMA} | dataclasses.asdict(self)
        plain["parameters_digest"] = parameters_digest(self.parameters)
        for key in ("inputs", "outputs"):
            plain[key] = contents_to_plain(getattr(self, key))
        plain["attempts"] = attempts_to_plain(self.attempts)
        write_atomically(path, json.dumps(plain, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> "Marker | None":
        """Return the marker at `path`, None when there is none.

        Raises:
          UnreadableMarkerError: it is damaged or of another schema.
        """
        try:
            plain = read_json(path, {"schema": int})
            if plain["schema"] != SCHEMA:
                raise UnreadableMarkerError(
                    "the marker was written by another version of the runner"
                )
            validated(plain, _FORM)
            names = {field.name for field in dataclasses.fields(cls)} - _LATER
            values = {name: plain[name] for name in names}
            if plain.get("peak_bytes") is not None:
                values["peak_bytes"] = validated(plain["peak_bytes"], NATURAL)
            values["attempts"] = attempts_from_plain(plain.get("attempts", []))
            if plain.get("stage_code") is not None:
                values["stage_code"] = from_plain(StageCode, plain["stage_code"])
            for key in ("inputs", "outputs"):
                values[key] = contents_from_plain(values[key])
            intact = plain["parameters_digest"] == parameters_digest(plain["parameters"])
        except FileNotFoundError:
            return None
        except DAMAGE_ERRORS as error:
            raise UnreadableMarkerError("the marker is damaged") from error
        if not intact:
            raise UnreadableMarkerError("the marker's parameters were edited")
        if not all(map(_is_inside, values["outputs"])):
            raise UnreadableMarkerError("the marker names outputs outside the run directory")
        return cls(**values)


def _is_inside(name: str) -> bool:
    """Whether a relative path stays below its folder, as outputs, which are removed, must."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def outputs_of(path: Path, title: str | None = None) -> list[str]:
    """Return the names of the outputs in the marker at `path`, none when it cannot be read.

    Args:
      path: of the marker.
      title: none too when it is of a stage with another title, which had this number before.
    """
    try:
        marker = Marker.read(path)
    except UnreadableMarkerError:
        return []
    return sorted(marker.outputs) if marker and title in (None, marker.title) else []


def contents_to_plain(contents: dict[str, Content]) -> dict[str, Any]:
    """Return the JSON form of inputs or outputs."""
    return {
        name: {key: value for key, value in dataclasses.asdict(content).items() if value != {}}
        for name, content in sorted(contents.items())
    }


def contents_from_plain(plain: dict[str, Any]) -> dict[str, Content]:
    """Return inputs or outputs from their JSON form."""
    return {name: from_plain(Content, content) for name, content in plain.items()}


def parameters_digest(parameters: dict[str, Any]) -> str:
    """Return a digest that does not depend on the order of keys."""
    return digest_bytes(json.dumps(parameters, sort_keys=True).encode())
