import os

from toolkit.storage.files import visible_files


def test_links_are_followed_but_not_in_circles(tmp_path):
    talks, linked = tmp_path / "talks", tmp_path / "other"
    for path in (talks / "a/x", talks / "b", talks / ".hidden/y", talks / "a/.z", linked / "c"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (talks / "a/up").symlink_to(talks)
    (talks / "a/self").symlink_to(".")
    (talks / "more").symlink_to(linked)
    (linked / "back").symlink_to(tmp_path)
    (talks / "gone").symlink_to(tmp_path / "none")
    names = [os.fspath(path.relative_to(talks)) for path in visible_files(talks)]
    assert names == ["a/x", "b", "gone", "more/c"]
