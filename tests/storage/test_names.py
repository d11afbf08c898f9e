from pathlib import Path, PurePath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from toolkit.storage.files import write_atomically
from toolkit.storage.paths import UnsafePathError, first_clash, path_below, safe_name

PIECES = st.sampled_from(
    ["/", "//", "///", "..", ".", "a", "ü", "\udcff", "\ud800", "\0", "\n", "\x7f", "\\", "C:", "~",
     "-", " ", "\u2028", "x" * 300, "ü" * 200, "\U0001f600" * 80]
)  # fmt: skip
NAMES = st.one_of(st.text(), st.lists(PIECES, max_size=12).map("".join))


@given(NAMES)
@example("//etc/passwd")
@example("a/" * 5000)
@example("\udcc3\udca9")
def test_any_name_becomes_a_path_inside_the_folder(name):
    folder = Path("/some/folder")
    safe = safe_name(name)
    path = PurePath(safe)
    assert not path.is_absolute()
    assert path.parts == tuple(safe.split("/"))  # nothing empty, nothing doubled
    assert not {"", ".", ".."} & set(path.parts)
    assert (folder / safe).resolve().is_relative_to(folder)
    assert (folder / safe).resolve() != folder
    assert path_below(folder, safe) == folder / safe
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in safe)
    components = [part.encode("utf-8", "surrogateescape") for part in path.parts]
    assert max(map(len, components)) <= 255
    assert sum(map(len, components)) + len(components) <= 3001
    assert len(components[-1]) <= 240
    assert safe_name(safe) == safe


@given(NAMES)
def test_a_safe_name_stays(name):
    parts = name.split("/")
    sizes = [len(part.encode("utf-8", "replace")) for part in parts]
    if {"", ".", ".."} & set(parts) or not name.isprintable() or max(sizes) > 240:
        return
    assert safe_name(name) == name


def test_safe_names_by_example():
    safe_names = {
        **{"": "_", "/": "_", "//": "_", "..": "_", "a": "a", "a//b/../c/": "a/b/c"},
        **{"//etc/x": "etc/x", "///etc/x": "etc/x", "../../x": "x", "a\n\0b": "a__b"},
        **{r"C:\x": r"C:\x", r"..\x": r"..\x", "C:/x": "C:/x", "~/x": "~/x", ".x": ".x"},
        **{"\ud800": "_", "Ä b:c": "Ä b:c"},
    }
    assert {name: safe_name(name) for name in safe_names} == safe_names
    assert safe_name("\udc80") == "\udc80"  # a byte of a name that is no UTF-8
    long, longer = safe_name("x" * 300), safe_name("x" * 301)
    assert long != longer
    assert long.startswith("x" * 200 + "x")


@pytest.mark.parametrize("name", ["x" * 240, "ü" * 120, "a/" * 199 + "b", "x" * 400, "\udcff"])
def test_long_names_can_be_written_with_a_suffix(tmp_path, name):
    path = path_below(tmp_path, f"{safe_name(name)}.TextGrid")
    write_atomically(path, "x")
    assert path.read_text() == "x"


def test_names_of_the_same_output_file_clash():
    assert first_clash(["a", "b", "a"]) == (0, 2)
    assert first_clash(["é", "\udcc3\udca9"]) == (0, 1)
    assert first_clash(["a", "A", "b/a"]) is None
    assert first_clash(["a/b/c", "x", "a"]) == (2, 0)
    assert first_clash(["a/b", "a/c"]) is None


@pytest.mark.parametrize("name", ["../x", "/etc/x", "//etc/x", "a/../../x", "..", "", ".", "a\0/b"])
def test_a_path_to_elsewhere_is_refused(tmp_path, name):
    with pytest.raises(UnsafePathError):
        path_below(tmp_path / "out", name)


def test_links_out_of_the_folder_are_refused(tmp_path):
    out, outside = tmp_path / "out", tmp_path / "other"
    out.mkdir()
    outside.mkdir()
    (out / "away").symlink_to(outside)
    (out / "round").symlink_to(out / "round")
    (out / "inside").symlink_to(out / "deep")
    for name in ("away/x.txt", "away/deep/er.txt", "round/x.txt"):
        with pytest.raises(UnsafePathError, match=name.split("/")[0]):
            path_below(out, name)
    assert path_below(out, "inside/x.txt") == out / "inside/x.txt"
    (tmp_path / "link").symlink_to(out)
    assert path_below(tmp_path / "link", "x.txt") == tmp_path / "link/x.txt"
    (out / "x.txt").symlink_to(outside / "x.txt")
    write_atomically(path_below(out, "x.txt"), "new")
    assert not (outside / "x.txt").exists()
