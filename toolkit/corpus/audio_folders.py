"""The folders that hold a corpus's audio, so that changed recordings are noticed."""

from collections.abc import Iterable
from pathlib import Path

from lhotse import MonoCut

from toolkit.corpus.manifest import audio_of

MOST_FOLDERS = 16


def audio_folders(cuts: Iterable[MonoCut], root: Path, most: int = MOST_FOLDERS) -> list[Path]:
    """Return folders outside `root` with all audio of `cuts` in or below them.

    A path upwards, `root/../wav`, counts as outside, though it looks as if it lay in `root`.

    At most `most` folders are listed: while there are more, the deepest are replaced by their
    parents. Folders that have only the root directory in common are left out.
    """
    folders = {Path(source).parent for source in {audio_of(cut) for cut in cuts}}
    folders = {folder for folder in folders if folder.is_absolute() and folder.is_dir()}
    folders = _topmost({f for f in folders if ".." in f.parts or not f.is_relative_to(root)})
    while len(folders) > most:
        depth = max(len(folder.parts) for folder in folders)
        folders = _topmost({f.parent if len(f.parts) == depth else f for f in folders})
    return sorted(folder for folder in folders if folder != folder.parent)


def _topmost(folders: set[Path]) -> set[Path]:
    return {folder for folder in folders if not folders & set(folder.parents)}
