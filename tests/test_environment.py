import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import toolkit
from toolkit import environment
from toolkit.environment import GitState, git_state


def test_import_of_the_package_loads_nothing_heavy():
    code = "import sys, toolkit; print(*sorted(m.split('.')[0] for m in sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=environment.project_root(), capture_output=True, text=True
    ).stdout.split()
    assert "toolkit" in loaded
    assert not {"torch", "numpy", "k2", "lhotse", "click", "rich", "numba"} & set(loaded)


def test_version_is_that_of_the_project_file():
    project = (environment.project_root() / "pyproject.toml").read_text()
    assert re.search(r'^version = "(.*)"', project, re.M)[1] == toolkit.__version__


def test_a_package_that_is_not_installed_has_no_version(tmp_path):
    (tmp_path / "toolkit").symlink_to(Path(toolkit.__file__).parent)
    code = "import sys; sys.path.insert(0, sys.argv[1]); import toolkit; print(toolkit.__version__)"
    command = [sys.executable, "-I", "-S", "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0+unknown\n", "")


def test_versions_name_the_installed_packages(monkeypatch):
    monkeypatch.setattr(environment, "DISTRIBUTIONS", ("numpy", "no-such-distribution"))
    import numpy

    versions = environment.versions()
    assert versions == {"python": sys.version.split()[0], "numpy": numpy.__version__}


def git(folder, *arguments):
    who = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run(["git", "-C", folder, *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    (folder / "recipe").mkdir(parents=True)
    git(folder, "init")
    (folder / "file").write_text("1")
    (folder / "image").write_bytes(b"\x00\x01")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "first")
    return folder


def test_git_state_is_commit_and_changes(tmp_path, repository):
    assert git_state(tmp_path / "none") == GitState()
    clean = git_state(repository)
    assert re.fullmatch("[0-9a-f]{40}", clean.commit)
    assert clean == GitState(clean.commit, dirty=False, diff="")
    assert git_state(repository / "recipe") == clean
    (repository / "file").write_text("2")
    edited = git_state(repository)
    assert edited.dirty
    assert edited.commit == clean.commit
    assert git_state(repository / "recipe") == edited
    (repository / "file").write_text("1")
    assert git_state(repository) == clean


def test_a_repository_without_commits_and_a_machine_without_git_have_no_state(
    tmp_path, repository, monkeypatch
):
    (tmp_path / "new").mkdir()
    git(tmp_path / "new", "init")
    assert git_state(tmp_path / "new") == GitState()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(repository) == GitState()


@pytest.mark.parametrize("edit", ["file", "image", "staged", "gone"])
def test_each_further_edit_of_a_tracked_file_has_another_digest(repository, edit):
    path = repository / (edit if edit in ("file", "image") else "file")
    states = [git_state(repository)]
    for content in (b"\x00edit", b"\x00more"):
        path.write_bytes(content)
        if edit == "staged":
            git(repository, "add", "file")
        states.append(git_state(repository))
    if edit == "gone":
        path.unlink()
        states.append(git_state(repository))
    assert all(state.dirty for state in states[1:])
    digests = [state.diff for state in states]
    assert len(set(digests)) == len(digests)


def test_files_that_git_does_not_know_do_not_count(repository):
    clean = git_state(repository)
    (repository / "recipe" / "new.py").write_text("1")
    assert git_state(repository) == clean


def test_settings_of_git_do_not_change_the_digest(repository):
    (repository / "file").write_text("2")
    state = git_state(repository)
    git(repository, "config", "color.ui", "always")
    git(repository, "config", "diff.external", "echo")
    git(repository, "config", "core.abbrev", "20")
    assert git_state(repository) == state


def test_result_versions_name_python_the_toolkit_the_engines_and_what_computes():
    packages = {"torch", "numpy", "numba", "k2", "kaldifeat", "lhotse", "torchaudio"}
    versions = environment.result_versions()
    assert set(versions) == {"python", "toolkit", "front end", "search"} | packages
    assert versions["search"] == "native"


def test_commit_is_named_and_edits_are_marked(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "project_root", lambda: tmp_path)
    assert environment.git_commit() is None
    git(tmp_path, "init")
    assert environment.git_commit() is None  # nothing committed yet
    (tmp_path / "file").write_text("a")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-m", "first")
    commit = environment.git_commit()
    assert re.fullmatch("[0-9a-f]{40}", commit)
    (tmp_path / "file").write_text("b")
    assert environment.git_commit() == commit + "+changes"


def test_machine_and_speed_are_positive_numbers():
    assert environment.machine()["cpus"] >= 1
    assert environment.machine()["memory_gib"] >= 0
    assert 0.01 < environment.gemm_gflops(size=64, seconds=0.01) < 10_000


def test_the_numeric_environment_is_that_of_torch_once_it_is_loaded(monkeypatch):
    import torch

    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    with_torch = environment.numeric_environment()
    assert with_torch["torch_threads"] == torch.get_num_threads()
    assert with_torch["OMP_NUM_THREADS"] == "3"
    assert with_torch["blas"] in torch.__config__.show()
    monkeypatch.setattr(torch.__config__, "show", lambda: "BLAS_INFO=accelerate, LAPACK_INFO=x")
    assert environment.numeric_environment()["blas"] == "accelerate"
    monkeypatch.delitem(sys.modules, "torch")
    without_torch = environment.numeric_environment()
    assert (
        without_torch["blas"],
        without_torch["cpu_capability"],
        without_torch["torch_threads"],
    ) == (None,) * 3
    assert "torch" not in sys.modules
    assert without_torch.keys() == with_torch.keys()


def test_peak_memory_is_known_with_and_without_proc(monkeypatch):
    import psutil

    memory = psutil.Process().memory_info().rss
    assert environment.peak_bytes() > memory / 2
    assert environment.peak_bytes(os.getppid()) > 2**16

    def missing(*arguments, **options):
        raise FileNotFoundError(arguments[0])

    monkeypatch.setattr(environment, "open", missing, raising=False)
    assert memory / 2 < environment.peak_bytes() < 2**40
    assert environment.peak_bytes(os.getpid()) > memory / 2


def test_processors_are_counted_without_affinity(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert environment.usable_cpus() == os.cpu_count()


def test_gemm_restores_the_number_of_threads():
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    environment.gemm_gflops(size=16, seconds=0.0)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("vendor", "flags", "expected"),
    [
        ("AuthenticAMD", "fpu avx2", False),
        ("AuthenticAMD", "avx512_bf16 fpu", True),
        ("GenuineIntel", "avx512_bf16 fpu", False),
        ("GenuineIntel", "avx512_bf16 amx_bf16", True),
        (None, None, False),
    ],
)
def test_bf16_needs_fast_instructions_for_it(monkeypatch, vendor, flags, expected):
    monkeypatch.setattr(environment, "cpu_field", {"vendor_id": vendor, "flags": flags}.get)
    assert environment.has_bf16() is expected


@pytest.mark.parametrize(("capability", "expected"), [((7, 5), False), ((8, 0), True)])
def test_bf16_of_a_gpu_is_not_emulated(monkeypatch, capability, expected):
    import torch

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    assert environment.has_bf16("cuda") is expected
