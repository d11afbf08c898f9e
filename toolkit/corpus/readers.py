"""The corpora that can be read: the modules of the package `local` that have `manifests`."""

import re
from importlib.util import find_spec
from pathlib import Path

_READER = re.compile(r"^(?:def manifests\(|manifests\s*=)", re.MULTILINE)


def reader_names(folder: Path | None = None) -> list[str]:
    """List the readers in `folder`, by default that of the package `local`; nothing is imported."""
    folder = _local() if folder is None else folder
    return sorted(path.stem for path in folder.glob("*.py") if _reads(path)) if folder else []


def reader_exists(name: str) -> bool:
    """Tell whether there is a reader `name`.

    Without a package `local`, as where the toolkit is installed without its checkout, every name
    will do: nothing can read a corpus there.
    """
    folder = _local()
    return folder is None or (name.isidentifier() and _reads(folder / f"{name}.py"))


def _local() -> Path | None:
    spec = find_spec("local")
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None


def _reads(path: Path) -> bool:
    if path.name.startswith("_") or not path.is_file():
        return False
    return bool(_READER.search(path.read_text(encoding="utf-8")))
