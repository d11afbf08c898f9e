"""What the outputs of a run take on disk, and giving that space back."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from toolkit.errors import ToolkitError
from toolkit.stages.directory import RunDirectory
from toolkit.stages.marker import Marker, UnreadableMarkerError

KEPT = (
    *("final", "check", "data", "corpus"),
    *("results.json", "results.md", "report.html", "werr.json", "werr.md"),
    *("breakdown.json", "breakdown.html", "sweep.json", "tta"),
)
"""Outputs that are never removed: the bundle, results, what they were made from and checked by."""


class CleanError(ToolkitError):
    """An output that cannot be removed."""


@dataclass(frozen=True)
class Output:
    """A file or folder that a finished stage made and can make again."""

    name: str
    """Its path below the run directory."""
    stage: int
    title: str
    size: int
    """Bytes."""
    seconds: float
    """Wall time of its stage, which may have made others too."""


def removable(directory: RunDirectory) -> list[Output]:
    """Return the outputs of finished stages that are there and not kept, the largest first."""
    found = [output for output in _outputs(directory) if output.name.split("/")[0] not in KEPT]
    present = [output for output in found if (directory.root / output.name).exists()]
    return sorted(present, key=lambda output: (-output.size, output.name))


def removed(directory: RunDirectory) -> list[str]:
    """Return the names of the outputs of finished stages that are no longer there."""
    return [o.name for o in _outputs(directory) if not (directory.root / o.name).exists()]


def _outputs(directory: RunDirectory) -> Iterator[Output]:
    for path in sorted(directory.stages.glob("[0-9][0-9].json")):
        try:
            marker = Marker.read(path)
        except UnreadableMarkerError:
            continue
        if marker is not None:
            for name, content in marker.outputs.items():
                yield Output(name, marker.stage, marker.title, content.size, marker.seconds)


def choose(directory: RunDirectory, names: Sequence[str]) -> list[Output]:
    """Return the outputs of these names.

    Raises:
      CleanError: there is none of a name, or it is kept.
    """
    known = {output.name: output for output in removable(directory)}
    chosen = []
    for name in dict.fromkeys(name.rstrip("/") for name in names):
        if name.split("/")[0] in KEPT:
            raise CleanError(f"{name} is never removed: it is a result, or what results need")
        if name not in known:
            raise CleanError(
                f"{directory.root} has no output {name} of a finished stage that could be removed;"
                f" there are {', '.join(known) or 'none'}"
            )
        chosen.append(known[name])
    return chosen


def remove(directory: RunDirectory, outputs: Sequence[Output], command: str) -> None:
    """Remove outputs; their stages are stale then, and the recipe makes them again.

    Raises:
      ToolkitError: another process works in the run directory, or an output is a link.
    """
    with directory.lock(command):
        for output in outputs:
            directory.discard(directory.root / output.name)
        directory.empty_trash()
