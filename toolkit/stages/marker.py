"""The marker of a finished stage: its parameters, inputs and outputs, when and by which code."""

import dataclasses
import json
import platform
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

from toolkit.config.convert import from_plain
from toolkit.errors import ToolkitError
from toolkit.storage.digest import Content, digest_bytes
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import DAMAGE_ERRORS, NATURAL, read_json, validated

SCHEMA = 1
DISTRIBUTIONS = {
    "toolkit": "asr-recipe-toolkit",
    **{name: name for name in ("torch", "k2", "kaldifeat")},
}


_CONTENTS = {str: {"size": NATURAL, "digest": str}}
_FORM = {
    **{"stage": NATURAL, "title": str, "parameters": {str: Any}, "parameters_digest": str},
    **{"inputs": _CONTENTS, "outputs": _CONTENTS, "versions": {str: Any}, "git": {str: Any}},
    **{"command": str, "started": str, "ended": str, "seconds": float, "headline": {str: Any}},
}


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
    """Each configuration section that the stage read, as plain data."""
    inputs: dict[str, Content]
    """By path relative to the run directory, or absolute when outside it."""
    outputs: dict[str, Content]
    """By path relative to the run directory."""
    versions: dict[str, str | None]
    git: dict[str, Any]
    """`commit` and `dirty` (tracked files differ from the commit); None outside a repository."""
    command: str
    started: str
    ended: str
    seconds: float
    """Wall time, including that of interrupted attempts as far as they reported progress."""
    headline: dict[str, Any]

    def write(self, path: Path) -> None:
        """Write the marker as readable JSON, whole or not at all."""
        plain = {"schema": SCHEMA} | dataclasses.asdict(self)
        plain["parameters_digest"] = parameters_digest(self.parameters)
        for key in ("inputs", "outputs"):
            plain[key] = contents_to_plain(getattr(self, key))
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
            values = {field.name: plain[field.name] for field in dataclasses.fields(cls)}
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


def outputs_of(path: Path) -> list[str]:
    """Return the names of the outputs in the marker at `path`, none when it cannot be read."""
    try:
        marker = Marker.read(path)
    except UnreadableMarkerError:
        return []
    return sorted(marker.outputs) if marker else []


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


@cache
def versions() -> dict[str, str | None]:
    """Return the versions of packages that a result may depend on, without importing them."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name, distribution in DISTRIBUTIONS.items():
        try:
            found[name] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


@cache
def git_state(folder: Path) -> dict[str, Any]:
    """Return the commit checked out around `folder` and whether tracked files differ from it."""

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(folder), *arguments]
        try:
            result = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError:
            return None
        return result.stdout.strip() if result.returncode == 0 else None

    commit = git("rev-parse", "--verify", "HEAD")
    changes = git("status", "--porcelain", "--untracked-files=no") if commit else None
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}
