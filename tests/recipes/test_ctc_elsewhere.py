"""A CTC training whose epochs another command evaluates."""

import json
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from recipes.librispeech.ctc_config import demo
from recipes.steps.ctc import train
from toolkit.cli import main
from toolkit.corpus.split_names import Splits
from toolkit.decode.ctc.evaluation import EvaluationConfig
from toolkit.decode.ctc.greedy import GreedyDecoder
from toolkit.features.normalise import GlobalStats, Normaliser
from toolkit.lang.units.characters import Characters
from toolkit.models.ctc import CtcConfig
from toolkit.stages.recipe import Recipe
from toolkit.train.ctc.readers import ReaderConfig
from toolkit.train.ctc.record_file import Record, write_file
from toolkit.train.ctc.record_folder import record_path
from toolkit.train.ctc.records import RecordConfig
from toolkit.train.ctc.state_machine import MachineConfig
from toolkit.train.runlog import Evaluated, read_run_log


def config():
    """Two epochs of a tiny network."""
    tiny = CtcConfig(channels=(4,), kernels=(3,), strides=(2,), lstm_layers=1, hidden=4)
    training = replace(
        demo().train,
        epochs=2,
        average_epochs=1,
        model=tiny,
        machine=MachineConfig(evaluator="elsewhere"),
    )
    readers = ReaderConfig(batch=4, readers=0)
    records = RecordConfig(window=3, stride=2)
    search = {"evaluation": EvaluationConfig("prefixes"), "evaluation_width": 4}
    return replace(demo(), train=training, readers=readers, records=records, **search)


@pytest.fixture
def recipe(tmp_path):
    """The training stage alone, with what the stages before it make in `exp`."""
    exp, units = tmp_path / "exp", Characters()
    Splits("train", ("dev",), ()).save(exp / "data" / "splits.json")
    units.save(exp / "units")
    chance = np.random.default_rng(0)
    frames = chance.standard_normal((8, 40, 3)).astype(np.float16)
    stats = GlobalStats.of(torch.from_numpy(frames).double().reshape(-1, 3))
    Normaliser(stats.mean, stats).save(exp / "features" / "normaliser.json")
    for split in ("train", "dev"):
        labels = np.array(units.encode("ab"), dtype=np.int32)
        records = [(f"u{i}", Record(x, labels, 0, np.zeros(3))) for i, x in enumerate(frames)]
        folder = exp / "records" / split
        write_file(record_path(folder, 0), "plan", records)
        manifest = {"dimension": 3, "files": 1, "utterances": 8, "symbols": units.symbols}
        (folder / "records.json").write_text(json.dumps(manifest))
    recipe = Recipe("tiny", tmp_path / "run.py", {"demo": config})
    recipe.stage(7, "Train", parallel=True)(train)
    return recipe


def evaluate(folder):
    return CliRunner().invoke(main, ["ctc", "evaluate", str(folder), "--device", "cpu"])


@pytest.fixture
def widths(monkeypatch):
    """The beam widths of the searches that are made, which are greedy: those need no compiling."""
    asked = []

    def decoder(units, config):
        asked.append(config.width)
        return GreedyDecoder(units)

    monkeypatch.setattr("toolkit.decode.ctc.evaluation.PrefixDecoder", decoder)
    return asked


def test_a_command_evaluates_while_the_training_goes_on_and_ends_with_it(recipe, tmp_path, widths):
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
    over = "The training is over; {} epochs were evaluated here."
    assert len(lines) == 2
    printed = [line for line in result.output.splitlines() if line.startswith(("epoch", "The"))]
    assert printed == [*lines, over.format(2)]  # the training says something too
    assert widths == [4, 4]
    assert evaluate(exp).output.splitlines() == [over.format(0)]
