import os
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.opened_files import on_open
from toolkit.stages.directory import RunDirectory
from toolkit.storage import digests as module
from toolkit.storage.digests import Content, Digests, difference, listing


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "exp"
    (root / "lang" / "deep").mkdir(parents=True)
    (root / "lang" / "lexicon.txt").write_text("a AH\n")
    (root / "lang" / "deep" / "phones.txt").write_text("AH\n")
    return root


@pytest.fixture
def reads(monkeypatch):
    """Names of the files that are read, except the stored digests."""
    names = []

    def note(path):
        if not path.endswith("digests.json"):
            names.append(os.path.basename(path))

    monkeypatch.setattr(module, "RACY_AGE", 0)
    with on_open(note):
        yield names


def digests(folder):
    return Digests(folder, folder / "stages" / "digests.json")


def test_a_folder_holds_its_files_in_sorted_order(folder):
    content = digests(folder).content(folder / "lang")
    assert list(content.files) == ["deep/phones.txt", "lexicon.txt"]
    assert (content.size, content.count) == (8, 2)
    single = digests(folder).content(folder / "lang" / "lexicon.txt")
    assert single.digest == content.files["lexicon.txt"] == module.digest_bytes(b"a AH\n")
    assert digests(folder).content(folder / "none") is None


def test_the_digest_covers_names_and_contents_but_not_times_or_empty_folders(folder):
    digest = digests(folder).content(folder / "lang").digest
    (folder / "lang" / "empty").mkdir()
    os.utime(folder / "lang" / "lexicon.txt", (1, 1))
    assert digests(folder).content(folder / "lang").digest == digest
    os.rename(folder / "lang" / "lexicon.txt", folder / "lang" / "words.txt")
    assert digests(folder).content(folder / "lang").digest != digest


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.binary(max_size=3)), max_size=3))
def test_folders_are_equal_exactly_when_their_files_are(tmp_path_factory, files):
    root = tmp_path_factory.mktemp("exp")
    for name in ("x", "y"):
        (root / name).mkdir()
    for name, data in files:
        (root / "x" / name).write_bytes(data)
    for name, data in dict(files).items():
        (root / "y" / name).write_bytes(data)
    stored = digests(root)
    assert stored.content(root / "x").digest == stored.content(root / "y").digest
    (root / "y" / "a").write_bytes(dict(files).get("a", b"") + b"!")
    assert stored.content(root / "x").digest != stored.content(root / "y").digest


def test_an_unchanged_file_is_not_read_again(folder, reads):
    first = digests(folder)
    content = first.content(folder / "lang")
    assert sorted(reads) == ["lexicon.txt", "phones.txt"]
    first.save()
    reads.clear()
    assert digests(folder).content(folder / "lang") == content
    assert reads == []
    os.utime(folder / "lang" / "lexicon.txt", (time.time() + 1e6, time.time() + 1e6))
    assert digests(folder).content(folder / "lang") == content
    assert reads == ["lexicon.txt"]


def test_an_edit_that_keeps_size_and_modification_time_is_noticed(folder, reads):
    path = folder / "lang" / "lexicon.txt"
    stored = digests(folder)
    status = path.stat()
    content = stored.content(path)
    path.write_text("b AH\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert stored.content(path).digest != content.digest


def test_a_file_written_just_now_is_not_remembered(folder, reads, monkeypatch):
    monkeypatch.setattr(module, "RACY_AGE", 10**18)
    stored = digests(folder)
    for _ in range(2):
        stored.content(folder / "lang" / "lexicon.txt")
    assert reads == ["lexicon.txt"] * 2


def test_a_rename_keeps_stored_digests(folder, reads):
    stored = digests(folder)
    content = stored.content(folder / "lang")
    single = stored.content(folder / "lang" / "lexicon.txt")
    reads.clear()
    os.rename(folder / "lang", folder / "words")
    stored.moved(folder / "lang", folder / "words")
    assert stored.content(folder / "words") == content
    os.rename(folder / "words" / "lexicon.txt", folder / "lexicon.txt")
    stored.moved(folder / "words" / "lexicon.txt", folder / "lexicon.txt")
    assert stored.content(folder / "lexicon.txt") == single
    assert reads == []


def test_damaged_digest_files_are_ignored_and_vanished_files_dropped(folder, reads):
    stored = digests(folder)
    stored.content(folder / "lang")
    (folder / "lang" / "deep" / "phones.txt").unlink()
    stored.save()
    assert "phones" not in RunDirectory(folder).digests.read_text()
    RunDirectory(folder).digests.write_text("{")
    reads.clear()
    assert digests(folder).content(folder / "lang").count == 1
    assert reads == ["lexicon.txt"]


def test_links_are_followed_but_not_in_circles_and_special_files_are_left_out(folder):
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "x").write_text("x")
    (folder / "lang" / "linked").symlink_to(outside)
    (folder / "lang" / "circle").symlink_to(folder / "lang")
    (folder / "lang" / "dangling").symlink_to("nowhere")
    os.mkfifo(folder / "lang" / "pipe")
    content = digests(folder).content(folder / "lang")
    assert list(content.files) == ["deep/phones.txt", "lexicon.txt", "linked/x"]


def test_a_listing_sees_names_sizes_and_times_without_reading(folder, reads):
    first = listing(folder / "lang")
    assert (first.count, first.size, first.kind) == (2, 8, "listing")
    assert listing(folder / "lang") == first
    os.utime(folder / "lang" / "lexicon.txt", (5, 5))
    touched = listing(folder / "lang")
    assert touched.digest != first.digest
    (folder / "lang" / "new").write_text("!")
    assert listing(folder / "lang").count == 3
    assert reads == []
    assert listing(folder / "none") is None


A, B = Content(1, "a"), Content(1, "b")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (A, A, None),
        (A, None, "`lang` is missing"),
        (A, B, "`lang` changed"),
        (
            Content(1, "a", files={"x": "1", "y": "1"}),
            Content(1, "b", files={"x": "2", "y": "1"}),
            "`lang/x` changed",
        ),
        (Content(1, "a", files={"x": "1"}), Content(1, "b"), "`lang/x` is missing"),
        (
            Content(1, "a", files={"x": "1"}),
            Content(1, "b", files={"x": "1", "y": "1", "z": "1"}),
            "`lang/y` is new (and 1 more files)",
        ),
        (
            Content(5, "a", 1, "listing"),
            Content(7, "b", 2, "listing"),
            "the files in `lang` changed (1 files, 5 bytes -> 2 files, 7 bytes)",
        ),
        (
            Content(5, "a", 1, "listing"),
            Content(5, "b", 1, "listing"),
            "the files in `lang` changed (modification times or names)",
        ),
    ],
)
def test_differences_are_described_precisely(old, new, words):
    assert difference("lang", old, new) == words


def test_a_touched_file_stays_the_same_in_a_listing_if_its_content_is_known(folder, reads):
    stored, path = digests(folder), folder / "lang" / "lexicon.txt"
    first = listing(folder / "lang", stored.since)
    assert reads == []
    stored.content(path)
    os.utime(path, (1, 1))
    assert listing(folder / "lang") != first
    assert listing(folder / "lang", stored.since) == first
    # Of the other file no content is known, so its time counts.
    os.utime(folder / "lang" / "deep" / "phones.txt", (1, 1))
    assert listing(folder / "lang", stored.since) != first


@pytest.mark.parametrize("age", [0, 10**18])
def test_an_edit_changes_a_listing_whatever_time_it_sets(folder, reads, monkeypatch, age):
    monkeypatch.setattr(module, "RACY_AGE", age)
    stored, path = digests(folder), folder / "lang" / "lexicon.txt"
    stored.content(path)
    first, status = listing(folder / "lang", stored.since), path.stat()
    path.write_text("b AH\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    second = listing(folder / "lang", stored.since)
    assert second != first
    assert listing(folder / "lang", stored.since) == second


def test_digests_stay_known_after_a_place_moves(folder, tmp_path, reads):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "a").write_text("1")
    file = folder / "stages" / "digests.json"
    first = Digests(folder, file, {"corpus.root": str(tmp_path / "old")})
    content = first.content(tmp_path / "old" / "a")
    first.save()
    os.rename(tmp_path / "old", tmp_path / "new")
    reads.clear()
    second = Digests(folder, file, {"corpus.root": str(tmp_path / "new")})
    assert second.content(tmp_path / "new" / "a") == content
    assert reads == []
