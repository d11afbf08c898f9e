import pytest

from toolkit.storage import files
from toolkit.storage.files import open_atomically, remove_temporaries, write_atomically


def test_content_appears_whole(tmp_path):
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


def test_the_name_is_not_taken_before_the_end(tmp_path):
    path = tmp_path / "file"
    with open_atomically(path) as file:
        file.write("half")
        assert not path.exists()


def test_what_a_kill_leaves_is_removed_and_nothing_else(tmp_path):
    kept = [tmp_path / "a" / ".hidden.tmp", tmp_path / "x.0123abcd.tmp", tmp_path / "a" / "b"]
    (tmp_path / "a").mkdir()
    for path in kept:
        path.write_text("")
    file = open_atomically(tmp_path / "a" / "model.json")
    file.__enter__()
    assert len(list((tmp_path / "a").iterdir())) == 3
    remove_temporaries(tmp_path)
    assert sorted(p for p in tmp_path.rglob("*") if p.is_file()) == sorted(kept)
    with pytest.raises(FileNotFoundError):
        file.__exit__(None, None, None)


def test_a_process_that_leaves_writing_to_others_writes_only_what_is_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_writes", True)  # and afterwards again
    files.leave_writing_to_others()
    write_atomically(tmp_path / "text", "text")
    write_atomically(tmp_path / "bytes", b"bytes")
    assert list(tmp_path.iterdir()) == []
    write_atomically(tmp_path / "own", "own", own=True)
    assert (tmp_path / "own").read_text() == "own"
