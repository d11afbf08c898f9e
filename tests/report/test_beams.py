"""Error rate against time by the beam."""

import json

from toolkit.report.run_folder import RunFolder
from toolkit.report.training_curves import beam_figures


def test_each_file_is_a_curve_in_the_order_of_time(made_up):
    run = RunFolder.open(made_up.root)
    assert beam_figures(run) == ""
    widths = [
        {"real_time_factor": x, "wer": y, "beam": beam, "active": 1000}
        for x, y, beam in ((0.3, 9.5, 16.0), (0.1, 12.25, 8.0))
    ]
    made_up.write("beams.json", json.dumps({"system": "sat", "widths": widths}))
    html = beam_figures(run)
    assert html.count("<figure>") == 1
    assert html.index("beam 8, 1,000 states: 12.25 %") < html.index("beam 16, 1,000 states: 9.50 %")
    assert "System sat, by python -m benchmarks beams" in html
    rows = [{"width": n, "seconds": n / 10, "wer": 50.0 - n} for n in (1, 4)]
    made_up.write("sweep.json", json.dumps({"split": "test", "rows": rows}))
    assert beam_figures(run).count("<figure>") == 2
    assert run.problems == []


def test_one_width_is_no_curve_and_damage_is_noted(made_up):
    run = RunFolder.open(made_up.root)
    made_up.write("sweep.json", json.dumps({"split": "test", "rows": []}))
    made_up.write("beams.json", "{")
    assert beam_figures(run) == ""
    assert len(run.problems) == 1
