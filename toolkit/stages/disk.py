"""What the outputs of a run take on disk, and giving that space back."""

from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.errors import ToolkitError
from toolkit.stages import lock
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
    found = []
    for path in sorted(directory.stages.glob("[0-9][0-9].json")):
        try:
            marker = Marker.read(path)
        except UnreadableMarkerError:
            continue
        if marker is None:
            continue
        found += [
            Output(name, marker.stage, marker.title, content.size, marker.seconds)
            for name, content in marker.outputs.items()
            if name.split("/")[0] not in KEPT and (directory.root / name).exists()
        ]
    return sorted(found, key=lambda output: (-output.size, output.name))


def choose(directory: RunDirectory, names: Sequence[str]) -> list[Output]:
    """Return the outputs of these names.

    Raises:
      CleanError: there is none of a name, or it is kept.
    """
    known = {output.name: output for output in removable(directory)}
    chosen = []
    for name in (name.rstrip("/") for name in names):
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
    directory.refuse_links(directory.stages, directory.partials)
    with lock.hold(directory.lock, command):
        for output in outputs:
            directory.discard(directory.root / output.name)
        directory.empty_trash()
