"""The page of a run's processing time beside the paper's (C34)."""

import json
import re
from types import SimpleNamespace

import pytest

from recipes.steps.farfield import write_breakdown
from tests.markers import make_marker
from toolkit.tta.tables import published

HOURS = {
    "clean speech and rooms": 1.0,
    "labelled data and its targets": 2.0,
    "baseline": 3.0,
    "teacher": 4.0,
    "unlabelled features and targets": 5.0,
    "student": 1.5,
}
"""Hours of a made-up run."""


@pytest.fixture
def breakdown(tmp_path):
    """The page of a synthetic run with one stage for each part, and its JSON file."""
    (tmp_path / "stages").mkdir()
    for number, hours in enumerate(HOURS.values()):
        marker = make_marker(number, "", command="./run.py", seconds=3600 * hours)
        marker.write(tmp_path / f"stages/{number:02d}.json")
    run = SimpleNamespace(need=tmp_path.joinpath, make=tmp_path.joinpath)
    write_breakdown(run, {part: [number] for number, part in enumerate(HOURS)})
    page = (tmp_path / "breakdown.html").read_text(encoding="utf-8")
    return page, json.loads((tmp_path / "breakdown.json").read_text(encoding="utf-8"))


def rows(page):
    """The texts of each table row's cells."""
    return [re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", row) for row in page.split("<tr>")[2:]]


def test_the_papers_twelve_days_are_beside_the_runs_hours(breakdown):
    page, _ = breakdown
    assert "The paper, a million hours, the student: 12 days" in page
    assert "This run, all parts: 16 h 30 min" in page
    assert "743 h" not in page
    assert rows(page) == [
        ["student: from stored audio to model", "6 h 30 min", "12 days"],
        ["unlabelled features and targets", "5 h 00 min", "7.6 days"],
        ["student", "1 h 30 min", "4.5 days"],
        ["teacher and storing: in addition", "4 h 00 min", "4 days"],
        ["teacher", "4 h 00 min", "2 days"],
        ["storing of the utterances", "", "2 days"],
        ["supervised system of 7,000 hours", "5 h 00 min", ""],
        ["labelled data and its targets", "2 h 00 min", "nearly 2 weeks"],
        ["baseline", "3 h 00 min", "about 21 hours"],
        ["other parts", "1 h 00 min", ""],
        ["clean speech and rooms", "1 h 00 min", ""],
    ]


def test_the_papers_times_add_up_to_its_totals(breakdown):
    _, breakdown_json = breakdown
    days = {part: seconds / 86_400 for part, seconds in breakdown_json["published_seconds"].items()}
    table = {row[0]: row[1] for row in published("C34").rows}
    student = days["unlabelled features and targets"] + days["student"]
    assert student == pytest.approx(table["both"], abs=0.15)  # the paper rounds 12.1
    assert days["teacher"] + days["storing of the utterances"] == pytest.approx(
        table["teacher's training and storing of 1 M h"]
    )
    assert days["labelled data and its targets"] == table["features and targets of 7,000 h, before"]
    assert days["baseline"] == table["supervised model of 7,000 h, 16 GPUs"]
    assert breakdown_json["seconds"] == {part: 3600 * hours for part, hours in HOURS.items()}
