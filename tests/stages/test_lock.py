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


@pytest.fixture(params=[errno.ENOLCK, errno.EOPNOTSUPP, None])
def without_locks(request, monkeypatch):
    """A file system that cannot lock, or with None a system."""

    def refuse(*arguments):
        raise OSError(request.param, os.strerror(request.param))

    if request.param is None:
        monkeypatch.setattr(lock, "fcntl", None)
    else:
        monkeypatch.setattr(fcntl, "flock", refuse)


def test_without_locks_a_second_run_is_refused_all_the_same(path, without_locks):
    held = path.with_name(".lock.held")
    with hold(path, "first"):
        message = f"process {os.getpid()} on .* if no run goes on here any more, remove {held}"
        with pytest.raises(LockedError, match=message), hold(path, "second"):
            pass
        assert held.exists()
    assert not held.exists()
    with pytest.raises(RuntimeError), hold(path, "third"):
        raise RuntimeError
    assert not held.exists()


def test_without_locks_the_file_of_a_killed_run_is_taken_over(path, without_locks):
    held = path.with_name(".lock.held")
    child = os.fork()
    if child == 0:
        with hold(path, "killed"):
            os._exit(0)
    os.waitpid(child, 0)
    assert json.loads(held.read_text())["pid"] == child
    with hold(path, "next"):
        assert json.loads(held.read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("content", ["", "[]", '{"pid": 1, "host": "far", "pid_space": "other"}'])
def test_without_locks_a_file_of_nobody_knows_whom_is_left_to_the_user(
    path, without_locks, content
):
    path.parent.mkdir(parents=True)
    held = path.with_name(".lock.held")
    held.write_text(content)
    match = "on far holds it" if "far" in content else "an unknown process holds it"
    with pytest.raises(LockedError, match=match), hold(path, "next"):
        pass
    assert held.read_text() == content


def test_without_locks_one_of_several_takes_over(path, without_locks):
    held = path.with_name(".lock.held")
    child = os.fork()
    if child == 0:
        with hold(path, "killed"):
            os._exit(0)
    os.waitpid(child, 0)
    turn = path.with_name(".lock.held.turn")
    turn.write_text("")
    with pytest.raises(LockedError, match=f"remove {held} and {turn}"), hold(path, "next"):
        pass
