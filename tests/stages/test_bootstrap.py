import ast
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from toolkit.startup import THREAD_VARIABLES

PROJECT = Path(__file__).resolve().parents[2]
OLD_PYTHONS = ("3.8", "3.9")
"""Versions that a shell's `python3` may have and the recipes do not support."""


def imported_files(module):
    """Return the project's files that importing a module reads, packages included."""
    files, waiting = {}, [module]
    while waiting:
        parts = waiting.pop().split(".")
        for depth in range(1, len(parts) + 1):
            path = Path(*parts[:depth])
            file = path / "__init__.py" if (PROJECT / path).is_dir() else path.with_suffix(".py")
            if str(file) in files:
                continue
            tree = ast.parse((PROJECT / file).read_text(), feature_version=(3, 8))
            files[str(file)] = tree
            for node in tree.body:
                if isinstance(node, ast.ImportFrom) and node.module.startswith("toolkit"):
                    waiting.append(node.module)
    return files


NEEDED = tuple(imported_files("toolkit.stages.bootstrap"))
HEAD = """#!/usr/bin/env python3
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from toolkit.stages.bootstrap import use_project_environment

use_project_environment(ROOT)
import os
print(sys.prefix, os.getcwd(), *sys.argv)
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A project with an environment whose required packages are empty files."""
    root = tmp_path_factory.mktemp("project").resolve()
    stages = root / "toolkit" / "stages"
    stages.mkdir(parents=True)
    for name in NEEDED:
        (root / name).write_text((PROJECT / name).read_text())
    script = root / "recipes" / "sample" / "run.py"
    script.parent.mkdir(parents=True)
    script.write_text(HEAD)
    script.chmod(0o755)
    venv.create(root / ".venv", symlinks=True, with_pip=False)
    packages = next((root / ".venv" / "lib").glob("python3*")) / "site-packages"
    for name in ("click", "yaml", "torch", "lhotse"):
        (packages / f"{name}.py").write_text("")
    return root


@pytest.fixture
def outside(tmp_path):
    """A Python without the needed modules, first on the PATH as python3."""
    venv.create(tmp_path / "bare", symlinks=True, with_pip=False)
    return tmp_path / "bare" / "bin"


def run(command, outside, cwd):
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV", "TOOLKIT_BOOTSTRAPPED")
    }
    environment["PATH"] = f"{outside}{os.pathsep}{environment['PATH']}"
    return subprocess.run(
        [str(part) for part in command],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_recipe_started_directly_continues_in_the_projects_environment(
    template, outside, tmp_path
):
    script = template / "recipes" / "sample" / "run.py"
    link = tmp_path / "link"
    link.symlink_to(script)
    prefix = str(template / ".venv")
    calls = [
        ([script, "--stage", "3"], tmp_path),
        ([link, "a b"], tmp_path),
        (["./run.py"], script.parent),
        (["python3", "run.py", "--list"], script.parent),
        (["python3", "-u", os.path.relpath(script, tmp_path)], tmp_path),
        ([template / ".venv" / "bin" / "python", script], tmp_path),
    ]
    for command, cwd in calls:
        result = run(command, outside, cwd)
        script_and_arguments = [str(c) for c in command if str(c) not in ("python3", "-u")]
        if len(command) == 2 and "bin" in str(command[0]):
            script_and_arguments = [str(script)]
        expected = " ".join([prefix, str(cwd), *script_and_arguments])
        assert result.stdout == f"{expected}\n", (command, result)


def test_a_recipe_started_in_the_reference_environment_stays_there(template, outside):
    reference = template / ".venv-reference"
    venv.create(reference, symlinks=True, with_pip=False)
    packages = next((reference / "lib").glob("python3*")) / "site-packages"
    for name in ("click", "yaml", "torch", "lhotse"):
        (packages / f"{name}.py").write_text("")
    script = template / "recipes" / "sample" / "run.py"
    result = run([reference / "bin" / "python", script], outside, template)
    assert result.stdout.split()[0] == str(reference), result


def test_a_run_inside_a_run_changes_environment_again(template, outside):
    script = template / "recipes" / "sample" / "outer.py"
    script.write_text(
        HEAD + "import subprocess\nsys.stdout.flush()\n"
        f"subprocess.run(['python3', {str(script.parent / 'run.py')!r}])\n"
    )
    result = run(["python3", script], outside, template)
    prefixes = [line.split()[0] for line in result.stdout.splitlines()]
    assert prefixes == [str(template / ".venv")] * 2, result


def test_without_an_environment_it_says_how_to_set_up(template, outside, tmp_path):
    hidden = template / "hidden"
    (template / ".venv").rename(hidden)
    try:
        result = run([template / "recipes" / "sample" / "run.py"], outside, tmp_path)
    finally:
        hidden.rename(template / ".venv")
    assert result.returncode == 1
    assert result.stdout == ""
    assert "is not set up yet (missing: click, yaml, torch, lhotse)" in result.stderr
    assert f"make -C {template} -B setup" in result.stderr


def test_an_incomplete_environment_is_reported(template, outside, tmp_path):
    packages = next((template / ".venv" / "lib").glob("python3*")) / "site-packages"
    (packages / "lhotse.py").unlink()
    try:
        result = run([template / "recipes" / "sample" / "run.py"], outside, tmp_path)
    finally:
        (packages / "lhotse.py").write_text("")
    assert result.returncode == 1
    assert "is incomplete (missing: lhotse)" in result.stderr


def test_a_program_that_imports_a_recipe_keeps_its_interpreter(template, outside, tmp_path):
    importer = tmp_path / "importer.py"
    importer.write_text(
        f"import sys\nsys.path.insert(0, {str(template / 'recipes' / 'sample')!r})\nimport run\n"
    )
    result = run(["python3", importer], outside, tmp_path)
    assert result.stdout.split()[0] == str(outside.parent), result


def test_libraries_compute_with_one_thread_unless_the_user_says_otherwise(
    template, outside, tmp_path, monkeypatch
):
    script = template / "recipes" / "sample" / "threads.py"
    script.write_text(HEAD + "print(*(os.environ[name] for name in sys.argv[1:]))\n")
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    result = run(["python3", script, *THREAD_VARIABLES], outside, tmp_path)
    assert result.stdout.splitlines()[-1] == "1 3 1", result


def test_it_imports_the_standard_library_and_two_modules():
    assert {*NEEDED} == {
        "toolkit/__init__.py",
        "toolkit/startup.py",
        "toolkit/stages/__init__.py",
        "toolkit/stages/bootstrap.py",
    }
    for tree in imported_files("toolkit.stages.bootstrap").values():
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            outside = {name.split(".")[0] for name in names} - {"toolkit"}
            assert outside <= sys.stdlib_module_names


@pytest.mark.parametrize("name", NEEDED)
def test_its_annotations_are_evaluated_by_old_interpreters(name):
    """They lack `str | None` and `list[str]`; quoted annotations are not evaluated."""
    for node in ast.walk(imported_files("toolkit.stages.bootstrap")[name]):
        annotations = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        for part in filter(None, annotations):
            assert not any(isinstance(p, ast.BinOp | ast.Subscript) for p in ast.walk(part)), name


@pytest.mark.parametrize("version", OLD_PYTHONS)
def test_an_old_python_finds_the_projects_environment(template, outside, version):
    find = [PROJECT / "setup" / "find-python", version]
    interpreter = subprocess.run(find, capture_output=True, text=True, check=False)
    if interpreter.returncode:
        pytest.skip(f"there is no Python {version}")
    script = template / "recipes" / "sample" / "run.py"
    result = run([interpreter.stdout.strip(), script, "--list"], outside, template)
    expected = f"{template / '.venv'} {template} {script} --list\n"
    assert (result.stdout, result.stderr) == (expected, "")


def test_a_broken_environment_is_reported_and_not_retried_for_ever(template, outside, tmp_path):
    settings = template / ".venv" / "pyvenv.cfg"
    hidden = settings.rename(template / "hidden.cfg")
    try:
        result = run([template / "recipes" / "sample" / "run.py"], outside, tmp_path)
    finally:
        hidden.rename(settings)
    assert result.returncode == 1
    assert "is incomplete (missing:" in result.stderr


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [("KeyboardInterrupt", 130, "interrupted\n"), ("ValueError('x')", 1, "ValueError: x\n")],
)
def test_an_interrupt_during_imports_prints_one_word(template, error, status, message):
    (template / "recipes" / "sample" / "slow.py").write_text(f"raise {error}\n")
    script = template / "recipes" / "sample" / "interrupted.py"
    script.write_text(HEAD + "import slow\n")
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert ended.returncode == status
    assert ended.stderr.endswith(message)
    assert ("Traceback" in ended.stderr) == (status == 1)
