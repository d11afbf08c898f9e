"""Puts a finished stage's outputs and marker in place, safe against a kill at any moment.

Once `NN.publishing.json` exists the stage is finished: if this run is killed before it has done the
renames and written the marker, the next run does what remains, each step only once.
"""

import os
from pathlib import Path

from toolkit.stages.directory import TRASHES, RunDirectory
from toolkit.stages.marker import Marker, UnreadableMarkerError, outputs_of
from toolkit.storage.digests import Digests
from toolkit.storage.files import remove_temporaries
from toolkit.storage.paths import overlap


def publish(directory: RunDirectory, marker: Marker, digests: Digests) -> None:
    """Rename the partial outputs that `marker` lists to their names, then write the marker.

    Raises:
      LinkError: one of them is a link or would be moved through one. The outputs wait in
        `.partial`; once the link is gone the next run puts them in place.
    """
    directory.refuse_links(directory.stages)
    marker.write(directory.publishing(marker.stage))
    _put_in_place(directory, marker, digests)


def complete_interrupted(directory: RunDirectory, digests: Digests) -> None:
    """Complete what a killed run was publishing, and delete its half-written files.

    Raises:
      LinkError: something would be moved or deleted through a link; it is left as it is.
    """
    directory.refuse_links(directory.stages, directory.partials)
    for path in directory.publishings():
        try:
            marker = Marker.read(path)
        except UnreadableMarkerError:
            path.unlink()
            continue
        _put_in_place(directory, marker, digests)
    for trash in TRASHES:
        RunDirectory(directory.root, trash).empty_trash()
    remove_temporaries(directory.stages)
    remove_temporaries(directory.partials)


def _put_in_place(directory: RunDirectory, marker: Marker, digests: Digests) -> None:
    stage, old = marker.stage, outputs_of(directory.marker(marker.stage), marker.title)
    directory.refuse_links(*(directory.root / name for name in (*old, *marker.outputs)))
    directory.refuse_links(*(directory.partial(stage, name) for name in marker.outputs))
    for name in old:
        # A path that overlaps a new output may already hold the new output.
        if not any(overlap(name, output) for output in marker.outputs):
            directory.discard(directory.root / name)
    touched = {directory.stages}
    for name in marker.outputs:
        source, target = directory.partial(stage, name), directory.root / name
        if os.path.lexists(source):
            directory.discard(target)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.rename(source, target)
            digests.moved(source, target)
        touched.add(target.parent)
    # First the provenance: beside the marker it would mean that the stage was started again.
    directory.discard_partial(stage)
    directory.failure(stage).unlink(missing_ok=True)
    for folder in sorted(touched):
        if folder.is_dir():
            _sync_folder(folder)
    os.replace(directory.publishing(stage), directory.marker(stage))
    _sync_folder(directory.stages)
    digests.save()


def _sync_folder(folder: Path) -> None:
    """Make sure that the renames in `folder` are on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
