"""The training stage of the CTC recipe alone, on records of noise, for tests that take seconds."""

import json
from dataclasses import replace

import numpy as np
import torch

from recipes.librispeech.ctc_config import demo
from recipes.steps.ctc import train
from toolkit.corpus.split import Splits
from toolkit.decode.config import EvaluationConfig
from toolkit.features.normalise import Cmvn, GlobalStats
from toolkit.lang.units import Characters
from toolkit.models.config import CtcConfig
from toolkit.stages.recipe import Recipe
from toolkit.train.config import ReaderConfig, RecordConfig, StatesConfig
from toolkit.train.ctc.records import Record, record_path, write_file


def tiny_config(evaluator):
    """Two epochs of a tiny network."""
    tiny = CtcConfig(channels=(4,), kernels=(3,), strides=(2,), lstm_layers=1, hidden=4)
    training = replace(
        demo().train,
        epochs=2,
        average_epochs=1,
        model=tiny,
        states=StatesConfig(evaluator=evaluator),
    )
    readers = ReaderConfig(utterances_per_batch=4, readers=0)
    records = RecordConfig(window=3, stride=2)
    search = {"evaluation": EvaluationConfig("prefixes"), "evaluation_width": 4}
    return replace(demo(), train=training, readers=readers, records=records, **search)


def tiny_recipe(tmp_path, evaluator):
    """The training stage alone; `exp` holds the outputs of earlier stages."""
    exp, units = tmp_path / "exp", Characters()
    Splits("train", ("dev",), ()).save(exp / "data" / "splits.json")
    units.save(exp / "units")
    chance = np.random.default_rng(0)
    frames = chance.standard_normal((8, 40, 3)).astype(np.float16)
    stats = GlobalStats.of(torch.from_numpy(frames).double().reshape(-1, 3))
    Cmvn(stats.mean, stats).save(exp / "features" / "normaliser.json")
    for split in ("train", "dev"):
        labels = np.array(units.encode("ab"), dtype=np.int32)
        records = [(f"u{i}", Record(x, labels, 0, np.zeros(3))) for i, x in enumerate(frames)]
        folder = exp / "records" / split
        write_file(record_path(folder, 0), "plan", records)
        manifest = {"dimension": 3, "files": 1, "utterances": 8, "symbols": units.symbols}
        (folder / "records.json").write_text(json.dumps(manifest))
    recipe = Recipe("tiny", tmp_path / "run.py", {"demo": lambda: tiny_config(evaluator)})
    recipe.stage(7, "Train", distributed=True)(train)
    return recipe
