"""Listing a recipe, its help and its settings need no numeric library."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "lhotse", "numba", "numpy", "scipy", "soundfile", "k2", "torchaudio", "jinja2"}
RECIPES = ("recipes/librispeech/run.py", "recipes/librispeech/run_ctc.py")
RECIPES += ("recipes/farfield_ssl/run.py",)
CONFIGS = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for tree in ("toolkit", "local")
    for path in sorted(ROOT.glob(f"{tree}/*/config.py"))
    if path.parent.name != "commands"  # that is a command
]
REPORT = f"""
import atexit, sys
atexit.register(lambda: print("heavy:", *sorted({HEAVY!r}.intersection(sys.modules))))
"""


def heavy_modules(code, *arguments):
    """Run code in a new process; return the numeric libraries that it has imported."""
    run = subprocess.run(
        [sys.executable, "-c", REPORT + code, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout.splitlines()[-1].split()[1:]


@pytest.mark.parametrize("option", ["--list", "--help"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_listed_without_numeric_libraries(recipe, option, tmp_path):
    code = "import runpy; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    assert heavy_modules(code, recipe, option, "--exp", tmp_path) == []


@pytest.mark.parametrize("recipe", RECIPES)
def test_settings_are_shown_without_numeric_libraries(recipe):
    code = "from toolkit.cli import main; sys.argv = ['toolkit', *sys.argv[1:]]; main()"
    assert heavy_modules(code, "config", recipe) == []


@pytest.mark.parametrize("module", CONFIGS)
def test_settings_of_a_package_are_free_of_numeric_libraries(module):
    assert heavy_modules(f"import {module}") == []
