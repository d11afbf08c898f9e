"""Foreign links in a run directory: their targets are never changed."""

import os
import shutil

import pytest

from tests.markers import make_marker
from toolkit.stages.directory import RunDirectory
from toolkit.storage.digests import Content
from toolkit.storage.files import LinkError


class Canary:
    """A folder outside of the run directory that must not change."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "deep").mkdir(parents=True)
        (folder / "text").write_text("mine")
        (folder / "deep" / "text").write_text("mine")
        self.before = self.state()

    def state(self):
        return {p: p.read_text() if p.is_file() else None for p in self.folder.rglob("*")}

    def assert_unchanged(self):
        assert self.state() == self.before


@pytest.fixture
def canary(sample):
    return Canary(sample.folder.parent / "outside")


def assert_refused(sample, canary, link, *arguments):
    result = sample.main(*arguments)
    canary.assert_unchanged()
    assert result.status == 1, result.output
    assert f"`{sample.exp / link}` is a link (to `{canary.folder}" in result.output
    assert "Remove the link" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("name", ["stages/.lock", "log.txt"])
def test_links_in_place_of_the_lock_and_the_log_are_refused(sample, canary, finished, name):
    link = sample.exp / name
    link.parent.mkdir(parents=True)
    link.symlink_to(canary.folder / "text")
    assert_refused(sample, canary, name)
    link.unlink()
    assert sample.main().status == 0
    assert sample.outputs() == finished


@pytest.mark.parametrize("name", ["stages/.lock", "log.txt"])
def test_a_lock_or_log_that_is_a_pipe_is_refused_at_once(sample, name):
    (sample.exp / name).parent.mkdir(parents=True)
    os.mkfifo(sample.exp / name)
    result = sample.main()
    assert result.status == 1
    assert f"`{sample.exp / name}` is not a regular file" in result.output


@pytest.mark.parametrize("name", ["stages", ".partial"])
def test_links_in_place_of_the_runners_folders_are_refused(sample, canary, name):
    sample.exp.mkdir(parents=True)
    (sample.exp / name).symlink_to(canary.folder)
    assert_refused(sample, canary, name)
    assert os.listdir(sample.exp) == [name]


def test_a_link_in_place_of_the_trash_is_refused(sample, canary):
    (sample.exp / ".partial").mkdir(parents=True)
    (sample.exp / ".partial" / "trash").symlink_to(canary.folder)
    assert_refused(sample, canary, ".partial/trash")


@pytest.mark.parametrize("name", ["last_command.json", "01.json", "digests.json", "01.failed.txt"])
def test_a_link_in_a_files_place_is_replaced(sample, canary, finished, name):
    (sample.exp / "stages").mkdir(parents=True)
    (sample.exp / "stages" / name).symlink_to(canary.folder / "text")
    result = sample.main()
    assert result.status == 0, result.output
    canary.assert_unchanged()
    assert not (sample.exp / "stages" / name).is_symlink()
    assert sample.outputs() == finished


@pytest.mark.parametrize("name", ["lang", "words.txt", "lang/phones"])
def test_an_output_is_not_made_in_a_links_place(sample, canary, name):
    assert sample.main("--stop-stage", 1).status == 0
    (sample.exp / name).parent.mkdir(exist_ok=True)
    (sample.exp / name).symlink_to(canary.folder / ("text" if "." in name else "deep"))
    assert_refused(sample, canary, name)


def test_an_output_below_a_linked_folder_is_not_deleted(sample, canary, finished):
    """The marker names outputs inside the run directory; their real location counts."""
    assert sample.main().status == 0
    shutil.rmtree(sample.exp / "lang")
    (sample.exp / "lang").symlink_to(canary.folder)
    (canary.folder / "phones").mkdir()
    (canary.folder / "phones" / "phones.txt").write_text("mine")
    canary.before = canary.state()
    assert_refused(sample, canary, "lang")
    assert_refused(sample, canary, "lang", "--force", 2)
    (sample.exp / "lang").unlink()
    assert sample.main().status == 0
    assert sample.outputs() == finished


@pytest.mark.parametrize("name", ["03", "03/model", "03/model/0.json", "03/model/final.txt"])
def test_partial_outputs_that_are_links_are_not_continued(sample, canary, name):
    assert sample.main(env={"FAULT": "3:middle:value"}).status == 1
    path = sample.exp / ".partial" / name
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to(canary.folder if path.suffix == "" else canary.folder / "text")
    assert_refused(sample, canary, f".partial/{name}")
    # Another setting would discard them.
    if name == "03":
        assert_refused(sample, canary, f".partial/{name}", "--set", "train.rate=0.25")


def test_the_run_directory_and_folders_above_it_may_be_links(sample, finished):
    disk = sample.folder.parent / "disk"
    disk.mkdir()
    (sample.folder / "exp").symlink_to(disk)
    assert sample.main(env={"FAULT": "3:middle:value"}).status == 1
    result = sample.main()
    assert "resuming the interrupted attempt" in result.output
    assert sample.outputs() == finished
    (sample.folder / "mine").symlink_to(disk / "demo")
    again = sample.main("--exp", sample.folder / "mine", "--force", 2)
    assert again.status == 0, again.output
    assert sample.outputs(disk / "demo") == finished


def test_an_output_that_was_moved_and_linked_is_read_but_not_made_again(sample, canary):
    assert sample.main().status == 0
    moved = canary.folder / "model"
    shutil.move(sample.exp / "model", moved)
    (sample.exp / "model").symlink_to(moved)
    canary.before = canary.state()
    assert sample.main("--force", 5).status == 0
    canary.assert_unchanged()
    assert_refused(sample, canary, "model", "--force", 3)


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "exp").mkdir()
    return RunDirectory(tmp_path / "exp")


@pytest.fixture
def outside(tmp_path):
    return Canary(tmp_path / "outside")


@pytest.mark.parametrize("name", ["linked", "linked/text", "linked/deep"])
def test_discarding_goes_through_no_link(directory, outside, name):
    (directory.root / "linked").symlink_to(outside.folder)
    with pytest.raises(LinkError, match="linked` is a link"):
        directory.discard(directory.root / name)
    outside.assert_unchanged()


def test_discarding_a_folder_deletes_only_the_links_in_it(directory, outside):
    (directory.root / "model").mkdir()
    (directory.root / "model" / "link").symlink_to(outside.folder)
    directory.discard(directory.root / "model")
    directory.empty_trash()
    outside.assert_unchanged()
    assert not (directory.root / "model").exists()


@pytest.mark.parametrize("link", ["linked", ".partial/01/linked"])
def test_publishing_goes_through_no_link(directory, outside, link):
    """A forged marker of an interrupted publication could ask for it."""
    contents = {"linked/text": Content(4, "aa")}
    marker = make_marker(outputs=contents)
    marker.write(directory.publishing(1))
    partial_output = directory.partial(1, "linked/text")
    partial_output.parent.mkdir(parents=True)
    partial_output.write_text("theirs")
    if (directory.root / link).exists():
        shutil.rmtree(directory.root / link)
    (directory.root / link).symlink_to(outside.folder)
    with pytest.raises(LinkError, match=f"{link}` is a link"):
        directory.recover(directory.load_digests())
    outside.assert_unchanged()
    (directory.root / link).unlink()
    directory.recover(directory.load_digests())
    assert directory.marker(1).exists()


def test_an_old_output_below_a_link_is_not_removed(directory, outside):
    old = make_marker(outputs={"linked/text": Content(4, "aa")})
    old.write(directory.marker(1))
    make_marker().write(directory.publishing(1))
    (directory.root / "linked").symlink_to(outside.folder)
    with pytest.raises(LinkError):
        directory.recover(directory.load_digests())
    outside.assert_unchanged()


def test_records_are_not_written_below_a_linked_folder(directory, outside):
    directory.partials.symlink_to(outside.folder)
    for path in (directory.provenance(1), directory.progress(1)):
        with pytest.raises(LinkError):
            directory.write(path, "{}")
    with pytest.raises(LinkError):
        directory.recover(directory.load_digests())
    outside.assert_unchanged()
