import errno
import fcntl
import json
import os
import signal
import socket
import time

import pytest

from toolkit.stages import directory
from toolkit.stages.directory import LockedError, RunDirectory
from toolkit.stages.signals import exit_on_signals


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path / "exp")


def holder(run):
    return json.loads((run.stages / ".lock.holder").read_text())


def test_the_lock_names_its_holder_and_is_free_afterwards(run):
    with run.lock("run.py --stage 3"):
        assert holder(run)["pid"] == os.getpid()
        message = rf"process {os.getpid()} on {socket.gethostname()}, `run.py --stage 3`"
        with pytest.raises(LockedError, match=message), RunDirectory(run.root).lock("second"):
            pass
    with run.lock("third"):
        assert holder(run)["command"] == "third"


def test_an_exception_frees_the_lock(run):
    with pytest.raises(RuntimeError), run.lock("a"):
        raise RuntimeError
    with run.lock("b"):
        pass


def test_the_lock_of_a_killed_run_is_free(run):
    child = os.fork()
    if child == 0:
        with run.lock("killed"):
            os._exit(0)  # the lock is not released by hand
    os.waitpid(child, 0)
    with run.lock("next"):
        assert holder(run)["command"] == "next"


@pytest.fixture
def orphan(run):
    """A process that holds the lock of a killed run until a test lets it end."""
    dead = os.fork()
    if dead == 0:
        os._exit(0)
    os.waitpid(dead, 0)
    with run.lock("killed"):
        pass
    path = run.stages / ".lock.holder"
    path.write_text(json.dumps(holder(run) | {"pid": dead}))
    ready, end = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end[1])
        with open(run.stages / ".lock") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            os.write(ready[1], b"x")
            os.read(end[0], 1)
            time.sleep(0.5)
        os._exit(0)
    os.close(end[0])
    os.read(ready[0], 1)
    yield end[1]
    os.waitpid(child, 0)


def test_orphans_of_a_killed_run_are_waited_for(run, orphan):
    os.close(orphan)
    started = time.monotonic()
    with run.lock("next"):
        assert time.monotonic() - started > 0.2


def test_orphans_that_do_not_end_are_reported(run, orphan, monkeypatch):
    monkeypatch.setattr(directory, "ORPHAN_TIMEOUT", 0.2)
    with pytest.raises(LockedError, match="`killed`"), run.lock("next"):
        pass
    os.close(orphan)


@pytest.fixture(params=[errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def without_locks(request, monkeypatch):
    """A file system that cannot lock files."""

    def refuse(*arguments):
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", refuse)
    return os.strerror(request.param)


def test_without_locks_a_second_run_is_still_refused(run, without_locks, capsys):
    marker = run.stages / ".lock.held"
    with run.lock("first"):
        message = rf"process {os.getpid()} on .*`first`.* if that run has ended, remove {marker}"
        with pytest.raises(LockedError, match=message), RunDirectory(run.root).lock("second"):
            pass
        assert marker.exists()
    assert f"cannot be locked ({without_locks})" in capsys.readouterr().err
    assert not marker.exists()
    with pytest.raises(RuntimeError), run.lock("third"):
        raise RuntimeError
    assert not marker.exists()


def test_without_locks_the_file_of_a_killed_run_is_reused(run, without_locks):
    child = os.fork()
    if child == 0:
        with run.lock("killed"):
            os._exit(0)
    os.waitpid(child, 0)
    assert holder(run)["pid"] == child
    assert (run.stages / ".lock.held").exists()
    with run.lock("next"):
        assert holder(run)["pid"] == os.getpid()


def test_without_locks_the_file_of_another_host_is_left_to_the_user(run, without_locks):
    marker = run.stages / ".lock.held"
    run.stages.mkdir(parents=True)
    marker.write_text("1\nfar.example.org\n")
    with pytest.raises(LockedError, match=f"remove {marker}"), run.lock("next"):
        pass
    assert marker.read_text() == "1\nfar.example.org\n"


def test_without_locks_a_run_that_is_stopped_removes_its_file(run, without_locks):
    child = os.fork()
    if child == 0:
        with exit_on_signals(message=False), run.lock("stopped"):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 143
    assert holder(run)["pid"] == child
    assert not (run.stages / ".lock.held").exists()
