"""Writes the files of a new corpus into the checkout of the project."""

import shutil
from pathlib import Path

from toolkit.new_corpus.templates import READER, README, Settings, config_py, run_py
from toolkit.storage.files import write_atomically


def write_recipe(root: Path, name: str, settings: Settings, about: str) -> list[Path]:
    """Write recipes/`name`, completely or not at all; return its files.

    Args:
      root: of the checkout.
      name: of the corpus, as accepted by `check_name`.
      settings: the content of config.py.
      about: a description of the corpus in Markdown, for README.md.
    """
    files = {
        "config.py": config_py(name, settings),
        "run.py": run_py(name),
        "README.md": README.format(name=name, about=about),
    }
    folder = root / "recipes" / name
    partial = folder.with_name(f".{name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    for file, text in files.items():
        write_atomically(partial / file, text)
    (partial / "run.py").chmod(0o755)
    partial.rename(folder)
    return [folder / file for file in files]


def write_reader(root: Path, name: str) -> Path:
    """Write local/`name`.py, with a function for the user to fill in; return its path."""
    path = root / "local" / f"{name}.py"
    write_atomically(path, READER.format(name=name))
    return path
