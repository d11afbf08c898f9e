"""`pip install` installs the package toolkit and its data, and nothing else."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("setuptools", minversion="77")

PROJECT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The names in the wheel, built from a copy without version control."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    ignored = shutil.ignore_patterns("exp", "__pycache__", "*.egg-info", ".*", "build", "shared")
    shutil.copytree(PROJECT, source, ignore=ignored)
    options = ("--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", folder)
    command = [sys.executable, "-m", "pip", "wheel", source, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if "invalid command 'bdist_wheel'" in done.stderr:
        pytest.skip("the package wheel is not installed")
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as file:
        return set(file.namelist())


def test_the_wheel_holds_only_the_toolkit(wheel):
    """Benchmarks, recipes and tests are for a checkout."""
    assert {name.partition("/")[0].partition("-")[0] for name in wheel} == {
        "toolkit",
        "asr_recipe_toolkit",
    }
    assert [name for name in wheel if "bench" in name] == []
    assert any(name.endswith("LICENSE") for name in wheel)


def test_the_wheel_holds_all_of_the_toolkit(wheel):
    files = (path for path in (PROJECT / "toolkit").rglob("*") if path.is_file())
    names = {str(path.relative_to(PROJECT)) for path in files if "__pycache__" not in path.parts}
    assert names <= wheel
