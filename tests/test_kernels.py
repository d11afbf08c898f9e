import os
import re
import subprocess
import sys
from pathlib import Path

import toolkit
from toolkit.kernels import VARIABLE, kernels_digest, use_kernel_cache

CALLED = """
from numba import njit

@njit(cache=True)
def called(x):
    return x + {}
"""
CALLER = """
from numba import njit
from package.called import called

@njit(cache=True)
def caller(x):
    return called(x)
"""


def test_a_kernel_is_compiled_again_when_one_it_calls_changes(tmp_path):
    """With numba's default cache the second process would return 2 again."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "caller.py").write_text(CALLER)
    results = []
    for number in (1, 10):
        (package / "called.py").write_text(CALLED.format(number))
        folder = tmp_path / kernels_digest(package)
        done = subprocess.run(
            [sys.executable, "-c", "from package.caller import caller; print(caller(1))"],
            cwd=tmp_path,
            env=os.environ | {VARIABLE: str(folder)},
            capture_output=True,
            text=True,
            check=True,
        )
        results.append(int(done.stdout))
    assert results == [2, 11]


def test_the_digest_covers_only_files_with_kernels(tmp_path):
    (tmp_path / "kernel.py").write_text(CALLED.format(1))
    digest = kernels_digest(tmp_path)
    (tmp_path / "other.py").write_text("x = 1\n")
    assert kernels_digest(tmp_path) == digest
    (tmp_path / "kernel.py").write_text(CALLED.format(2))
    assert kernels_digest(tmp_path) != digest


def test_the_cache_is_in_the_users_folder_when_the_package_is_read_only(tmp_path, monkeypatch):
    import toolkit.kernels as module

    installed = tmp_path / "installed" / "kernels.py"
    installed.parent.mkdir()
    (installed.parent / "__pycache__").write_text("in the way")  # root may write anywhere else
    monkeypatch.setattr(module, "__file__", str(installed))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delitem(sys.modules, "numba", raising=False)
    use_kernel_cache()
    assert os.environ[VARIABLE].startswith(str(tmp_path / "cache" / "asr-recipe-toolkit"))


def test_a_configured_cache_folder_is_used(monkeypatch):
    monkeypatch.setenv(VARIABLE, "/set/by/the/user")
    use_kernel_cache()
    assert os.environ[VARIABLE] == "/set/by/the/user"


DECLARE = """
import os, sys, importlib
import numba, numpy, torch

declare = numba.njit


def njit(*arguments, **options):
    assert "NUMBA_CACHE_DIR" in os.environ
    return declare(*arguments, **options)


numba.njit = njit
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        importlib.import_module(name)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print(name)
"""


def test_the_folder_is_chosen_before_a_kernel_is_declared():
    """A kernel reads its cache folder at its declaration, whichever module comes first."""
    decorated = re.compile(r"^@(numba\.)?njit", re.MULTILINE)
    root = Path(toolkit.__file__).parent
    modules = [
        ".".join(path.relative_to(root.parent).with_suffix("").parts)
        for path in sorted(root.rglob("*.py"))
        if decorated.search(path.read_text())
    ]
    assert len(modules) > 10
    environment = {k: v for k, v in os.environ.items() if k != VARIABLE}
    command = [sys.executable, "-c", DECLARE, *modules]
    done = subprocess.run(command, env=environment, cwd=root.parent, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("", 0), done.stderr


def test_importing_the_package_sets_no_cache_folder_and_loads_no_library():
    command = "import toolkit, os, sys; print('NUMBA_CACHE_DIR' in os.environ, *sys.modules)"
    environment = {k: v for k, v in os.environ.items() if k != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", command], env=environment, capture_output=True, text=True, check=True
    )
    chosen, *modules = done.stdout.split()
    assert chosen == "False"
    assert not {"numpy", "torch", "numba", "importlib.metadata"} & set(modules)
