import errno
import os

import pytest

from toolkit.errors import ToolkitError
from toolkit.stages.directory import RunDirectory, storage_error


def os_error(number, path=None):
    return OSError(number, os.strerror(number), path)


def test_a_path_goes_up_from_where_a_link_leads(tmp_path):
    (tmp_path / "disk/deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("disk/deep")
    assert RunDirectory(tmp_path / "link/../exp").root == tmp_path.resolve() / "disk/exp"
    assert RunDirectory(tmp_path / "disk/../link").root == tmp_path.resolve() / "link"
    assert RunDirectory(tmp_path / "link").root == tmp_path / "link"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_reported(tmp_path, number):
    error = storage_error(os_error(number, str(tmp_path / "x")), tmp_path)
    assert "the disk is full" in str(error)
    assert str(tmp_path / "x") in str(error)


def test_a_full_disk_is_recognised_behind_other_errors(tmp_path):
    wrapped = RuntimeError("cannot write the archive")
    wrapped.__cause__ = KeyError()
    wrapped.__cause__.__context__ = os_error(errno.ENOSPC)
    assert "the disk is full" in str(storage_error(wrapped, tmp_path))
    quoted = ValueError("I/O error: No space left on device (os error 28)")
    assert "the disk is full" in str(storage_error(quoted, tmp_path))


def test_any_error_on_a_disk_without_space_is_blamed_on_it(tmp_path, monkeypatch):
    from toolkit.stages import directory as module

    monkeypatch.setattr(module, "LEAST_FREE", 1 << 62)
    assert "the disk is full" in str(storage_error(RuntimeError("write failed"), tmp_path))
    assert storage_error(ToolkitError("a user's fault"), tmp_path) is None


def test_a_read_only_directory_differs_from_other_permissions(tmp_path):
    assert "--exp DIR" in str(storage_error(os_error(errno.EROFS), tmp_path))
    denied = os_error(errno.EACCES, str(tmp_path / "stages"))
    assert "--exp DIR" in str(storage_error(denied, tmp_path))
    assert storage_error(os_error(errno.EACCES, "/corpus/a.flac"), tmp_path) is None
    assert storage_error(ValueError("no"), tmp_path) is None


@pytest.mark.parametrize(
    "error",
    [
        os_error(errno.EFBIG, "/exp/x"),
        ValueError("I/O error: File too large (os error 27)"),  # of safetensors
    ],
)
def test_a_limit_on_the_size_of_files_is_reported(tmp_path, error):
    assert "would exceed the limit on the size of a file" in str(storage_error(error, tmp_path))


def test_discarding_removes_a_folder_in_one_step(tmp_path):
    directory = RunDirectory(tmp_path)
    folder = tmp_path / "model"
    (folder / "deep").mkdir(parents=True)
    directory.discard(folder)
    assert not folder.exists()
    directory.discard(folder)
    directory.empty_trash()
    assert [path for path in tmp_path.rglob("*") if path.name != ".partial"] == []
