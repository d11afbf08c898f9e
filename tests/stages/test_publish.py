from dataclasses import replace

import pytest

from tests.markers import make_marker
from tests.opened_files import opened_files
from toolkit.stages.directory import RunDirectory
from toolkit.stages.marker import Provenance, outputs_of
from toolkit.storage import digests


@pytest.fixture
def directory(tmp_path):
    return RunDirectory(tmp_path / "exp")


def build(directory, text, *names, digests_known=None):
    """Build outputs in the partial place and return their marker."""
    digests_known = digests_known or directory.load_digests()
    for name in names:
        path = directory.partial(1, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    directory.write(directory.provenance(1), Provenance().to_json())
    contents = {name.split("/")[0]: None for name in names}
    outputs = {name: digests_known.content(directory.partial(1, name)) for name in contents}
    return make_marker(outputs=outputs)


def tree(directory):
    return {
        str(path.relative_to(directory.root)): path.read_text()
        for path in sorted(directory.root.rglob("*"))
        if path.is_file() and path.name != "digests.json"
    }


def test_outputs_and_marker_take_their_places(directory):
    directory.publish(build(directory, "new", "model/a", "list"), directory.load_digests())
    assert tree(directory).keys() == {"list", "model/a", "stages/01.json"}


def test_outputs_hashed_for_publication_are_not_read_again(directory, monkeypatch):
    monkeypatch.setattr(digests, "RACY_AGE", 0)
    stored_digests = directory.load_digests()
    directory.publish(
        build(directory, "new", "model/a", "list", digests_known=stored_digests), stored_digests
    )
    with opened_files() as opened:
        fresh = directory.load_digests()
        assert fresh.content(directory.root / "model").count == 1
        assert fresh.content(directory.root / "list").size == 3
    assert [path for path in opened if not path.endswith("digests.json")] == []


def test_old_outputs_are_replaced_and_obsolete_ones_removed(directory):
    old = build(directory, "old", "model/a", "model/b", "list")
    directory.publish(old, directory.load_digests())
    directory.publish(build(directory, "new", "model/a", "notes"), directory.load_digests())
    files = tree(directory)
    del files["stages/01.json"]
    assert files == {"model/a": "new", "notes": "new"}


def test_outputs_of_another_stage_with_the_same_number_stay(directory):
    stored_digests = directory.load_digests()
    directory.publish(replace(build(directory, "other", "list"), title="another"), stored_digests)
    directory.publish(build(directory, "new", "model/a"), stored_digests)
    files = tree(directory)
    del files["stages/01.json"]
    assert files == {"list": "other", "model/a": "new"}


def test_a_completed_publication_can_be_completed_again(directory):
    directory.publish(build(directory, "old", "model/a"), directory.load_digests())
    marker = build(directory, "new", "model/a", "list")
    directory.publish(marker, directory.load_digests())
    expected = tree(directory)
    directory.marker(1).rename(directory.publishing(1))
    directory.recover(directory.load_digests())
    assert tree(directory) == expected


def test_an_output_that_moves_into_an_old_ones_folder_survives_recovery(directory):
    old = build(directory, "old", "model/a")
    directory.publish(old, directory.load_digests())
    (directory.partial(1, "model")).mkdir(parents=True)
    (directory.partial(1, "model/a")).write_text("new")
    outputs = {"model/a": directory.load_digests().content(directory.partial(1, "model/a"))}
    marker = make_marker(outputs=outputs)
    marker.write(directory.publishing(1))
    for _ in range(2):  # the second time as after a kill just before the marker
        directory.recover(directory.load_digests())
        assert (directory.root / "model" / "a").read_text() == "new"
        old.write(directory.marker(1))
        marker.write(directory.publishing(1))


def test_a_damaged_publication_is_dropped(directory):
    directory.stages.mkdir(parents=True)
    directory.publishing(1).write_text("{")
    directory.recover(directory.load_digests())
    assert not directory.publishing(1).exists()


def test_half_written_files_of_a_killed_run_are_removed(directory):
    directory.stages.mkdir(parents=True)
    (directory.stages / ".01.json.0123abcd.tmp").write_text("{")
    directory.discard_partial(1)
    directory.partial(1).mkdir(parents=True)
    directory.discard(directory.partial(1))
    directory.recover(directory.load_digests())
    assert tree(directory) == {}
    assert outputs_of(directory.marker(1)) == []
