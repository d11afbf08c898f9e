"""The disk space of a run's outputs, and their removal."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from toolkit.errors import ToolkitError
from toolkit.stages.directory import RunDirectory
from toolkit.stages.marker import Marker, UnreadableMarkerError

PROTECTED_OUTPUTS = (
    *("final", "check", "data", "corpus"),
    *("results.json", "results.md", "report.html", "werr.json", "werr.md"),
    *("breakdown.json", "breakdown.html", "sweep.json", "tta"),
)
"""Outputs that are never removed: bundle and results, the corpus, its manifests and its check."""


class CleanError(ToolkitError):
    """An output that cannot be removed."""


@dataclass(frozen=True)
class Output:
    """A file or folder that a finished stage made and can make again."""

    name: str
    """Path of the output below the run directory."""
    stage: int
    title: str
    size: int
    """Size in bytes."""
    seconds: float
    """Wall time in seconds of its stage, which may have made other outputs too."""


def removable(directory: RunDirectory) -> list[Output]:
    """Return the outputs of finished stages that exist and are not protected, the largest first."""
    outputs = [
        output
        for output in _outputs(directory)
        if output.name.split("/")[0] not in PROTECTED_OUTPUTS
    ]
    present = [output for output in outputs if (directory.root / output.name).exists()]
    return sorted(present, key=lambda output: (-output.size, output.name))


def removed(directory: RunDirectory) -> list[str]:
    """Return the names of the outputs of finished stages that no longer exist."""
    return [o.name for o in _outputs(directory) if not (directory.root / o.name).exists()]


def _outputs(directory: RunDirectory) -> Iterator[Output]:
    """Yield the outputs of all finished stages."""
    for path in sorted(directory.stages.glob("[0-9][0-9].json")):
        try:
            marker = Marker.read(path)
        except UnreadableMarkerError:
            continue
        if marker is not None:
            for name, content in marker.outputs.items():
                yield Output(name, marker.stage, marker.title, content.size, marker.seconds)


def choose(directory: RunDirectory, names: Sequence[str]) -> list[Output]:
    """Return the outputs with the given names.

    Raises:
      CleanError: an output does not exist, or is protected.
    """
    outputs = {output.name: output for output in removable(directory)}
    chosen = []
    for name in dict.fromkeys(name.rstrip("/") for name in names):
        if name.split("/")[0] in PROTECTED_OUTPUTS:
            raise CleanError(f"{name} is never removed: it is a result, or results depend on it")
        if name not in outputs:
            raise CleanError(
                f"finished stages in {directory.root} have no output {name}. The outputs that can "
                f"be removed are: {', '.join(outputs) or 'none'}"
            )
        chosen.append(outputs[name])
    return chosen


def remove(directory: RunDirectory, outputs: Sequence[Output], command: str) -> None:
    """Remove outputs; their stages become stale, and the recipe makes the outputs again.

    Raises:
      ToolkitError: another process uses the run directory, or an output is a link.
    """
    with directory.lock(command):
        for output in outputs:
            directory.discard(directory.root / output.name)
        directory.empty_trash()
