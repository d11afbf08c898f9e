"""Learning curves, the progress of trainings, and tuning of beams."""

import json
import re

import pytest

from toolkit.report.run_folder import RunFolder
from toolkit.report.training_curves import History, beam_figures, read_histories, training_progress
from toolkit.train.runlog import Created, RunLogWriter, Step

EPOCHS = [
    {
        "epoch": n,
        "loss": 1.0 / n,
        "rate": 0.01 / n,
        "gradient_norm": 2.0 / n,
        "frames_per_second": 1000.0 * n,
        "seconds": 2.0,
        "data_wait": 0.5,
    }
    for n in (1, 2, 3)
]


@pytest.fixture
def run(tmp_path):
    (tmp_path / "stages").mkdir()
    return RunFolder.open(tmp_path)


def headings(html):
    return re.findall(r"<figure><h3>([^<]*)</h3>", html)


def test_every_series_of_the_history_is_drawn(run):
    html = training_progress(run, [History("lstm", EPOCHS)])
    assert headings(html) == [
        "lstm: learning rate",
        "lstm: gradient norm",
        "lstm: frames per second",
    ]
    assert "epoch 3: 3000" in html
    assert "50.0 %" in html  # of the time was spent waiting
    assert "2,000" in html  # frames per second on average
    bare = [{"epoch": n, "loss": 1.0} for n in (1, 2)]
    assert headings(training_progress(run, [History("lstm", bare)])) == []
    assert headings(training_progress(run, [History("lstm", EPOCHS[:1])])) == []


def test_a_gmm_training_has_no_progress_chart(run):
    rows = [{"iteration": n, "log_likelihood_per_frame": -n, "rate": 1.0} for n in (1, 2)]
    assert training_progress(run, [History("mono", rows)]) == ""


def test_the_throughput_of_a_run_log_is_that_of_its_steps(run):
    now = [0.0]
    log = RunLogWriter(run.root / "ctc/log.jsonl", lambda: now[0])
    log.create(Created(batch=4))
    for step in range(1, 7):
        now[0] += 30
        log.write(Step(step=step, epoch=1, loss=1.0, examples=8 * step, seconds_in_step=4.0))
    (run.root / "ctc/history.json").write_text(json.dumps(EPOCHS))
    html = training_progress(run, read_histories(run))
    assert headings(html)[-1] == "ctc: throughput"
    assert "ctc: learning rate" in headings(html)
    assert "utterances per second" in html
    (run.root / "ctc/log.jsonl").write_text("{")
    assert "ctc: throughput" not in training_progress(run, read_histories(run))
    assert run.problems


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
    assert "System sat, measured by python -m benchmarks beams" in html
    rows = [{"width": n, "seconds": n / 10, "wer": 50.0 - n} for n in (1, 4)]
    made_up.write("sweep.json", json.dumps({"split": "test", "rows": rows}))
    assert beam_figures(run).count("<figure>") == 2
    assert run.problems == []


def test_a_single_width_makes_no_curve_and_damage_is_reported(made_up):
    run = RunFolder.open(made_up.root)
    made_up.write("sweep.json", json.dumps({"split": "test", "rows": []}))
    made_up.write("beams.json", "{")
    assert beam_figures(run) == ""
    assert len(run.problems) == 1
