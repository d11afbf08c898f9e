import errno
import fcntl
import json
import os
import time

import pytest

from toolkit.stages import lock
from toolkit.stages.lock import LockedError, hold


@pytest.fixture
def path(tmp_path):
    return tmp_path / "exp" / "stages" / ".lock"


def test_the_lock_names_its_holder_and_is_free_afterwards(path):
    with hold(path, "run.py --stage 3"):
        holder = json.loads(path.read_text())
        assert (holder["pid"], holder["command"]) == (os.getpid(), "run.py --stage 3")
        message = rf"process {os.getpid()}, `run.py --stage 3`"
        with pytest.raises(LockedError, match=message), hold(path, "second"):
            pass
    with hold(path, "third"):
        assert json.loads(path.read_text())["command"] == "third"


def test_an_exception_frees_the_lock(path):
    with pytest.raises(RuntimeError), hold(path, "a"):
        raise RuntimeError
    with hold(path, "b"):
        pass


def test_orphans_of_a_killed_run_are_waited_for(path):
    """A forked worker shares its parent's lock and outlives it for a moment."""
    read, write = os.pipe()
    parent = os.fork()
    if parent == 0:
        with hold(path, "killed"):
            if os.fork() == 0:
                os.write(write, b"x")
                time.sleep(0.5)
                os._exit(0)
            os._exit(0)  # the lock is not released by hand
    os.waitpid(parent, 0)
    os.read(read, 1)
    started = time.monotonic()
    with hold(path, "next"):
        assert time.monotonic() - started > 0.2


def test_orphans_that_do_not_leave_are_told(path, monkeypatch):
    monkeypatch.setattr(lock, "ORPHAN_TIMEOUT", 0.2)
    path.parent.mkdir(parents=True)
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(LockedError), hold(path, "next"):
            pass


def test_a_file_system_without_locks_is_warned_of(path, monkeypatch, capsys):
    def refuse(*arguments):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with hold(path, "a"):
        pass
    assert "cannot be locked (Function not implemented)" in capsys.readouterr().err
