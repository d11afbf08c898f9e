"""The states of a run's stages on its page."""

import dataclasses

import pytest

from tests.report.conftest import marker
from toolkit.report.run_data import read_stages
from toolkit.report.run_folder import RunFolder


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("2026-01-02T12:00:00+00:00", "done"),
        ("2026-01-02T14:00:00+00:00", "failed"),
        ("2026-01-02T12:00:00", "failed"),
        ("Traceback", "failed"),
    ],
)
def test_a_failure_that_the_run_has_passed_over(made_up, line, kind):
    """A trial with other settings failed; with those of before the run went on to stage 5."""
    for number, hour in ((4, 11), (5, 13)):
        made = marker(number, "Stage")
        made = dataclasses.replace(made, started=f"2026-01-02T{hour}:00:00+00:00")
        made.write(made_up.root / f"stages/{number:02d}.json")
    made_up.write("stages/04.failed.txt", f"no such text\n\n{line}\nTraceback")
    first, second = read_stages(RunFolder.open(made_up.root))
    assert (first.number, first.state, second.state) == (4, kind, "done")


def test_a_failed_stage_without_outputs_stays_failed(made_up):
    later = dataclasses.replace(marker(5, "Stage"), started="2026-01-02T13:00:00+00:00")
    later.write(made_up.root / "stages/05.json")
    made_up.write("stages/04.failed.txt", "no such text\n\n2026-01-02T12:00:00+00:00\nTraceback")
    assert [stage.state for stage in read_stages(RunFolder.open(made_up.root))] == [
        "failed",
        "done",
    ]
