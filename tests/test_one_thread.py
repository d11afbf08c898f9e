"""The number of threads that nobody has chosen, and that somebody has."""

import os

import pytest

from toolkit.one_thread import MARK, THREAD_VARIABLES, TORCHRUN, default_to_one_thread


@pytest.mark.parametrize(
    ("given", "number", "marked"),
    [
        ({}, "1", True),
        ({"OMP_NUM_THREADS": "8"}, "8", False),
        ({"OMP_NUM_THREADS": "4,2"}, "4", False),
        ({"OMP_NUM_THREADS": "1"}, "1", False),
        ({"OMP_NUM_THREADS": "1", TORCHRUN: "none"}, "1", True),
    ],
)
def test_all_libraries_get_the_number_of_one(monkeypatch, given, number, marked):
    """torch computes with the smallest."""
    environment = dict(given)
    monkeypatch.setattr(os, "environ", environment)
    default_to_one_thread()
    assert {environment[name].partition(",")[0] for name in THREAD_VARIABLES} == {number}
    assert (MARK in environment) == marked
