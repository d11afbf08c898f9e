import contextlib
import os
import subprocess

import pytest

from tests.fuzz.canary import no_side_effects
from tests.fuzz.trial import reads_or_explains


def failing(action, *arguments):
    """Return a call of an action that the system refuses."""

    def act():
        with contextlib.suppress(OSError):
            action(*arguments)

    return act


@pytest.mark.parametrize(
    "act",
    [
        failing(subprocess.run, ["no-such-program"]),
        failing(os.system, "true"),
        failing(os.open, "/proc/none", os.O_WRONLY),
        failing(os.mkdir, "/proc/none"),
        failing(os.remove, "/proc/none"),
    ],
)
def test_changes_outside_the_temporary_folder_are_a_failure(act):
    with pytest.raises(AssertionError, match="made the reader do this"):
        reads_or_explains(act, ())


def test_changes_in_the_temporary_folder_are_allowed(tmp_path):
    with no_side_effects():
        (tmp_path / "a").write_text("x")
        os.rename(tmp_path / "a", tmp_path / "b")
        os.remove(tmp_path / "b")


def test_a_nested_reader_does_not_stop_the_watch():
    def act():
        reads_or_explains(lambda: None, ())
        failing(os.system, "true")()

    with pytest.raises(AssertionError, match="made the reader do this"):
        reads_or_explains(act, ())
