"""Repeats of a training with other seeds, for rules that need several runs (A40)."""

import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from toolkit.config.fields import from_plain
from toolkit.config.settings import to_plain
from toolkit.decode.ctc.evaluation import EvaluationPlan, SearchFiles, make_recognition
from toolkit.features.normalise import Cmvn
from toolkit.lang.units import load_units
from toolkit.models.config import CtcConfig
from toolkit.models.store import load_model
from toolkit.processes import ranks
from toolkit.processes.devices import torch_threads
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_json, reading, validated
from toolkit.train.config import CtcTrainingConfig, ReaderConfig
from toolkit.train.ctc.readers import RecordSource
from toolkit.train.ctc.records import Records
from toolkit.train.ctc.training import train_ctc
from toolkit.train.monitor import Progress
from toolkit.train.precision import Precision
from toolkit.tta.machine import describe
from toolkit.tta.runs import BenchRunError, log_folder, recipe_folder
from toolkit.tta.utilisation import sampling

PLAN = "training.json"
REPEATS = "repeats"
"""Folder in a run directory for its second, third, ... training: `repeats/2`."""
NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16, scaled loss"}


@dataclass(frozen=True)
class TrainingPlan:
    """Data and settings of a CTC training; paths are relative to the run directory."""

    records: str
    """Folder of the training's records."""
    readers: ReaderConfig
    """Batches, and the processes that make them."""
    evaluation: EvaluationPlan
    """Evaluation after each epoch, and the output units."""
    train: CtcTrainingConfig
    """Network and training."""

    def write(self, training: Path) -> None:
        """Write the plan into a training's folder, without the network, which is stored there."""
        settings = to_plain(self)
        del settings["train"]["model"]
        write_atomically(training / PLAN, json.dumps(settings, indent=1) + "\n")

    @classmethod
    def read(cls, training: Path) -> "TrainingPlan":
        """Read the plan of a finished training run.

        Raises:
          BenchRunError: there is no plan, or it cannot be read.
        """
        path = training / PLAN
        if not os.path.lexists(path):
            raise BenchRunError(
                f"{training} contains no {PLAN}, so the training cannot be repeated: train again"
                " with this version of the toolkit (--force 7), or give several finished runs and"
                " leave out --runs"
            )
        with reading(path, BenchRunError, "train again", "cannot be read"):
            plan = from_plain(cls, validated(read_json(path), {str: Any}))
        model = load_model(training).config
        return replace(plan, train=replace(plan.train, model=model))


def train_by_plan(
    plan: TrainingPlan,
    root: Path,
    out: Path,
    device: str,
    jobs: int,
    command: str,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Train, or resume an interrupted training run; see `train_ctc`.

    Args:
      plan: data and settings of the training.
      root: the run directory to which the plan's paths are relative.
      out: folder for this training alone.
      device: where to train.
      jobs: threads of the evaluation's search.
      command: the command line, for the log.
      progress: see `train_ctc`.
    """
    # 1. Prepare the evaluation of epochs: output units, search, dictionary and language model.
    evaluation = plan.evaluation
    units, search = load_units(root / evaluation.units), evaluation.evaluation
    files = SearchFiles(root / evaluation.words, root / evaluation.arpa)
    recognition = make_recognition(units, evaluation.width, jobs, search, files)
    if plan.train.states.evaluator == "elsewhere":
        evaluation.write(out)
    # 2. Describe the machine and the system for the log. The description includes torch's number of
    # threads, so it is made with the training's number.
    with torch_threads(plan.train.threads):
        machine = describe(out.parent)
    precision = Precision(plan.train, torch.device(device), ranks.world_size()).name
    settings = {"precision": NAMES[precision], "evaluation": search.name(evaluation.width)}
    about = {"machine": machine, "settings": settings, "command": command}
    records = Records(root / plan.records)
    about["system"] = _described(plan, records.dimension, units.size)
    # 3. Train, with readers for the training and the validation records.
    normaliser = Cmvn.load(root / evaluation.normaliser)
    with ExitStack() as stack:
        data, valid = (
            stack.enter_context(
                RecordSource(root / name, plan.readers, plan.train.seed, normaliser)
            )
            for name in (plan.records, evaluation.records)
        )
        return train_ctc(
            data,
            valid.longest_first(),
            recognition,
            plan.train,
            out,
            device=device,
            progress=progress,
            batch=plan.readers.utterances_per_batch,
            about=about,
            background_logging=sampling,
            edges=(records.frontend.low_freq, records.frontend.upper_edge),
        )


def _described(plan: TrainingPlan, values: int, units: int) -> dict[str, Any]:
    """Describe the system for the page's block diagram (A41), as plain data."""
    return {
        "values": values,
        "readers": plan.readers.readers,
        "buffer": plan.readers.buffer,
        "batch": plan.readers.utterances_per_batch,
        "optimizer": plan.train.optimizer,
        "units": units,
        "layers": layers_of(plan.train.model, values, units),
    }


def layers_of(model: object, values: int, units: int) -> list[tuple[str, str]]:
    """Describe the layers of a network, each in two short lines.

    Args:
      model: the network's configuration.
      values: inputs per frame.
      units: outputs.
    """
    if not isinstance(model, CtcConfig):
        return [(f"{values} values", "input"), (type(model).__name__, ""), (f"{units}", "output")]
    layers, size = [(f"{values} values", "input")], values
    # Each convolution maps `size` channels to `channels`; the stride shortens the time axis.
    for channels, kernel, stride in zip(model.channels, model.kernels, model.strides, strict=True):
        layers.append((f"convolution {kernel} / {stride}", f"{size} to {channels}"))
        size = channels
    hidden = model.hidden * (1 + model.bidirectional)
    kind = "BLSTM" if model.bidirectional else "LSTM"
    layers.append((f"{model.lstm_layers} x {kind}", f"{size} to {hidden}"))
    return [*layers, ("linear, softmax", f"{hidden} to {units}")]


def repeated(
    run_folder: Path,
    runs: int,
    device: str,
    jobs: int,
    command: str,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Path]:
    """Repeat a finished training run, with other seeds, until there are `runs` runs.

    Finished repeats are kept, and an interrupted one is resumed.

    Args:
      run_folder: the folder of a training run, or the run directory that contains it.
      runs: number of runs, the given one included.
      device, jobs, command: see `train_by_plan`.
      tell: called with a line of progress.

    Returns:
      The folders of all runs, the given run's first.

    Raises:
      BenchRunError: the training cannot be repeated.
    """
    first = log_folder(run_folder)
    root = recipe_folder(first)
    if root is None:
        raise BenchRunError(
            f"{run_folder} is not in the run directory of a recipe, so the records that --runs"
            " needs are missing: give a folder in a run directory, or leave out --runs"
        )
    plan, folders = TrainingPlan.read(first), [first]
    if plan.train.states.evaluator == "elsewhere":
        raise BenchRunError(
            f"{run_folder} was evaluated by `toolkit ctc evaluate`, which would not evaluate the "
            "repeated runs: train with another value of `train.states.evaluator`"
        )
    for number in range(2, runs + 1):
        seed, out = plan.train.seed + number - 1, root / REPEATS / str(number)
        tell(f"Run {number} of {runs}, seed {seed}, in {out}")
        repeat_plan = replace(plan, train=replace(plan.train, seed=seed))
        train_by_plan(repeat_plan, root, out, device, jobs, command)
        folders.append(out)
    return folders
