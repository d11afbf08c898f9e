import os

import pytest

from toolkit.storage.files import (
    LinkError,
    open_regular,
    refuse_links,
    refuse_links_below,
    write_atomically,
)


@pytest.fixture
def canary(tmp_path):
    path = tmp_path / "outside" / "canary"
    path.parent.mkdir()
    path.write_text("mine")
    return path


@pytest.fixture
def root(tmp_path):
    (tmp_path / "exp" / "real").mkdir(parents=True)
    return tmp_path / "exp"


@pytest.mark.parametrize("name", ["a", "a/b", "real/a", "real/a/b/c"])
def test_a_path_is_refused_where_any_part_below_the_root_is_a_link(root, canary, name):
    assert refuse_links(root, root / name) == root / name
    link = root / ("real/a" if name.startswith("real") else "a")
    link.symlink_to(canary.parent)
    with pytest.raises(LinkError) as error:
        refuse_links(root, root / name)
    assert f"`{link}` is a link (to `{canary.parent}`)" in str(error.value)
    assert "--exp DIR" in str(error.value)


def test_links_that_dangle_or_stay_inside_are_links_too(root):
    (root / "nowhere").symlink_to(root / "none")
    (root / "inside").symlink_to(root / "real")
    for name in ("nowhere", "inside/file"):
        with pytest.raises(LinkError):
            refuse_links(root, root / name)


def test_the_root_and_what_is_above_it_may_be_links(root, tmp_path):
    (tmp_path / "up").symlink_to(tmp_path)
    (tmp_path / "exp-link").symlink_to(root)
    for start in (tmp_path / "exp-link", tmp_path / "up" / "exp"):
        assert refuse_links(start, start / "real" / "file")
        refuse_links_below(start, start / "real")


def test_a_path_outside_the_root_is_refused(root):
    for path in (root / ".." / "outside", root.parent / "exp2", root / "real" / ".." / ".." / "x"):
        with pytest.raises(LinkError, match="outside the run directory"):
            refuse_links(root, path)


def test_a_link_is_found_at_any_depth(root, canary):
    deep = root / "real" / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "file").write_text("1")
    refuse_links_below(root, root / "real")
    refuse_links_below(root, root / "none")
    (deep / "link").symlink_to(canary)
    with pytest.raises(LinkError, match="real/a/b/link` is a link"):
        refuse_links_below(root, root / "real")


def test_a_regular_file_is_opened_and_made(tmp_path):
    for text in (b"1", b"2"):
        descriptor = open_regular(tmp_path / "file", os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, text)
        os.close(descriptor)
    assert (tmp_path / "file").read_bytes() == b"12"


def test_nothing_but_a_regular_file_is_opened(root, canary):
    (root / "link").symlink_to(canary)
    (root / "dangling").symlink_to(root / "made")
    for name in ("link", "dangling"):
        with pytest.raises(LinkError, match=f"{name}` is a link"):
            open_regular(root / name, os.O_RDWR | os.O_TRUNC)
    os.mkfifo(root / "pipe")
    for name in ("pipe", "real"):
        with pytest.raises(LinkError, match=f"{name}` is not a regular file"):
            open_regular(root / name, os.O_WRONLY)
    assert canary.read_text() == "mine"
    assert not (root / "made").exists()


def test_writing_to_a_link_replaces_it(root, canary):
    (root / "file").symlink_to(canary)
    write_atomically(root / "file", "new")
    assert not (root / "file").is_symlink()
    assert canary.read_text() == "mine"
