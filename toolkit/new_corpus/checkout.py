"""The checkout of the project, into which the readers and recipes of new corpora are written."""

import keyword
import re
import unicodedata
from pathlib import Path

import toolkit
from toolkit.errors import ToolkitError

MARKER_FILES = ("local/__init__.py", "recipes/librispeech/run.py", "toolkit/stages/recipe.py")
"""Files by which a checkout of the project is recognised."""


class CheckoutError(ToolkitError):
    """A command that needs a checkout of the project was called outside of one."""


class CorpusNameError(ToolkitError):
    """A name that a new corpus cannot have."""


def find_checkout(start: Path) -> Path:
    """Return the root of the checkout: `start`, a folder above it, or that of this package.

    Raises:
      CheckoutError: there is none, for instance because the toolkit was installed from a wheel.
    """
    start = start.absolute()
    for folder in (start, *start.parents, Path(toolkit.__file__).absolute().parents[1]):
        if all((folder / part).is_file() for part in MARKER_FILES):
            return folder
    raise CheckoutError(
        f"a new corpus becomes a recipe in a checkout of the project, and {start} is not in one: "
        "the installed package is the toolkit alone, without recipes/ and local/. Clone the "
        "project's repository, run `make setup` in it, and run the command there: "
        ".venv/bin/toolkit new-corpus ..."
    )


def check_name(name: str, root: Path) -> None:
    """Check the name of a new corpus in the checkout `root`.

    Raises:
      CorpusNameError: it is no Python identifier, or taken.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        plain = unicodedata.normalize("NFKD", name.lower().replace("ß", "ss"))
        plain = "".join(c for c in plain if not unicodedata.combining(c))
        hint = re.sub(r"[^a-z0-9]+", "_", plain).strip("_")
        hint = f"c_{hint}" if hint[:1].isdigit() or keyword.iskeyword(hint) else hint
        example = f", such as {hint!r}" if hint else ""
        raise CorpusNameError(
            f"{name!r} cannot be the name of a corpus: it becomes the name of a Python module, so "
            f"use lower-case letters, digits and _{example}"
        )
    paths = [root / part / file for part in ("local", "recipes") for file in (f"{name}.py", name)]
    taken = ", ".join(str(path.relative_to(root)) for path in paths if path.exists())
    if taken:
        raise CorpusNameError(
            f"the name {name!r} is taken ({taken}) and nothing is overwritten: choose another "
            "name, or delete what is there"
        )
