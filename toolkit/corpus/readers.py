"""Finds the corpus readers: modules and packages of `local` that define `manifests`."""

import re
from importlib.util import find_spec
from pathlib import Path

_READER = re.compile(r"^(?:def manifests\(|manifests\s*=)", re.MULTILINE)


def reader_names(folder: Path | None = None) -> list[str]:
    """List the readers in `folder`, by default that of the package `local`; nothing is imported."""
    folder = _local_folder() if folder is None else folder
    if folder is None:
        return []
    names = {path.stem for path in folder.glob("*.py")}
    names |= {path.parent.name for path in folder.glob("*/__init__.py")}
    return sorted(name for name in names if _is_reader(folder, name))


def reader_exists(name: str) -> bool:
    """Tell whether there is a reader `name`.

    Without a package `local`, as where the toolkit is installed without its checkout, every name
    is accepted: no corpus can be read there.
    """
    folder = _local_folder()
    return folder is None or (name.isidentifier() and _is_reader(folder, name))


def _local_folder() -> Path | None:
    spec = find_spec("local")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return Path(folders[0]) if folders else None


def _is_reader(folder: Path, name: str) -> bool:
    if name.startswith("_"):
        return False
    files = [folder / f"{name}.py", folder / name / "__init__.py"]
    return any(file.is_file() and _READER.search(file.read_text("utf-8")) for file in files)
