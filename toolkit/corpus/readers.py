"""The corpora that can be read: the modules and folders of `local` that have `manifests`."""

import re
from importlib.util import find_spec
from pathlib import Path

_READER = re.compile(r"^(?:def manifests\(|manifests\s*=)", re.MULTILINE)


def reader_names(folder: Path | None = None) -> list[str]:
    """List the readers in `folder`, by default that of the package `local`; nothing is imported."""
    folder = _local() if folder is None else folder
    if folder is None:
        return []
    names = {path.stem for path in folder.glob("*.py")}
    names |= {path.parent.name for path in folder.glob("*/__init__.py")}
    return sorted(name for name in names if _reads(folder, name))


def reader_exists(name: str) -> bool:
    """Tell whether there is a reader `name`.

    Without a package `local`, as where the toolkit is installed without its checkout, every name
    will do: nothing can read a corpus there.
    """
    folder = _local()
    return folder is None or (name.isidentifier() and _reads(folder, name))


def _local() -> Path | None:
    spec = find_spec("local")
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None


def _reads(folder: Path, name: str) -> bool:
    if name.startswith("_"):
        return False
    files = [folder / f"{name}.py", folder / name / "__init__.py"]
    return any(file.is_file() and _READER.search(file.read_text("utf-8")) for file in files)
