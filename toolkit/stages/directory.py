"""One run directory: its paths, its lock, its trash, and the publishing of outputs."""

import errno
import json
import os
import shutil
import socket
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from toolkit.errors import ToolkitError
from toolkit.stages.log import timestamp
from toolkit.stages.marker import Marker, UnreadableMarkerError, outputs_of
from toolkit.stages.signals import cleanups
from toolkit.storage.digests import Digests
from toolkit.storage.files import open_regular, refuse_links, remove_temporaries, write_atomically
from toolkit.storage.paths import PLACES, overlap, places_text
from toolkit.storage.reading import DAMAGE_ERRORS, NATURAL, read_json

LEAST_FREE = 1 << 16  # bytes; if less is free, any error is attributed to the full disk
LOCKS_UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""Error numbers of network file systems without locks."""
LOCKED_ADVICE = "Wait for that run or stop it, or choose another directory with --exp DIR."
ORPHAN_TIMEOUT = 10.0
"""Seconds for which child processes of a killed run may hold its lock."""
TAKEOVER_TIMEOUT = 1.0
"""Seconds to try to replace the file that serves as the lock of a killed run."""

TRASHES = "trash", "trash-background"
"""Folders in `.partial` for files to delete: one for the run, one for background stages."""


class StorageError(ToolkitError):
    """The run directory cannot be written: the disk is full or read-only, the size of files is
    limited, or the directory is not the user's."""


class LockedError(ToolkitError):
    """Another process is using the same run directory."""


class RunDirectory:
    """The paths of one run directory; folders are made when something is written to them.

    `stages/NN.json` is stage NN's marker, `stages/NN.publishing.json` a marker whose outputs are
    being put in place, `stages/NN.failed.txt` the traceback of the last attempt. `profiles/NN.svg`
    is a flame graph of the stage. `.partial/NN/` holds unfinished outputs, `.partial/NN.json` their
    provenance and `.partial/NN.progress.json` how far they are.

    The directory itself may be a link. Below it nothing is written, moved or deleted through a
    link.

    Args:
      root: the directory.
      trash: one of `TRASHES`.
    """

    def __init__(self, root: Path, trash: str = TRASHES[0]) -> None:
        self.root = _without_parents(Path(root).absolute())
        self.stages = self.root / "stages"
        self._lock_file = self.stages / ".lock"
        self._lock_holder = self.stages / ".lock.holder"
        self.digests = self.stages / "digests.json"
        self.last_command = self.stages / "last_command.json"
        self.log = self.root / "log.txt"
        self.profiles = self.root / "profiles"
        self.partials = self.root / ".partial"
        self._trash = self.partials / trash

    @contextmanager
    def lock(self, command: str) -> Iterator[None]:
        """Lock the run directory in a `with` block; `stages/.lock.holder` names the holder.

        The operating system releases the lock when the process ends, even if it is killed. If files
        cannot be locked, the file `stages/.lock.held` serves as the lock; if a killed process on
        this host has left it, it is replaced.

        Args:
          command: command of this process, for the message that a second process prints.

        Raises:
          LockedError: another process uses the run directory; the message names that process.
          LinkError: a path that the runner writes is a link or not a regular file.
        """
        self.refuse_links(self.stages, self.partials)
        self.stages.mkdir(parents=True, exist_ok=True)
        with self._acquire_lock() as lock:
            cleanups.append(lock.release)
            holder = {
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "since": timestamp(),
                "command": command,
            }
            try:
                self.write(self._lock_holder, json.dumps(holder) + "\n")
                yield
            finally:
                cleanups.remove(lock.release)

    def _acquire_lock(self) -> Any:
        """Return a context manager that releases the lock."""
        from filelock import FileLock, SoftFileLock, Timeout

        os.close(open_regular(self._lock_file, os.O_RDWR))
        lock = FileLock(self._lock_file, thread_local=False, fallback_to_soft=False)
        try:
            try:
                return lock.acquire(timeout=0)
            except Timeout:
                if _is_alive(self._read_lock_holder().get("pid")):
                    raise
                # The holder is gone, but a child that it has forked still has the file open.
                return lock.acquire(timeout=ORPHAN_TIMEOUT)
        except Timeout as error:
            raise LockedError(f"{self._locked_by()}. {LOCKED_ADVICE}") from error
        except OSError as error:
            if error.errno not in LOCKS_UNSUPPORTED:
                raise
            reason = error.strerror
        # Without file locks (some network file systems) a marker file serves as the lock.
        click.echo(
            f"warning: {self._lock_file} cannot be locked ({reason}): the file .lock.held beside it"
            " is used as the lock instead",
            err=True,
        )
        marker = self.stages / ".lock.held"
        try:
            return SoftFileLock(marker, thread_local=False).acquire(timeout=TAKEOVER_TIMEOUT)
        except Timeout as error:
            raise LockedError(
                f"{self._locked_by()}. The file system has no locks: if that run has ended, remove "
                f"{marker}. {LOCKED_ADVICE}"
            ) from error

    def _locked_by(self) -> str:
        """Say which process holds the lock, for messages."""
        holder = self._read_lock_holder()
        return (
            f"another run is going on in {self.root}: process {holder.get('pid')} on "
            f"{holder.get('host')}, `{holder.get('command')}`, since {holder.get('since')}"
        )

    def _read_lock_holder(self) -> dict[str, Any]:
        try:
            form = {"pid": NATURAL, "host": str, "since": str, "command": str}
            return read_json(self._lock_holder, form)
        except DAMAGE_ERRORS:  # it is just being written
            return {}

    def load_digests(self, folders: Mapping[str, str] | None = None) -> Digests:
        """Return the digests of files, with those cached in this run directory.

        Args:
          folders: folders outside it that may move, see `InputNames.folders`.
        """
        return Digests(self.root, self.digests, folders)

    def marker(self, stage: int) -> Path:
        """Return the path of a stage's marker."""
        return self.stages / f"{stage:02d}.json"

    def publishing(self, stage: int) -> Path:
        """Return the path of the marker of a stage whose outputs are being put in place."""
        return self.stages / f"{stage:02d}.publishing.json"

    def publishings(self) -> Iterator[Path]:
        """Yield the markers of interrupted publications."""
        yield from sorted(self.stages.glob("*.publishing.json"))

    def failure(self, stage: int) -> Path:
        """Return the path of the traceback that a failed stage leaves."""
        return self.stages / f"{stage:02d}.failed.txt"

    def profile(self, stage: int) -> Path:
        """Return the path of the flame graph of a stage."""
        return self.profiles / f"{stage:02d}.svg"

    def partial(self, stage: int, name: str = "") -> Path:
        """Return where a stage builds its output `name`, or without a name all its outputs."""
        return self.partials / f"{stage:02d}" / name

    def provenance(self, stage: int) -> Path:
        """Return the path of the provenance of a stage's partial outputs."""
        return self.partials / f"{stage:02d}.json"

    def progress(self, stage: int) -> Path:
        """Return the path of the progress file of a stage's partial outputs."""
        return self.partials / f"{stage:02d}.progress.json"

    def write_places(self, folders: Mapping[str, str]) -> None:
        """Write the folders of the aliases that paths in manifests begin with."""
        self.write(self.root / PLACES, places_text(folders))

    def refuse_links(self, *paths: Path) -> None:
        """Raise a `LinkError` if one of `paths`, or a folder on the way to it, is a link."""
        for path in paths:
            refuse_links(self.root, path)

    def write(self, path: Path, text: str) -> None:
        """Write a file atomically; a link at `path` is replaced.

        Raises:
          LinkError: its folder is a link.
        """
        self.refuse_links(path.parent)
        write_atomically(path, text)

    def discard(self, path: Path) -> None:
        """Move a file or folder to the trash in one step; `empty_trash` frees its space.

        Links inside a folder are moved with it; their targets stay.

        Raises:
          LinkError: the path is a link or leads through one; nothing was moved.
        """
        self.refuse_links(path, self._trash)
        # Deleting a folder takes time and can be interrupted halfway; a rename cannot.
        if os.path.lexists(path):
            self._trash.mkdir(parents=True, exist_ok=True)
            os.rename(path, self._trash / uuid.uuid4().hex)

    def discard_partial(self, stage: int) -> None:
        """Discard a stage's partial outputs; an interruption leaves nothing half deleted."""
        self.discard(self.partial(stage))
        self.progress(stage).unlink(missing_ok=True)
        self.provenance(stage).unlink(missing_ok=True)
        self.empty_trash()

    def empty_trash(self) -> None:
        """Delete the contents of the trash; raise a `LinkError` if the trash is a link."""
        self.refuse_links(self._trash)
        if self._trash.exists():
            shutil.rmtree(self._trash)

    def publish(self, marker: Marker, digests: Digests) -> None:
        """Rename the partial outputs of a finished stage to their names, and write its marker last.

        Once `NN.publishing.json` exists the stage is finished. If this process is killed before the
        marker is written, `recover` in the next run completes the remaining steps.

        Raises:
          LinkError: an output is a link or would be moved through one. The outputs wait in
            `.partial`; once the link is gone the next run puts them in place.
        """
        self.refuse_links(self.stages)
        marker.write(self.publishing(marker.stage))
        self._put_in_place(marker, digests)

    def recover(self, digests: Digests) -> None:
        """Finish the publication of a killed run; delete its temporary files and the trash.

        Raises:
          LinkError: something would be moved or deleted through a link; it is left as it is.
        """
        self.refuse_links(self.stages, self.partials)
        for path in self.publishings():
            try:
                marker = Marker.read(path)
            except UnreadableMarkerError:
                path.unlink()
                continue
            if marker is not None:
                self._put_in_place(marker, digests)
        for trash in TRASHES:
            RunDirectory(self.root, trash).empty_trash()
        remove_temporaries(self.stages)
        remove_temporaries(self.partials)

    def _put_in_place(self, marker: Marker, digests: Digests) -> None:
        """Replace a stage's earlier outputs by the new ones, and write its marker."""
        # A killed run may have done any of the steps: all of them can be repeated.
        # 1. Refuse links before anything moves.
        stage, old = marker.stage, outputs_of(self.marker(marker.stage), marker.title)
        self.refuse_links(*(self.root / name for name in (*old, *marker.outputs)))
        self.refuse_links(*(self.partial(stage, name) for name in marker.outputs))
        # 2. Discard the earlier outputs, including those that the stage no longer makes.
        for name in old:
            # A path that overlaps a new output may already hold the new output.
            if not any(overlap(name, output) for output in marker.outputs):
                self.discard(self.root / name)
        # 3. Rename the new outputs. One that is no longer in `.partial` is already in place.
        changed_folders = {self.stages}
        for name in marker.outputs:
            source, target = self.partial(stage, name), self.root / name
            if os.path.lexists(source):
                self.discard(target)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.rename(source, target)
                digests.moved(source, target)
            changed_folders.add(target.parent)
        # 4. Remove the provenance before the marker is written: a provenance beside a marker means
        # that the stage was started again.
        self.discard_partial(stage)
        self.failure(stage).unlink(missing_ok=True)
        # 5. Write the marker last, when the outputs are on disk.
        for folder in sorted(changed_folders):
            if folder.is_dir():
                _sync_folder(folder)
        os.replace(self.publishing(stage), self.marker(stage))
        _sync_folder(self.stages)
        digests.save()


def _is_alive(pid: int | None) -> bool:
    """Return whether a process runs."""
    import psutil

    return pid is not None and psutil.pid_exists(pid)


def memory_error(error: BaseException) -> ToolkitError | None:
    """Return an error with advice for the user if `error` means too little memory, else None."""
    if not isinstance(error, MemoryError) and "DefaultCPUAllocator" not in str(error):
        return None
    return ToolkitError(
        "there is not enough memory. Finished work is kept; run the same command again with a "
        "smaller --jobs, or with smaller batches if a single process trains."
    )


def storage_error(error: BaseException, root: Path) -> StorageError | None:
    """Return an error with advice if `error` comes from a full or read-only disk, else None.

    Libraries that write files wrap the operating system's error (safetensors quotes it, torch
    drops it), so causes, messages and the space left are examined too.
    """
    # 1. The error and its causes; if the disk is full, also an error that says so.
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    try:
        if shutil.disk_usage(root).free < LEAST_FREE and not isinstance(error, ToolkitError):
            chain.append(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(root)))
    except OSError:  # the directory is not there
        pass
    # 2. The first of them that a user can do something about.
    for link in chain:
        number = link.errno if isinstance(link, OSError) else None
        path = getattr(link, "filename", None) or root
        if number in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(link):
            return StorageError(
                f"the disk is full: {path} cannot be written. Finished work is kept; free some "
                "space (or choose another disk with --exp DIR) and run the same command again."
            )
        if number == errno.EFBIG or "File too large" in str(link):
            return StorageError(
                f"{path} would exceed the limit on the size of a file (`ulimit -f` shows the "
                "limit). Finished work is kept; raise the limit (or choose another disk with "
                "--exp DIR) and run the same command again."
            )
        denied = number in (errno.EACCES, errno.EPERM)
        if number == errno.EROFS or (denied and _is_within(path, root)):
            return StorageError(
                f"{path} cannot be written ({link.strerror}); make the directory writable or "
                "choose another one with --exp DIR."
            )
    return None


def _without_parents(path: Path) -> Path:
    """Return an absolute path without `..`, since paths with `..` cannot be compared by name.

    `..` is resolved on disk, since a link may precede it; links after it are kept.
    """
    if ".." not in path.parts:
        return path
    end = len(path.parts) - path.parts[::-1].index("..")
    return Path(os.path.realpath(Path(*path.parts[:end])), *path.parts[end:])


def _is_within(path: str | Path, root: Path) -> bool:
    """Return whether a path is the folder `root` or lies in it."""
    return Path(os.fsdecode(path)).absolute().is_relative_to(root)


def _sync_folder(folder: Path) -> None:
    """Make sure that the renames in `folder` are on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
