"""Evaluation of the epochs of a CTC training in a separate process (A23)."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from toolkit.config.convert import from_plain
from toolkit.config.settings import to_plain
from toolkit.decode.ctc.greedy import GreedyDecoder
from toolkit.decode.ctc.prefix import PrefixConfig, PrefixDecoder
from toolkit.environment import usable_cpus
from toolkit.features.normalise import Normaliser
from toolkit.lang.units.factory import load_units
from toolkit.lang.units.units import Units
from toolkit.score.cer import error_rates
from toolkit.stages.directory import RunDirectory
from toolkit.storage.reading import reading
from toolkit.train.ctc.evaluation import Evaluation, Recognition
from toolkit.train.ctc.evaluators import EvaluationFolder, evaluate_elsewhere
from toolkit.train.ctc.objective import CtcObjective, Weight
from toolkit.train.ctc.readers import ReaderConfig, RecordSource
from toolkit.train.errors import TrainingError


@dataclass(frozen=True)
class EvaluationPlan:
    """The data and settings of a training's evaluation; paths are relative to the run directory."""

    units: str
    """Folder of the output units."""
    normaliser: str
    """File of the feature normaliser."""
    records: str
    """Folder of the held-out records."""
    batch: int
    """Utterances per batch."""
    pad_to: int | None
    """Frames to which every batch is padded, see `ReaderConfig`."""
    width: int
    """Beam width of the search."""
    weight: Weight
    """What the loss is divided by."""

    def write(self, training: Path) -> None:
        """Write the plan into a training's folder, for `evaluate_run`."""
        EvaluationFolder(training).write_plan(json.dumps(to_plain(self), indent=1) + "\n")


def make_recognition(units: Units, width: int, jobs: int) -> Recognition:
    """Set up greedy decoding for sample sentences and prefix beam search for evaluation (A24)."""
    search = PrefixDecoder(units, PrefixConfig(width=width))
    return Recognition(units, GreedyDecoder(units), search, error_rates, jobs)


def evaluate_run(
    run: Path, device: str, on_result: Callable[[int, dict[str, float]], None] | None = None
) -> int:
    """Evaluate the epochs of a run's CTC training, maybe on another machine, until it ends.

    Returns too when the training is started anew. If it was stopped, waits for it to continue.

    Args:
      run: the recipe's run directory, whose training has begun.
      device: where to compute; the search takes all usable cores.
      on_result: called with each epoch and its result.

    Returns:
      Number of epochs evaluated.

    Raises:
      TrainingError: the run has no training with evaluation in a separate process, or several.
    """
    training = _training(run)
    folder = EvaluationFolder(training)
    text = folder.plan()
    with reading(training, TrainingError, "train again", "its evaluation plan cannot be read"):
        plan = from_plain(EvaluationPlan, json.loads(text or ""))
    units = load_units(run / plan.units)
    normaliser = Normaliser.load(run / plan.normaliser)
    readers = ReaderConfig(batch=plan.batch, readers=0, pad_to=plan.pad_to)
    evaluation = Evaluation(
        RecordSource(run / plan.records, readers, 0, normaliser).longest_first(),
        make_recognition(units, plan.width, usable_cpus()),
        CtcObjective(units.blank, plan.weight),
    )
    return evaluate_elsewhere(training, evaluation, device, plan=text, on_result=on_result)


def _training(run: Path) -> Path:
    """Find the training's folder, an unfinished one first."""
    for parent, pattern in ((RunDirectory(run).partials, "[0-9]*/*"), (run, "*")):
        found = [path for path in sorted(parent.glob(pattern)) if EvaluationFolder(path).plan()]
        if len(found) > 1:
            names = ", ".join(map(str, found))
            raise TrainingError(f"{run} holds several trainings to evaluate: {names}")
        if found:
            return found[0]
    raise TrainingError(
        f"{run} holds no training with evaluation in a separate process: start one with "
        "train.machine.evaluator=elsewhere, and evaluate once its stage has begun"
    )
