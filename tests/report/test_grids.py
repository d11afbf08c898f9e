"""The grids of tuned weights."""

import json
import re

import pytest

from toolkit.report.run_folder import RunFolder
from toolkit.report.run_page import weight_grids


@pytest.fixture
def write(tmp_path):
    (tmp_path / "stages").mkdir()

    def written(system, head, rows, chosen, name="tuned.json"):
        folder = tmp_path / "decode" / system
        folder.mkdir(parents=True)
        lines = ["\t".join(head.split()), *("\t".join(row.split()) for row in rows)]
        (folder / "grid.tsv").write_text("".join(f"{line}\n" for line in lines))
        (folder / name).write_text(json.dumps(chosen))
        return RunFolder.open(tmp_path)

    return written


def cells(html):
    return re.findall(r'<td( class="chosen")? style="--shade:\d+%">([\d.]+)</td>', html)


def test_two_weights(write):
    head = "acoustic_scale word_penalty errors words wer search_scale"
    rows = ["0.1 0 3 10 30.00 0.1", "0.1 -1 2 10 20.00 0.1", "0.2 0 4 10 40.00 0.1"]
    run = write("mono", head, rows, {"acoustic_scale": 0.1, "word_penalty": -1.0})
    html = weight_grids(run)
    assert [(bool(chosen), wer) for chosen, wer in cells(html)] == [
        (True, "20.00"),
        (False, "30.00"),
        (False, "40.00"),
    ]
    assert "<td></td>" in html  # 0.2 with -1 was not tried
    assert "Lowest over" not in html


def test_of_three_weights_the_lowest_over_the_third(write):
    head = "neural acoustic_scale word_penalty errors words wer search_scale"
    rows = ["0 0.2 -1 3 10 30.00 1", "0 0.2 0 2 10 20.00 1", "1 0.2 0 5 10 50.00 1"]
    chosen = {"neural": 0.0, "acoustic_scale": 0.2, "word_penalty": 0.0}
    html = weight_grids(write("lstm_lm", head, rows, chosen, "weights.json"))
    assert [(bool(chosen), wer) for chosen, wer in cells(html)] == [
        (True, "20.00"),
        (False, "50.00"),
    ]
    assert "Lowest over word penalty" in html


def test_a_combination_has_a_rule_and_a_weight_for_each_system(write):
    head = "rule sat lstm errors words wer"
    rows = ["mbr 1 0 3 10 30.00", "mbr 0.5 0.5 2 10 20.00", "best 0.5 0.5 1 10 10.00"]
    chosen = {"rule": "best", "weights": {"sat": 0.5, "lstm": 0.5}}
    html = weight_grids(write("combined", head, rows, chosen))
    assert [(bool(chosen), wer) for chosen, wer in cells(html)] == [
        (False, "20.00"),
        (False, "30.00"),
        (True, "10.00"),
    ]


@pytest.mark.parametrize("turned", [False, True])
def test_weights_are_in_the_order_of_their_values(write, turned):
    scales, penalties = ["0.7", "1", "10", "0.576471"], ["0", "-2", "2", "-1"]
    head, first, second = "acoustic_scale word_penalty", scales, penalties
    if turned:
        head, first, second = "word_penalty acoustic_scale", penalties, scales
    rows = [f"{a} {b} 1 10 10.00" for a in first for b in second]
    html = weight_grids(write("mono", f"{head} errors words wer", rows, {}))
    down = re.findall(r'<th scope="row">(.*?)</th>', html)
    across = re.findall(r'<th scope="col">(.*?)</th>', html)
    wanted = [["0.576471", "0.7", "1", "10"], ["-2", "-1", "0", "2"]]
    assert [down, across] == (wanted[::-1] if turned else wanted)
