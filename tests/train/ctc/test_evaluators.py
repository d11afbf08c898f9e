import threading
from dataclasses import replace
from multiprocessing import get_context

import pytest
import torch

from toolkit.train.ctc.evaluation import BackgroundEvaluator, EvaluationFolder, evaluate_elsewhere
from toolkit.train.ctc.training import train_ctc
from toolkit.train.errors import TrainingError
from toolkit.train.runlog import Evaluated, read_run_log


@pytest.fixture
def model(ctc_toy):
    from toolkit.models.ctc import CtcModel

    torch.manual_seed(0)
    return CtcModel(replace(ctc_toy.config.model, input_dim=5))


def elsewhere(ctc_toy, out):
    """Start a process that evaluates the models in a training's folder."""
    process = get_context("spawn").Process(
        target=evaluate_elsewhere, args=(out, ctc_toy.evaluation), daemon=True
    )
    process.start()
    return process


def test_all_evaluators_give_the_same(ctc_toy, tmp_path):
    ctc_toy.train(tmp_path / "in_place")
    expected = [record["valid_cer"] for record in ctc_toy.history(tmp_path / "in_place")]
    process = elsewhere(ctc_toy, tmp_path / "elsewhere")
    for kind in ("swap", "elsewhere", "resident", "process"):
        ctc_toy.train(tmp_path / kind, evaluator=kind)
        assert ctc_toy.same(tmp_path / kind, tmp_path / "in_place"), kind
        evaluated = read_run_log(tmp_path / kind).of(Evaluated)
        assert [e.cer for e in evaluated] == expected
        assert [e.step for e in evaluated] == [6, 12, 18]
        assert all(e.trained <= e.seconds for e in evaluated)
        assert not list((tmp_path / kind / "evaluation").glob("epoch-*/*"))
    process.join(60)
    assert process.exitcode == 0


@pytest.mark.long
@pytest.mark.parametrize("evaluated", [True, False])
def test_a_background_evaluation_is_picked_up_after_a_restart(
    ctc_toy, tmp_path, evaluated, monkeypatch
):
    """The training stops while it waits for an evaluation, with and without the result."""
    ctc_toy.train(tmp_path / "whole")
    out = tmp_path / "stopped"

    def stop(done, total):
        if done > 6:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("toolkit.train.monitor.SECONDS_BETWEEN_REPORTS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            ctc_toy.train(out, evaluator="elsewhere", progress=stop)
    if evaluated:
        assert evaluate_elsewhere(out, ctc_toy.evaluation, until_finished=False) == 1
    process = elsewhere(ctc_toy, out)
    ctc_toy.train(out, evaluator="elsewhere")
    process.join(60)
    assert process.exitcode == 0
    assert ctc_toy.same(out, tmp_path / "whole")
    assert read_run_log(out).starts == 2


class Broken:
    """An evaluation that cannot be unpickled in another process."""

    def __reduce__(self):
        return (int, ("no number",))


def test_an_evaluator_that_fails_is_named(ctc_toy, tmp_path):
    config = replace(ctc_toy.config, states=replace(ctc_toy.config.states, evaluator="process"))
    recognition = replace(ctc_toy.recognition, search=Broken())
    with pytest.raises(TrainingError, match=r"evaluates .*epoch-0001 ended with exit status 1"):
        train_ctc(ctc_toy.data, ctc_toy.valid, recognition, config, tmp_path)


def test_evaluation_does_not_wait_for_a_removed_model(ctc_toy, tmp_path, model):
    evaluator = BackgroundEvaluator("elsewhere", tmp_path, ctc_toy.evaluation, "cpu")
    evaluator.begin(None)
    evaluator.submit(1, model)
    EvaluationFolder(tmp_path).remove(1)
    with pytest.raises(TrainingError, match="removed"):
        evaluator.result(1)


def test_requests_of_an_earlier_start_are_dropped_unless_needed(ctc_toy, tmp_path, model):
    folder = EvaluationFolder(tmp_path)
    for epoch in (1, 2):
        folder.submit(epoch, model)
    BackgroundEvaluator("elsewhere", tmp_path, ctc_toy.evaluation, "cpu").begin(2)
    assert folder.waiting() == [2]


@pytest.mark.parametrize("becomes", ["renamed", "another"])
def test_evaluation_ends_when_its_plan_is_replaced(ctc_toy, tmp_path, model, becomes):
    """The folder of a finished training is renamed or reused, so its end may be missed."""
    out = tmp_path / "partial"
    folder = EvaluationFolder(out)
    folder.write_plan("one")
    folder.submit(1, model)
    evaluated_once = threading.Event()

    def evaluate():
        options = {"plan": "one", "on_result": lambda *_: evaluated_once.set()}
        evaluate_elsewhere(out, ctc_toy.evaluation, **options)

    thread = threading.Thread(target=evaluate, daemon=True)
    thread.start()
    assert evaluated_once.wait(60)
    if becomes == "renamed":
        out.rename(tmp_path / "finished")
    else:
        folder.write_plan("two")
        folder.submit(2, model)
    thread.join(60)
    assert not thread.is_alive()
    assert folder.result(2) is None


def test_an_epoch_that_is_submitted_again_is_evaluated_again(ctc_toy, tmp_path, model):
    folder = EvaluationFolder(tmp_path)
    for expected in (1, 1):
        folder.submit(3, model)
        assert folder.waiting() == [3]
        assert evaluate_elsewhere(tmp_path, ctc_toy.evaluation, until_finished=False) == expected
        assert folder.waiting() == []
    assert folder.result(3).keys() == {"loss", "wer", "cer", "cer_usual", "ser", "duration"}
    assert folder.result(3)["cer"] == pytest.approx(ctc_toy.evaluation(model)["cer"])
