"""The project's folder: where readers and recipes are written to and run."""

import keyword
import re
from pathlib import Path

import toolkit
from toolkit.errors import ToolkitError

PARTS = ("local/__init__.py", "recipes/librispeech/run.py", "toolkit/stages/recipe.py")
"""Files by which the project's folder is known."""


class CheckoutError(ToolkitError):
    """A command that needs the project's folder, run outside of it."""


class CorpusNameError(ToolkitError):
    """A name that a new corpus cannot have."""


def find_checkout(start: Path) -> Path:
    """Return the project's folder: `start` or the nearest above it, or else the toolkit's own.

    Raises:
      CheckoutError: there is none, as where the toolkit was installed from a wheel.
    """
    start = start.absolute()
    for folder in (start, *start.parents, Path(toolkit.__file__).absolute().parents[1]):
        if all((folder / part).is_file() for part in PARTS):
            return folder
    raise CheckoutError(
        f"a new corpus becomes a recipe in the project's folder, and {start} is not in it: the "
        "installed package is the toolkit alone, without recipes/ and local/. Get the project's "
        "repository, run `make setup` in it, and give the command there: "
        ".venv/bin/toolkit new-corpus ..."
    )


def check_name(name: str, root: Path) -> None:
    """Refuse a name that no new corpus in the project's folder `root` can have.

    Raises:
      CorpusNameError: it is no Python identifier, or taken.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        hint = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
        hint = f"c_{hint}" if hint[:1].isdigit() or keyword.iskeyword(hint) else hint
        example = f", such as {hint!r}" if hint else ""
        raise CorpusNameError(
            f"{name!r} cannot be the name of a corpus: it becomes that of a Python module, so take "
            f"small letters, digits and _{example}"
        )
    paths = [root / part / file for part in ("local", "recipes") for file in (f"{name}.py", name)]
    taken = ", ".join(str(path.relative_to(root)) for path in paths if path.exists())
    if taken:
        raise CorpusNameError(
            f"the name {name!r} is taken ({taken}): nothing is overwritten; take another, or "
            "delete what is there"
        )
