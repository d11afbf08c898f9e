"""Which code and packages a stage runs with, and how those differ from the ones it was begun with.

git tells the commit of the recipe's repository and the changes since. A digest of the sources tells
the code where git does not: in an installed package, or a recipe outside of any repository.
"""

import dataclasses
import os
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import toolkit
from toolkit.engines import engines
from toolkit.environment import project_root
from toolkit.storage.digest import digest_bytes
from toolkit.storage.reading import validated

UNKNOWN = "unknown"
"""What stands for code that was not recorded."""
DISTRIBUTIONS = ("torch", "numpy", "numba", "k2", "kaldifeat", "lhotse", "torchaudio")
GIT_TIMEOUT = 20.0  # seconds
GIT_FORM, VERSIONS_FORM = {str: str | bool | None}, {str: str | None}
_ATTEMPT = {
    "started": str,
    "code": {"git": GIT_FORM, "sources": str | None, "versions": VERSIONS_FORM},
    "numeric": {str: str | int | None},
}


@dataclass(frozen=True)
class Code:
    """The code and the packages that a process runs with."""

    git: dict[str, Any]
    """`commit` of the recipe's repository; `dirty`: whether tracked files differ from it or there
    are Python files that it does not know, except in new recipes beside this one; `changes`: a
    digest of both. None where not known."""
    sources: str | None
    """Digest of the toolkit's sources and of those beside the recipe; None in older markers."""
    versions: dict[str, str | None]
    """Of Python, the toolkit and the packages that a result may depend on (None: not installed);
    and the engines, see `toolkit.engines.engines`."""

    @property
    def commit(self) -> str:
        """The commit in short, and which changes there are, in words."""
        commit, changes = self.git.get("commit"), self.git.get("changes")
        if not commit:
            return "none"
        commit, which = str(commit), f" {str(changes)[:8]}" if changes else ""
        return f"{commit[:12]} with changes{which}" if self.git.get("dirty") else commit[:12]


@dataclass(frozen=True)
class Attempt:
    """One of the processes that worked on a stage."""

    started: str
    code: Code
    numeric: dict[str, str | int | None]
    """See `toolkit.environment.numeric_environment`."""


@dataclass(frozen=True)
class Difference:
    """What differs between two states of the code: "commit", "sources" or a package's name."""

    what: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.what} {self.old} -> {self.new}"


def differences(old: Code, new: Code) -> list[Difference]:
    """Return how code and packages differ; a package that one of them does not name is equal."""
    found = []
    git = [{key: c.git.get(key) for key in ("commit", "dirty", "changes")} for c in (old, new)]
    if git[0] != git[1]:
        found.append(Difference("commit", old.commit, new.commit))
    elif old.sources and new.sources and old.sources != new.sources:
        found.append(Difference("sources", old.sources[:8], new.sources[:8]))
    for name in old.versions.keys() & new.versions.keys():
        before, after = old.versions[name] or "none", new.versions[name] or "none"
        if before != after:
            found.append(Difference(name, before, after))
    order = ["commit", "sources", *new.versions]
    return sorted(found, key=lambda difference: order.index(difference.what))


def attempts_to_plain(attempts: Iterable[Attempt | None]) -> list[Any]:
    """Return the JSON form of attempts; None is one whose code was not recorded."""
    return [dataclasses.asdict(attempt) if attempt else UNKNOWN for attempt in attempts]


def attempts_from_plain(plain: Any) -> list[Attempt | None]:
    """Return attempts from their JSON form.

    Raises:
      ValueError, TypeError, LookupError: it is damaged.
    """
    found: list[Attempt | None] = []
    for item in validated(plain, [Any]):
        if item == UNKNOWN:
            found.append(None)
            continue
        code = validated(item, _ATTEMPT)["code"]
        code = Code(code["git"], code["sources"], code["versions"])
        found.append(Attempt(item["started"], code, item["numeric"]))
    return found


@cache
def present_code(folder: Path) -> Code:
    """Return the code that a recipe in `folder` runs with, as the files are at the first call."""
    return code_on_disk(folder)


def code_on_disk(folder: Path) -> Code:
    """Return the code of a recipe in `folder`, as the files are now."""
    return Code(git_state(folder), sources_digest(folder), versions())


def versions() -> dict[str, str | None]:
    """Return `Code.versions` of this process; no package is imported for it."""
    found: dict[str, str | None] = {
        "python": platform.python_version(),
        "toolkit": toolkit.__version__,
    }
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found | engines()


def git_state(folder: Path) -> dict[str, Any]:
    """Return the commit checked out around `folder`, and what differs from it.

    Returns:
      The values of `Code.git`; all None outside a repository, before its first commit, and without
      git.
    """
    unknown = {"commit": None, "dirty": None, "changes": None}
    found = _git(folder, "rev-parse", "--show-toplevel", "--verify", "HEAD")
    if found is None:
        return unknown
    top, commit = os.fsdecode(found).rstrip("\n").rsplit("\n", 1)
    root = Path(top)
    # Independent of the user's settings, so that the same changes have the same digest. With full
    # names of blobs the digest covers binary files too.
    plain = ("--full-index", "--no-ext-diff", "--no-textconv", "--no-color", "--no-relative")
    diff = _git(root, "diff", *plain, "HEAD")
    others = _git(root, "ls-files", "-z", "--others", "--exclude-standard", "--", "*.py")
    if diff is None or others is None:
        return unknown
    names = [root / os.fsdecode(name) for name in others.split(b"\0") if name]
    untracked = _digest(root, _without_new_recipes(names, folder.resolve()))
    if not diff and not untracked:
        return {"commit": commit, "dirty": False, "changes": None}
    return {"commit": commit, "dirty": True, "changes": digest_bytes(diff + untracked.encode())}


def _without_new_recipes(names: list[Path], folder: Path) -> list[Path]:
    """Leave out the files of recipes beside `folder` that git does not know.

    They are made for other corpora, and no recipe imports them. Making one must not keep an
    interrupted stage of this one from going on.
    """
    beside = {path.parent for path in names if path.name == "run.py"} - {folder}
    beside = {other for other in beside if other.parent == folder.parent}
    return [path for path in names if beside.isdisjoint(path.parents)]


def _git(folder: Path, *arguments: str) -> bytes | None:
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=GIT_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def sources_digest(folder: Path) -> str:
    """Return a digest of the Python files of the toolkit, of those beside it that recipes share,
    and of those directly in the recipe's folder.
    """
    root = project_root()
    trees = (root / "toolkit", root / "local", root / "recipes" / "steps")
    shared = _digest(root, [path for tree in trees for path in tree.rglob("*.py")])
    return digest_bytes((shared + _digest(folder, folder.glob("*.py"))).encode())


def _digest(root: Path, paths: Iterable[Path]) -> str:
    """Return a digest of files below `root`, "" if there are none; editors' hidden ones are not."""
    lines = []
    for path in sorted(paths):
        if not path.name.startswith(".") and path.is_file():
            try:
                digest = digest_bytes(path.read_bytes())
            except OSError as error:
                digest = str(error.strerror)
            lines.append(f"{os.fsencode(path.relative_to(root))!r} {digest}\n")
    return digest_bytes("".join(lines).encode()) if lines else ""
