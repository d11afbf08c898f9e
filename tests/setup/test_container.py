"""The Dockerfile, read without a build: copied files, installed packages, user."""

import fnmatch
import re
import shlex
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
TEXT = (PROJECT / "Dockerfile").read_text(encoding="utf-8")


def instructions(python: str) -> list[tuple[str, str]]:
    """Return each instruction and its arguments on one line, for this version of Python."""
    lines = [line for line in TEXT.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").replace("${PYTHON}", python)
    parts = (line.split(maxsplit=1) for line in joined.splitlines() if line.strip())
    return [(name, " ".join(arguments.split())) for name, arguments in parts]


def commands(python: str) -> list[list[str]]:
    """Return the words of each RUN command."""
    runs = [arguments for name, arguments in instructions(python) if name == "RUN"]
    return [shlex.split(part) for arguments in runs for part in arguments.split("&&")]


def ignored(path: Path) -> bool:
    """Whether .dockerignore excludes a path of the project; its last match decides."""
    parts = path.relative_to(PROJECT).parts
    within = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    result = False
    for line in (PROJECT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            pattern = line.removeprefix("!").removeprefix("**/")
            names = parts if "**/" in line else within
            if any(fnmatch.fnmatchcase(name, pattern) for name in names):
                result = not line.startswith("!")
    return result


@pytest.mark.parametrize("python", PYTHONS)
def test_copied_files_exist_and_are_sent_to_the_build(python):
    copied = [arguments.split() for name, arguments in instructions(python) if name == "COPY"]
    assert copied
    for *sources, target in copied:
        for source in sources:
            path = PROJECT / source
            assert path.exists(), source
            files = [path] if path.is_file() else sorted(path.rglob("*.py"))
            assert not [file for file in files if ignored(file) and "exp" not in file.parts]
            assert path.is_file() or source == target, "a folder would be emptied into another"


def test_the_build_is_sent_neither_runs_nor_environments_nor_history():
    for name in (".git/HEAD", ".venv/bin/python", "recipes/librispeech/exp/demo/log.txt"):
        assert ignored(PROJECT / name), name
    for name in ("tests/test_cli.py", "shared/a", "toolkit/__pycache__/cli.pyc", "dist/a.whl"):
        assert ignored(PROJECT / name), name
    assert not ignored(PROJECT / "toolkit" / "report" / "page.css")


@pytest.mark.parametrize("python", PYTHONS)
def test_packages_are_the_locked_ones_and_wheels(python):
    (install,) = (words for words in commands(python) if "--requirement" in words)
    assert install[:3] == ["uv", "pip", "install"]
    assert install[install.index("--constraint") + 1] == f"setup/python{python}.lock"
    assert install[install.index("--only-binary") + 1] == ":all:"
    assert install[install.index("--torch-backend") + 1] == "${TORCH}"
    project = (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    extras = [install[n + 1] for n, word in enumerate(install) if word == "--extra"]
    assert extras
    for extra in extras:
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE), extra


def test_the_default_python_is_locked_and_torch_is_for_the_cpu():
    defaults = dict(re.findall(r"^ARG (\w+)=(\S+)$", TEXT, re.MULTILINE))
    assert defaults["PYTHON"] in PYTHONS
    assert defaults["TORCH"] == "cpu"
    assert (PROJECT / "setup" / f"python{defaults['PYTHON']}.lock").exists()


def test_the_commands_run_as_a_user_without_privileges():
    users = [arguments for name, arguments in instructions("3.13") if name == "USER"]
    assert users[-1:] == ["asr"]
    assert any(words[0] == "useradd" and words[-1] == "asr" for words in commands("3.13"))
    instructions_as_user = TEXT.partition("USER asr")[2]
    assert "RUN" not in instructions_as_user
    assert 'ENTRYPOINT ["toolkit"]' in instructions_as_user


def test_the_documentation_has_the_commands_and_the_systems_packages():
    page = (PROJECT / "docs" / "install.md").read_text(encoding="utf-8")
    for line in re.findall(r"^#   (docker .+)$", TEXT, re.MULTILINE):
        assert line in page, line
    texts = [TEXT, *(p.read_text() for p in (PROJECT / ".github" / "workflows").glob("*.yml"))]
    for text in texts:
        for packages in re.findall(r"apt-get install ((?:[\w.+-]+ ?)+)", text):
            for package in packages.split():
                assert package.startswith("-") or f" {package}" in page, package
