from tests.markers import attempt
from tests.report.conftest import marker
from toolkit.report.run_data import StageView, stage_table
from toolkit.report.run_page import commands_table
from toolkit.stages.marker import CodeVersion


def test_a_stage_shows_the_commits_of_all_its_attempts():
    made = marker(3, "Train")
    codes = [
        CodeVersion(letter and letter * 40, letter == "b", "", {}) for letter in (*"aabb", None)
    ]
    made.provenance.attempts[:] = [attempt(code) for code in codes]
    cells = commands_table([StageView(3, "Train", "done", marker=made)]).rows[0].cells
    assert cells[2].text == "aaaaaaaaaaaa, bbbbbbbbbbbb with local changes, unknown"


def test_the_table_of_stages_has_their_memory():
    sizes = {1: 300 << 20, 2: 3 << 30, 3: 0}
    views = [
        StageView(n, "Train", "done", marker=marker(n, "Train", peak_bytes=size))
        for n, size in sizes.items()
    ]
    shown = stage_table(views)
    assert "<td>300 MiB</td>" in shown
    assert "<td>3.0 GiB</td>" in shown
    assert shown.count("<td></td>") == 1
