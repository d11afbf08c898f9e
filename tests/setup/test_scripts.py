"""The shell scripts that find a Python and make an environment with it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SETUP = Path(__file__).resolve().parents[2] / "setup"
PYTHON = """#!/bin/sh
# A Python 3.90 that can tell its version and make environments.
case "$1 $2" in
  "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  *executable*) echo "3.90 $0" ;;
  *) echo 3.90 ;;
esac
"""


@pytest.fixture
def run(tmp_path):
    """Runs a script on a machine with a Python 3.90 and the system's Python."""
    program = tmp_path / "bin" / "python3.90"
    program.parent.mkdir()
    program.write_text(PYTHON)
    program.chmod(0o755)

    def script(name, *arguments):
        environment = {"PATH": f"{program.parent}:/usr/bin:/bin", "HOME": str(tmp_path)}
        command = [str(SETUP / name), *map(str, arguments)]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    return script


def test_the_first_available_python_is_used(run, tmp_path):
    done = run("find-python", "3.99", "3.90", "3.98")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{tmp_path}/bin/python3.90\n"


def test_a_program_may_be_named(run, tmp_path):
    assert run("find-python", sys.executable).stdout == f"{sys.executable}\n"
    program = tmp_path / "bin" / "python3.90"
    assert run("find-python", "no-such-python", program).stdout == f"{program}\n"


@pytest.mark.parametrize(
    ("programs", "listed", "advice"),
    [
        (("3.98", "3.99"), "3.98 or 3.99", "pyenv install 3.98"),
        (("3.97", "3.98", "3.99"), "3.97, 3.98 or 3.99", "uv python install 3.97"),
        (("no-such-python",), "no-such-python", "pyenv install 3.13"),
    ],
)
def test_without_a_python_the_message_says_how_to_get_one(run, programs, listed, advice):
    done = run("find-python", *programs)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"No Python {listed} was found." in done.stderr
    assert advice in done.stderr


def test_an_environment_is_kept_until_its_python_changes(run, tmp_path):
    folder = tmp_path / "environment"
    assert run("make-environment", folder, "3.90").stdout == "3.90\n"
    (folder / "mark").write_text("")
    run("make-environment", folder, "3.90")
    assert (folder / "mark").exists()
    python = folder / "bin" / "python"
    python.unlink()
    python.write_text("#!/bin/sh\necho 3.80\n")
    python.chmod(0o755)
    run("make-environment", folder, "3.90")
    assert not (folder / "mark").exists()
    assert os.access(python, os.X_OK)


def test_a_linked_environment_is_unlinked_and_not_emptied(run, tmp_path):
    target = tmp_path / "other"
    target.mkdir()
    (target / "precious").write_text("")
    (tmp_path / "environment").symlink_to(target)
    run("make-environment", tmp_path / "environment", "3.90")
    assert (target / "precious").exists()
    assert not (tmp_path / "environment").is_symlink()


def test_without_a_python_no_environment_is_made(run, tmp_path):
    assert run("make-environment", tmp_path / "environment", "3.99").returncode == 1
    assert not (tmp_path / "environment").exists()


AUDIT = """#!/bin/sh
# A Python whose pip-audit answers with the file `answer`.
case "$1" in
  -c) case "$2" in
        "import pip_audit") test -e "$(dirname "$0")/answer" ;;
        *) exec {python} "$@" ;;
      esac ;;
  -m) cat "$(dirname "$0")/answer"; echo "ERROR: no network" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def audit(tmp_path):
    """Runs the audit with a fake pip-audit that gives an answer; None: without pip-audit."""
    program = tmp_path / "python"
    program.write_text(AUDIT.format(python=sys.executable))
    program.chmod(0o755)

    def run(answer):
        if answer is not None:
            (tmp_path / "answer").write_text(answer)
        command = [str(SETUP / "audit"), str(program)]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.returncode, done.stdout.splitlines()

    return run


def test_an_audit_that_fails_says_why(audit):
    status, lines = audit(None)
    assert (status, len(lines)) == (0, 1)
    assert lines[0].startswith("skipped: pip-audit is not installed")
    status, lines = audit("")
    assert status == 0
    assert len(lines) == len([*SETUP.glob("*.lock")])
    assert "python3.13.lock: skipped: ERROR: no network" in lines


def test_an_audit_names_packages_with_known_vulnerabilities(audit):
    clean = {"name": "a", "version": "1", "vulns": []}
    skipped = {"name": "k2", "skip_reason": "not on the index"}
    assert audit(json.dumps({"dependencies": [clean, skipped]}))[0] == 0
    faulty = {"name": "b", "version": "2", "vulns": [{"id": "X-1"}, {"id": "X-2"}]}
    status, lines = audit(json.dumps({"dependencies": [clean, faulty]}))
    assert status == 1
    assert "python3.13.lock: b 2: X-1, X-2" in lines
    assert "python3.13.lock: 1 packages with known vulnerabilities" in lines
