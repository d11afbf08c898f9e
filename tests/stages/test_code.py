import subprocess
from pathlib import Path

import pytest

from toolkit.stages import code
from toolkit.stages.code import (
    Attempt,
    Code,
    attempts_from_plain,
    attempts_to_plain,
    differences,
    git_state,
    present_code,
    sources_digest,
    versions,
)

UNKNOWN = {"commit": None, "dirty": None, "changes": None}


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    (folder / "recipe").mkdir(parents=True)
    git(folder, "init")
    (folder / "file").write_text("1")
    (folder / "image").write_bytes(b"\x00\x01")
    (folder / ".gitignore").write_text("exp/\n")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "first")
    return folder


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    command = ["git", *identity, "-C", str(folder), *arguments]
    subprocess.run(command, check=True, capture_output=True)


def test_versions_name_python_the_toolkit_and_what_computes():
    packages = {"torch", "numpy", "numba", "k2", "kaldifeat", "lhotse", "torchaudio"}
    assert set(versions()) == {"python", "toolkit", "front end", "search"} | packages
    assert versions()["search"] == "native"


def test_git_state_tells_commit_and_changes(tmp_path, repository):
    assert git_state(tmp_path / "none") == UNKNOWN
    clean = git_state(repository)
    assert len(clean["commit"]) == 40
    assert clean == {"commit": clean["commit"], "dirty": False, "changes": None}
    assert git_state(repository / "recipe") == clean
    (repository / "file").write_text("2")
    edited = git_state(repository)
    assert edited == {"commit": clean["commit"], "dirty": True, "changes": edited["changes"]}
    assert git_state(repository / "recipe") == edited
    (repository / "file").write_text("1")
    assert git_state(repository) == clean


def test_a_new_recipe_beside_this_one_changes_nothing(repository):
    """It was made for another corpus; a new file in this one, or beside recipes, does count."""
    clean = git_state(repository / "recipe")
    for folder in ("other", "shared"):
        (repository / folder).mkdir()
    (repository / "other" / "run.py").write_text("1")
    (repository / "other" / "config.py").write_text("1")
    assert git_state(repository / "recipe") == clean
    assert git_state(repository / "other")["dirty"]
    (repository / "shared" / "step.py").write_text("1")
    shared = git_state(repository / "recipe")
    (repository / "recipe" / "run.py").write_text("1")
    states = [clean, shared, git_state(repository / "recipe")]
    assert len({state["changes"] for state in states}) == 3


def test_a_repository_without_commits_has_no_state(tmp_path):
    git(tmp_path, "init")
    assert git_state(tmp_path) == UNKNOWN


@pytest.mark.parametrize("edit", ["file", "image", "new.py", "recipe/new.py", "staged", "gone"])
def test_each_further_edit_has_another_digest(repository, edit):
    """Of tracked files, binary ones too, and of Python files that git does not know."""
    path = repository / ("file" if edit in ("staged", "gone") else edit)
    seen = [git_state(repository)]
    for content in (b"\x00edit", b"\x00more"):
        path.write_bytes(content)
        if edit == "staged":
            git(repository, "add", "file")
        seen.append(git_state(repository))
    if edit == "gone":
        path.unlink()
        seen.append(git_state(repository))
    assert all(state["dirty"] for state in seen[1:])
    digests = [state["changes"] for state in seen]
    assert len(set(digests)) == len(digests)


def test_files_that_are_no_code_of_the_repository_do_not_count(repository):
    clean = git_state(repository)
    (repository / "notes.txt").write_text("1")
    (repository / "exp").mkdir()
    (repository / "exp" / "made.py").write_text("1")
    (repository / ".#file.py").symlink_to("an-editors-lock")
    assert git_state(repository) == clean


def test_settings_of_git_do_not_change_the_digest(repository):
    (repository / "file").write_text("2")
    before = git_state(repository)
    git(repository, "config", "color.ui", "always")
    git(repository, "config", "diff.external", "echo")
    git(repository, "config", "core.abbrev", "20")
    assert git_state(repository) == before


def test_the_digest_of_sources_covers_toolkit_and_recipe(tmp_path, monkeypatch):
    folder, root = tmp_path / "recipe", tmp_path / "root"
    (root / "toolkit" / "stages").mkdir(parents=True)
    folder.mkdir()
    monkeypatch.setattr(code, "project_root", lambda: root)
    seen = {sources_digest(folder)}
    for path in (folder / "run.py", root / "toolkit" / "stages" / "run.py"):
        for text in ("1", "2"):
            path.write_text(text)
            seen.add(sources_digest(folder))
    assert len(seen) == 5
    (folder / "data.txt").write_text("3")
    assert sources_digest(folder) in seen


def test_git_is_asked_once_per_process(repository, monkeypatch):
    asked = []
    real = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: asked.append(a) or real(*a, **k))
    assert present_code(repository) is present_code(Path(repository))
    assert len(asked) == 3


def test_without_git_the_sources_tell_the_code(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "run.py").write_text("1")
    state = Code(git_state(tmp_path), sources_digest(tmp_path), versions())
    assert state.git == UNKNOWN
    (tmp_path / "run.py").write_text("2")
    now = Code(git_state(tmp_path), sources_digest(tmp_path), versions())
    (difference,) = differences(state, now)
    assert difference.what == "sources"
    assert differences(state, state) == []


def made_by(commit="a" * 40, changes=None, sources="5" * 32, **packages):
    git = {"commit": commit, "dirty": changes is not None, "changes": changes}
    return Code(git, sources, {"python": "3.10", "torch": "1.13.1"} | packages)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (made_by(), made_by(), []),
        (made_by(), made_by("b" * 40), ["commit aaaaaaaaaaaa -> bbbbbbbbbbbb"]),
        (made_by(), made_by("b" * 40, sources="6" * 32), ["commit aaaaaaaaaaaa -> bbbbbbbbbbbb"]),
        (made_by(), made_by(None), ["commit aaaaaaaaaaaa -> none"]),
        (
            made_by(changes="1" * 32),
            made_by(changes="2" * 32),
            ["commit aaaaaaaaaaaa with changes 11111111 -> aaaaaaaaaaaa with changes 22222222"],
        ),
        (
            Code({"commit": "a" * 40, "dirty": True}, None, {}),  # as recorded before
            made_by(changes="2" * 32),
            ["commit aaaaaaaaaaaa with changes -> aaaaaaaaaaaa with changes 22222222"],
        ),
        (Code({"commit": "a" * 40, "dirty": False}, None, {}), made_by(), []),
        (made_by(), made_by(sources="6" * 32), ["sources 55555555 -> 66666666"]),
        (
            made_by(k2=None),
            made_by(k2="1.24", torch="2.13.0", numpy="2.0"),
            ["torch 1.13.1 -> 2.13.0", "k2 none -> 1.24"],
        ),
    ],
)
def test_differences_are_named_with_both(old, new, expected):
    assert sorted(map(str, differences(old, new))) == sorted(expected)


def test_attempts_survive_json():
    attempt = Attempt("2026-11-21T06:00:00+00:00", made_by(k2=None), {"blas": None, "threads": 2})
    assert attempts_from_plain(attempts_to_plain([None, attempt])) == [None, attempt]
    assert attempts_to_plain([None]) == ["unknown"]
    with pytest.raises(ValueError, match="commit"):
        attempts_from_plain([{"started": "", "numeric": {}, "code": {"git": {"commit": []}}}])
