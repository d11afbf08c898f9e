"""Tests of every reader: a module with `READERS` imports them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.choices import Drawn
from tests.fuzz.trial import FUZZ, remove

REPLACEMENTS = ("missing", "folder", "empty", "dangling link", "looping link", "pickle", "deep")


def test_valid_files_are_read(trial):
    trial.read_valid()


@pytest.mark.parametrize("replacement", REPLACEMENTS)
def test_a_replaced_file_is_read_or_named(trial, replacement):
    for name in trial.content:
        path = trial.path(name)
        remove(path)
        if replacement == "folder":
            path.mkdir()
        elif replacement == "dangling link":
            path.symlink_to(path.with_name("nowhere"))
        elif replacement == "looping link":
            path.symlink_to(path)
        elif replacement != "missing":
            content = {"empty": b"", "pickle": trial.pickled, "deep": b"[" * 100_000}
            path.write_bytes(content[replacement])
        trial.read_replaced(name)


@FUZZ
@given(data=st.data())
def test_a_damaged_file_is_read_or_named(trial, data):
    trial.try_one(Drawn(data.draw))
