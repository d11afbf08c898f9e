"""Threads, BLAS kernels and oneDNN's cache, as chosen by default and by the user."""

import os
import subprocess
import sys

import pytest

from toolkit import startup
from toolkit.environment import project_root
from toolkit.startup import MARK, THREAD_VARIABLES, TORCHRUN, default_to_one_thread


@pytest.mark.parametrize(
    ("variables", "number", "marked"),
    [
        ({}, "1", True),
        ({"OMP_NUM_THREADS": "8"}, "8", False),
        ({"OMP_NUM_THREADS": "4,2"}, "4", False),
        ({"OMP_NUM_THREADS": "1"}, "1", False),
        ({"OMP_NUM_THREADS": "1", TORCHRUN: "none"}, "1", True),
    ],
)
def test_all_libraries_get_the_same_number_of_threads(monkeypatch, variables, number, marked):
    """torch uses the smallest of several numbers."""
    environment = dict(variables)
    monkeypatch.setattr(os, "environ", environment)
    default_to_one_thread()
    assert {environment[name].partition(",")[0] for name in THREAD_VARIABLES} == {number}
    assert (MARK in environment) == marked


@pytest.mark.parametrize(
    ("vendor", "user", "torch_loaded", "expected"),
    [
        ("AuthenticAMD", None, False, "5"),
        ("GenuineIntel", None, False, None),
        (None, None, False, None),
        ("AuthenticAMD", "4", False, "4"),
        ("AuthenticAMD", "", False, ""),
        ("AuthenticAMD", None, True, None),
    ],
)
def test_blas_is_tuned_on_amd_only_and_never_against_the_user(
    monkeypatch, vendor, user, torch_loaded, expected
):
    monkeypatch.setattr(startup, "cpu_field", lambda name: vendor)
    monkeypatch.delenv(startup.BLAS_VARIABLE, raising=False)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    if user is not None:
        monkeypatch.setenv(startup.BLAS_VARIABLE, user)
    if torch_loaded:
        monkeypatch.setitem(sys.modules, "torch", startup)
    changed = startup.tune_blas()
    assert os.environ.get(startup.BLAS_VARIABLE) == expected
    assert changed == (expected != user)
    os.environ.pop(startup.BLAS_VARIABLE, None)


@pytest.mark.parametrize(("user", "expected"), [(None, "64"), ("7", "7")])
def test_few_primitives_are_cached_unless_the_user_wants_more(monkeypatch, user, expected):
    name = startup.PRIMITIVES_VARIABLE
    monkeypatch.setenv(name, user) if user else monkeypatch.delenv(name, raising=False)
    code = "import os, toolkit; print(os.environ[toolkit.startup.PRIMITIVES_VARIABLE])"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=project_root(), capture_output=True, text=True, check=True)
    assert done.stdout == f"{expected}\n"
