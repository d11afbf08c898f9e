#!/usr/bin/env python3
"""Builds the source distribution and the wheel into a folder, and checks both.

    make dist                               # with the packages of the extra `dist`
    .venv-dist/bin/python setup/dist.py dist

They are made from a copy of the files that git knows, as they are now: what lies about in the
checkout, and what earlier builds left, gets into neither. Their bytes depend on these files and the
date of the commit alone.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BESIDE = frozenset({"CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml"})
"""What a source distribution holds besides the package `toolkit`."""
GENERATED = frozenset({"PKG-INFO", "setup.cfg"})
"""What setuptools adds to it, besides a folder *.egg-info."""


class DistributionError(Exception):
    """A distribution that lacks a file, or holds one too many."""


def known_files(root: Path) -> list[str]:
    """The files of the checkout `root` that git knows and that are there, relative to it."""
    command = ["git", "-C", str(root), "ls-files", "-z"]
    listed = subprocess.run(command, check=True, capture_output=True).stdout
    names = [os.fsdecode(name) for name in listed.split(b"\0") if name]
    return [name for name in names if (root / name).is_file()]


def export(root: Path, names: list[str], out: Path) -> None:
    """Copy these files below `root` to the folder `out`."""
    for name in names:
        target = out / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, target)
        target.chmod(0o755 if os.access(root / name, os.X_OK) else 0o644)


def _compare(found: set[str], expected: set[str], what: str) -> None:
    for names, fault in ((expected - found, "lacks"), (found - expected, "must not hold")):
        if names:
            raise DistributionError(f"{what} {fault} {', '.join(sorted(names))}")


def check_wheel(wheel: Path, names: list[str]) -> None:
    """Raise DistributionError unless the wheel holds the package, its data and metadata alone."""
    with zipfile.ZipFile(wheel) as file:
        found = set(file.namelist())
    metadata = {name for name in found if name.split("/")[0].endswith(".dist-info")}
    if not any(name.endswith("/LICENSE") for name in metadata):
        raise DistributionError(f"{wheel.name} lacks the licence")
    package = {name for name in names if name.startswith("toolkit/")}
    _compare(found - metadata, package, wheel.name)


def check_sdist(sdist: Path, names: list[str]) -> None:
    """Raise DistributionError unless the sdist holds what the wheel is built from alone."""
    with tarfile.open(sdist) as file:
        paths = [member.name.partition("/")[2] for member in file if member.isfile()]
    found = {path for path in paths if not path.split("/")[0].endswith(".egg-info")}
    package = {name for name in names if name.startswith("toolkit/")}
    _compare(found - GENERATED, package | BESIDE, sdist.name)


def check_same(first: Path, second: Path) -> None:
    """Raise DistributionError unless two wheels hold the same files."""
    contents = []
    for wheel in (first, second):
        with zipfile.ZipFile(wheel) as file:
            contents.append({name: file.read(name) for name in file.namelist()})
    of_first, of_second = contents
    _compare(set(of_first), set(of_second), first.name)
    if differing := [name for name in of_first if of_first[name] != of_second[name]]:
        raise DistributionError(f"not the same as from the sdist: {', '.join(sorted(differing))}")


def _python(*arguments: str | Path, folder: Path) -> None:
    subprocess.run([sys.executable, *map(str, arguments)], check=True, cwd=folder)


def main() -> None:
    """Build into the folder that is named; leave there only what passed the checks."""
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "dist").absolute()
    names = known_files(ROOT)
    date = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    commit = subprocess.run(date, check=True, capture_output=True, text=True).stdout.strip()
    os.environ["SOURCE_DATE_EPOCH"] = commit
    with tempfile.TemporaryDirectory() as work:
        source, both, again = (Path(work, name) for name in ("source", "both", "again"))
        export(ROOT, names, source)
        _python("-m", "build", "--outdir", both, folder=source)  # the wheel from the sdist
        (wheel,), (sdist,) = both.glob("*.whl"), both.glob("*.tar.gz")
        fresh = Path(work, "fresh")
        export(ROOT, names, fresh)
        _python("-m", "build", "--wheel", "--outdir", again, folder=fresh)
        check_wheel(wheel, names)
        check_sdist(sdist, names)
        check_same(again / wheel.name, wheel)
        _python("-m", "twine", "check", "--strict", wheel, sdist, folder=source)
        out.mkdir(parents=True, exist_ok=True)
        for path in (wheel, sdist):
            shutil.copyfile(path, out / path.name)
            print(f"{out / path.name}: {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    try:
        main()
    except (DistributionError, subprocess.CalledProcessError) as error:
        sys.exit(f"setup/dist.py: {error}")
