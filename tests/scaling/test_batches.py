"""The study of large batches with tuned rates: equal budgets, the paper's schedule, the rows."""

import pytest

from toolkit.scaling.simulator.run import Outcome, Scenario
from toolkit.scaling.simulator.tasks import SequenceTask, SpeechLikeConfig, speech_like_frames
from toolkit.scaling.studies import POWERS, Trial, TunedBatches


@pytest.fixture(scope="module")
def task():
    config = SpeechLikeConfig(frames=2048, valid_frames=512, phones=4, dimension=4)
    return SequenceTask(*speech_like_frames(config), hidden=6)


def test_every_method_and_batch_has_as_many_trials_as_the_baseline(task):
    study = TunedBatches(batches=(512,), learners=4, epochs=2, warm_epochs=1)
    trials = list(study.trials(task, print))
    count = {}
    for trial in trials:
        count.setdefault((trial.method, trial.batch), []).append(trial)
    assert set(count) == {("ssgd", 256), *((method, 512) for method in study.methods)}
    assert {len(tried) for tried in count.values()} == {len(study.rates)} == {len(POWERS)}
    base = min(count["ssgd", 256], key=lambda trial: trial.loss).rate
    for method in study.methods:
        assert [trial.rate for trial in count[method, 512]] == [base * 2**power for power in POWERS]
    for trial in trials:
        frames = trial.batch // (1 if trial.method == "ssgd" else 4)
        assert trial.outcome.minibatches * frames == 2 * 2048
    rows = {(row["method"], row["batch"]): row for row in study.rows(trials)}
    assert rows["S-SGD", 256]["by batch 256"] == 1
    assert 0.3 < rows["ADPSGD", 512]["averagings per step"] <= 1


def test_rows_have_the_best_rate_and_the_papers_rate():
    study, outcome = TunedBatches(), lambda loss: Outcome("x", 1, 1.0, minibatches=1, loss=loss)
    losses = {("ssgd", 256): [2.0, 1.0], ("adpsgd", 1024): [1.5, 1.2, float("nan")]}
    trials = [
        Trial(method, batch, 0.1 * 2**power, power, outcome(loss))
        for (method, batch), tried in losses.items()
        for power, loss in enumerate(tried)
    ]
    rows = study.rows(trials)
    assert [row["by batch 256"] for row in rows] == [1.0, 1.2]
    assert [row["rate by the batch"] for row in rows] == [1.0, float("inf")]
    assert rows[1]["rate"] == 0.2


def test_the_rate_rises_for_ten_epochs_and_falls_by_the_root_of_two():
    scenario = Scenario(1600, rate=0.8, final_rate=0.1, warmup=10 / 16, decay_from=10 / 16)
    assert scenario.rate_at(0.0) == pytest.approx(0.8 / 1000)
    assert scenario.rate_at(5 / 16) == pytest.approx(0.4, rel=0.01)
    assert scenario.rate_at(10 / 16) == pytest.approx(0.8)
    assert scenario.rate_at(11 / 16) == pytest.approx(0.8 / 2**0.5)
    assert scenario.rate_at(1.0) == pytest.approx(0.1)
