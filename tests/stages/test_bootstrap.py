import ast
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from toolkit.one_thread import THREAD_VARIABLES

PROJECT = Path(__file__).resolve().parents[2]
NEEDED = ("toolkit/stages/__init__.py", "toolkit/stages/bootstrap.py", "toolkit/one_thread.py")
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
    """A project with an environment of its own, in which the needed modules are empty files."""
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


def test_a_recipe_typed_as_it_is_goes_on_in_the_projects_environment(template, outside, tmp_path):
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


def test_without_an_environment_it_tells_how_to_set_up(template, outside, tmp_path):
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


def test_an_incomplete_environment_is_told(template, outside, tmp_path):
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


@pytest.mark.parametrize("name", NEEDED)
def test_it_is_plain_python_that_old_interpreters_read(name):
    tree = ast.parse((PROJECT / name).read_text(), feature_version=(3, 8))
    imported = {
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    outside = {name for name in imported if name.split(".")[0] not in sys.stdlib_module_names}
    assert outside <= {"toolkit.one_thread"}


def test_a_broken_environment_is_told_and_not_tried_for_ever(template, outside, tmp_path):
    settings = template / ".venv" / "pyvenv.cfg"
    hidden = settings.rename(template / "hidden.cfg")
    try:
        result = run([template / "recipes" / "sample" / "run.py"], outside, tmp_path)
    finally:
        hidden.rename(settings)
    assert result.returncode == 1
    assert "is incomplete (missing:" in result.stderr


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [("KeyboardInterrupt", 130, "interrupted\n"), ("ValueError('x')", 1, "ValueError: x\n")],
)
def test_an_interrupt_while_modules_are_imported_is_one_word(template, error, status, told):
    (template / "recipes" / "sample" / "slow.py").write_text(f"raise {error}\n")
    script = template / "recipes" / "sample" / "interrupted.py"
    script.write_text(HEAD + "import slow\n")
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert ended.returncode == status
    assert ended.stderr.endswith(told)
    assert ("Traceback" in ended.stderr) == (status == 1)
