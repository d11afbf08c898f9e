from tests.report.conftest import marker
from toolkit.report.provenance import commands_table
from toolkit.report.stages import StageView, stage_table
from toolkit.stages.code import Attempt, Code


def commit_of(**options):
    made = marker(3, "Train", **options)
    return commands_table([StageView(3, "Train", "done", marker=made)]).rows[0].cells[2].text


def test_a_stage_shows_the_commits_of_all_its_attempts():
    codes = [Code({"commit": letter * 40, "dirty": letter == "b"}, None, {}) for letter in "aabb"]
    attempts = [None, *(Attempt("now", code, {}) for code in codes)]
    expected = "unknown, aaaaaaaaaaaa, bbbbbbbbbbbb with local changes"
    assert commit_of(attempts=attempts) == expected


def test_a_marker_from_before_shows_its_commit():
    assert commit_of() == "0123456789ab with local changes"
    assert commit_of(git={"commit": None, "dirty": None}) == "unknown"


def test_the_table_of_stages_has_their_memory():
    sizes = {1: 300 << 20, 2: 3 << 30, 3: None}
    views = [
        StageView(n, "Train", "done", marker=marker(n, "Train", peak_bytes=size))
        for n, size in sizes.items()
    ]
    shown = stage_table(views)
    assert "<td>300 MiB</td>" in shown
    assert "<td>3.0 GiB</td>" in shown
    assert shown.count("<td></td>") == 1
