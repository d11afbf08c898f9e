"""A CTC training whose epochs another command evaluates."""

import threading
import time

import pytest
from click.testing import CliRunner

from tests.recipes.tiny_ctc import tiny_recipe
from toolkit.cli import main
from toolkit.decode.ctc.search import GreedyDecoder
from toolkit.train.runlog import Evaluated, read_run_log


@pytest.fixture
def recipe(tmp_path):
    return tiny_recipe(tmp_path, "elsewhere")


def evaluate(folder):
    return CliRunner().invoke(main, ["ctc", "evaluate", str(folder), "--device", "cpu"])


@pytest.fixture
def widths(monkeypatch):
    """Beam widths of the decoders; the decoders are greedy, which needs no compilation."""
    widths = []

    def decoder(units, config):
        widths.append(config.width)
        return GreedyDecoder(units)

    monkeypatch.setattr("toolkit.decode.ctc.evaluation.PrefixDecoder", decoder)
    return widths


def test_a_command_evaluates_during_the_training_and_ends_with_it(recipe, tmp_path, widths):
    exp = tmp_path / "exp"
    assert "evaluator=elsewhere" in evaluate(exp).output
    statuses = []

    def run():
        try:
            recipe.main(["--exp", str(exp), "--device", "cpu", "--jobs", "1"])
        except SystemExit as end:
            statuses.append(end.code)

    training = threading.Thread(target=run, daemon=True)
    training.start()
    while not (exp / ".partial/07/ctc/evaluation/plan.json").exists() and training.is_alive():
        time.sleep(0.01)
    result = evaluate(exp)
    training.join(60)
    assert (result.exit_code, statuses) == (0, [0]), result.output
    evaluated = read_run_log(exp / "ctc").of(Evaluated)
    lines = [f"epoch {e.epoch}: CER {e.cer:.2f} %, WER {e.wer:.2f} %" for e in evaluated]
    over = "The training has ended. This process evaluated {} epochs."
    assert len(lines) == 2
    printed = [line for line in result.output.splitlines() if line.startswith(("epoch", "The"))]
    assert printed == [*lines, over.format(2)]  # the training says something too
    assert widths == [4, 4]
    assert evaluate(exp).output.splitlines() == [over.format(0)]
