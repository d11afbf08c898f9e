"""`make dist`: contents of its packages, and its check for missing and extra files."""

import gzip
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]

spec = importlib.util.spec_from_file_location("setup_dist", PROJECT / "setup" / "dist.py")
dist = importlib.util.module_from_spec(spec)
with pytest.MonkeyPatch.context() as patch:  # make takes setup/__pycache__ for something new
    patch.setattr(sys, "dont_write_bytecode", True)
    spec.loader.exec_module(dist)


@pytest.fixture(scope="module")
def names():
    """The files of the checkout that git knows."""
    try:
        return dist.known_files(PROJECT)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"not a checkout: {error}")


def build(kind, source, out):
    """Build `source` with setuptools as pip does, without an isolated environment."""
    code = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    command = [sys.executable, "-c", code, str(out)]
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = out.iterdir()
    return path


@pytest.fixture(scope="module")
def built(names, tmp_path_factory):
    """The source distribution, the wheel made from it, and the wheel made from the checkout."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("dist")
    sources = [folder / "source", folder / "again"]
    for source in sources:
        dist.export(PROJECT, names, source)
    (sources[0] / "exp").mkdir()
    (sources[0] / "exp" / "model.safetensors").write_text("")
    with ThreadPoolExecutor() as pool:
        direct = pool.submit(build, "wheel", sources[1], folder / "direct")
        sdist = build("sdist", sources[0], folder / "sdist")
        with tarfile.open(sdist) as file:
            file.extractall(folder / "unpacked")
        (unpacked,) = (folder / "unpacked").iterdir()
        return sdist, build("wheel", unpacked, folder / "wheel"), direct.result()


@pytest.mark.long
def test_both_hold_the_package_and_nothing_else(built, names):
    sdist, wheel, _ = built
    dist.check_sdist(sdist, names)
    dist.check_wheel(wheel, names)
    assert "toolkit/py.typed" in names


def test_the_source_distribution_makes_the_same_wheel(built):
    _, wheel, direct = built
    dist.check_same(wheel, direct)
    assert wheel.read_bytes() == direct.read_bytes()


def test_metadata_has_name_version_licence_and_pythons(built):
    with zipfile.ZipFile(built[1]) as file:
        (path,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        lines = file.read(path).decode().partition("\n\n")[0].splitlines()
    project = (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    for field, value in (
        ("Name", "asr-recipe-toolkit"),
        ("License-Expression", "Apache-2.0"),
        ("Requires-Python", ">=3.10"),
        ("Classifier", "Typing :: Typed"),
    ):
        assert f"{field}: {value}" in lines
    (version,) = (line.removeprefix("Version: ") for line in lines if line.startswith("Version: "))
    assert f'\nversion = "{version}"\n' in project
    changes = (PROJECT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = [line[3:] for line in changes.splitlines() if line.startswith("## ")]
    assert releases[0] == "Unreleased"
    assert releases[1] == version


@pytest.mark.parametrize("name", ["tests/test_cli.py", "toolkit/exp/a.json", "exp/final/a.json"])
def test_an_extra_file_is_reported(built, names, tmp_path, name):
    sdist, wheel, direct = built
    wheel = Path(shutil.copy(wheel, tmp_path))
    with zipfile.ZipFile(wheel, "a") as file:
        file.writestr(name, "")
    with pytest.raises(dist.DistributionError, match=rf"must not hold {name}"):
        dist.check_wheel(wheel, names)
    with pytest.raises(dist.DistributionError, match=name):
        dist.check_same(wheel, direct)
    archive = tmp_path / sdist.name
    (tmp_path / "empty").touch()
    with gzip.open(sdist) as original:
        archive.write_bytes(original.read())
    with tarfile.open(archive, "a") as extended:
        extended.add(tmp_path / "empty", f"asr_recipe_toolkit/{name}")
    with pytest.raises(dist.DistributionError, match=rf"must not hold {name}"):
        dist.check_sdist(archive, names)


def test_a_missing_file_is_reported(built, names):
    sdist, wheel, _ = built
    more = [*names, "toolkit/report/new_page.css"]
    for check, path in ((dist.check_wheel, wheel), (dist.check_sdist, sdist)):
        with pytest.raises(dist.DistributionError, match=r"lacks toolkit/report/new_page.css"):
            check(path, more)


def test_a_different_file_is_reported(built, tmp_path):
    _, wheel, direct = built
    changed = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as original, zipfile.ZipFile(changed, "w") as copy:
        for name in original.namelist():
            copy.writestr(name, original.read(name) + b" " * (name == "toolkit/cli.py"))
    with pytest.raises(dist.DistributionError, match=r"not the same .* toolkit/cli.py$"):
        dist.check_same(changed, direct)


def test_files_that_git_does_not_know_are_not_exported(tmp_path):
    checkout, out = tmp_path / "checkout", tmp_path / "out"
    checkout.mkdir()
    git = shutil.which("git") or pytest.skip("git is not installed")
    subprocess.run([git, "init", "-q", checkout], check=True)
    for name in ("known", "gone", "run", "unknown"):
        (checkout / name).write_text(name)
    (checkout / "run").chmod(0o700)
    subprocess.run([git, "-C", checkout, "add", "known", "gone", "run"], check=True)
    (checkout / "gone").unlink()
    names = dist.known_files(checkout)
    assert sorted(names) == ["known", "run"]
    dist.export(checkout, names, out)
    assert {path.name: path.stat().st_mode & 0o777 for path in out.iterdir()} == {
        "known": 0o644,
        "run": 0o755,
    }
