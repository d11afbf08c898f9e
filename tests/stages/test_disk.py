"""Files that `toolkit clean` keeps."""

import pytest

from toolkit.stages.directory import RunDirectory
from toolkit.stages.disk import CleanError, choose, remove
from toolkit.storage.files import LinkError

RESULTS = ("results.json", "werr.json", "werr.md", "breakdown.json", "breakdown.html", "sweep.json")


@pytest.mark.parametrize("name", [*RESULTS, "tta", "final/model"])
def test_results_are_not_deleted(tmp_path, name):
    with pytest.raises(CleanError, match=f"{name} is never removed"):
        choose(RunDirectory(tmp_path), [name])


@pytest.mark.parametrize("name", ["stages", ".partial"])
def test_nothing_is_written_through_a_link(tmp_path, name):
    outside, exp = tmp_path / "outside", tmp_path / "exp"
    outside.mkdir()
    (outside / ".lock").write_text("mine")
    exp.mkdir()
    (exp / name).symlink_to(outside)
    with pytest.raises(LinkError, match=f"{name}` is a link"):
        remove(RunDirectory(exp), [], "toolkit clean")
    assert [path.read_text() for path in outside.iterdir()] == ["mine"]
