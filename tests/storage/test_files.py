import errno
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from toolkit.environment import project_root
from toolkit.storage.files import (
    NO_ROOM,
    create_atomically,
    link_atomically,
    open_atomically,
    remove_temporaries,
    write_atomically,
)


def test_content_appears_atomically(tmp_path):
    path = tmp_path / "new" / "file"
    write_atomically(path, "text")
    assert path.read_text() == "text"
    write_atomically(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    assert list(path.parent.iterdir()) == [path]


def test_an_exception_leaves_the_old_content_and_no_temporary(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(TypeError), open_atomically(path) as file:
        file.writelines(["half", None])
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_appears_only_at_the_end(tmp_path):
    path = tmp_path / "file"
    with open_atomically(path) as file:
        file.write("half")
        assert not path.exists()


def test_only_temporary_files_of_a_killed_run_are_removed(tmp_path):
    remaining = [tmp_path / "a" / ".hidden.tmp", tmp_path / "x.0123abcd.tmp", tmp_path / "a" / "b"]
    (tmp_path / "a").mkdir()
    for path in remaining:
        path.write_text("")
    file = open_atomically(tmp_path / "a" / "model.json")
    file.__enter__()
    assert len(list((tmp_path / "a").iterdir())) == 3
    remove_temporaries(tmp_path)
    assert sorted(p for p in tmp_path.rglob("*") if p.is_file()) == sorted(remaining)
    with pytest.raises(FileNotFoundError):
        file.__exit__(None, None, None)


FOLLOWER = """
import sys
from pathlib import Path
from toolkit.storage.files import disable_writes, write_atomically

folder = Path(sys.argv[1])
disable_writes()
write_atomically(folder / "text", "text")
write_atomically(folder / "bytes", b"bytes")
assert list(folder.iterdir()) == []
write_atomically(folder / "own", "own", every_rank=True)
"""


def test_a_process_that_leaves_writing_to_others_writes_only_its_files(tmp_path):
    subprocess.run([sys.executable, "-c", FOLLOWER, tmp_path], cwd=project_root(), check=True)
    assert [path.name for path in tmp_path.iterdir()] == ["own"]
    assert (tmp_path / "own").read_text() == "own"


@pytest.mark.parametrize("links", [True, False])
def test_only_one_of_several_threads_creates_a_file(tmp_path, monkeypatch, links):
    def refuse(old, new):
        raise OSError(errno.EPERM, "no hard links here")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "folder" / "file"
    with ThreadPoolExecutor(8) as threads:
        created = list(threads.map(lambda n: create_atomically(path, b"%d" % n), range(8)))
    assert sum(created) == 1
    assert path.read_bytes() == b"%d" % created.index(True)
    assert os.listdir(path.parent) == ["file"]


def test_a_full_disk_is_not_reported_as_an_existing_file(tmp_path, monkeypatch):
    def fail(old, new):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(OSError, match="No space"):
        create_atomically(tmp_path / "file", b"")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", sorted(NO_ROOM))
def test_a_full_disk_names_the_file(tmp_path, monkeypatch, number):
    """The operating system names no file when a write or sync fails."""
    path = tmp_path / "file"
    with pytest.raises(OSError, match="full") as written, open_atomically(path):
        raise OSError(number, "full")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(number, "full")))
    with pytest.raises(OSError, match="full") as synced:
        write_atomically(path, "content")
    with pytest.raises(OSError, match="full") as created:
        create_atomically(path, b"content")
    assert {error.value.filename for error in (written, synced, created)} == {str(path)}
    assert os.listdir(tmp_path) == []


def test_errors_of_other_files_and_streams_keep_their_names(tmp_path):
    for error in (
        BrokenPipeError(errno.EPIPE, "Broken pipe"),
        FileNotFoundError(errno.ENOENT, "no such file", "other"),
        OSError(errno.ENOSPC, "No space left on device", "other"),
    ):
        name = error.filename
        with (
            pytest.raises(type(error), match=error.strerror) as raised,
            open_atomically(tmp_path / "file"),
        ):
            raise error
        assert raised.value is error
        assert error.filename == name


def test_a_folder_in_place_of_the_file_is_named(tmp_path):
    with pytest.raises(IsADirectoryError) as raised:
        write_atomically(tmp_path, "content")
    assert raised.value.filename == str(tmp_path)


def test_a_link_replaces_an_existing_file(tmp_path):
    old, new = tmp_path / "old", tmp_path / "folder" / "new"
    write_atomically(old, "one")
    link_atomically(old, new)
    assert new.samefile(old)
    link_atomically(old, new)
    write_atomically(old, "two")
    assert new.read_text() == "one"
    link_atomically(old, new)
    assert new.read_text() == "two"
    assert os.listdir(new.parent) == ["new"]
