"""What of a run `toolkit clean` keeps."""

import pytest

from toolkit.stages.directory import RunDirectory
from toolkit.stages.disk import CleanError, choose

RESULTS = ("results.json", "werr.json", "werr.md", "breakdown.json", "breakdown.html", "sweep.json")


@pytest.mark.parametrize("name", [*RESULTS, "tta", "final/model"])
def test_results_are_kept(tmp_path, name):
    with pytest.raises(CleanError, match=f"{name} is never removed"):
        choose(RunDirectory(tmp_path), [name])
