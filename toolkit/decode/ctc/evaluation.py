"""Evaluation of a CTC training's epochs by another process than the one that trains (A23)."""

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
from toolkit.lang.units.choice import load_units
from toolkit.lang.units.units import Units
from toolkit.score.cer import error_rates
from toolkit.stages.directory import RunDirectory
from toolkit.storage.reading import reading
from toolkit.train.ctc.evaluation import Evaluation, Recognition
from toolkit.train.ctc.evaluators import EpochFolder, evaluate_elsewhere
from toolkit.train.ctc.objective import CtcObjective, Weight
from toolkit.train.ctc.readers import ReaderConfig, RecordSource
from toolkit.train.errors import TrainingError


@dataclass(frozen=True)
class EvaluationPlan:
    """What a training in a run directory is evaluated on, and how; paths start from there."""

    units: str
    """Folder of the output units."""
    normaliser: str
    """File of the features' normaliser."""
    records: str
    """Folder of the held-out records."""
    batch: int
    """Utterances per batch of them."""
    pad_to: int | None
    """Frames of every batch, see `ReaderConfig`."""
    width: int
    """Beam width of the search."""
    weight: Weight
    """What the loss is divided by."""

    def leave(self, training: Path) -> None:
        """Write the plan into a training's folder, for `evaluate_run`."""
        EpochFolder(training).write_plan(json.dumps(to_plain(self), indent=1) + "\n")


def make_recognition(units: Units, width: int, jobs: int) -> Recognition:
    """Sentences of the most likely labels, evaluation by prefixes, without a dictionary (A24)."""
    search = PrefixDecoder(units, PrefixConfig(width=width))
    return Recognition(units, GreedyDecoder(units), search, error_rates, jobs)


def evaluate_run(
    run: Path, device: str, told: Callable[[int, dict[str, float]], None] | None = None
) -> int:
    """Evaluate the epochs of a run's CTC training, maybe on another machine, until it is over.

    It is over as well when it begins anew. A training that was stopped is waited for.

    Args:
      run: the recipe's run directory, whose training has begun.
      device: where to compute; the search takes all usable cores.
      told: called with each epoch and its result.

    Returns:
      How many epochs were evaluated.

    Raises:
      TrainingError: no training that leaves its evaluation to others is there, or several are.
    """
    training = _training(run)
    folder = EpochFolder(training)
    text = folder.plan()
    with reading(training, TrainingError, "train anew", "its plan of evaluation cannot be read"):
        plan = from_plain(EvaluationPlan, json.loads(text or ""))
    units = load_units(run / plan.units)
    normaliser = Normaliser.load(run / plan.normaliser)
    readers = ReaderConfig(batch=plan.batch, readers=0, pad_to=plan.pad_to)
    evaluation = Evaluation(
        RecordSource(run / plan.records, readers, 0, normaliser).longest_first(),
        make_recognition(units, plan.width, usable_cpus()),
        CtcObjective(units.blank, plan.weight),
    )
    return evaluate_elsewhere(training, evaluation, device, plan=text, told=told)


def _training(run: Path) -> Path:
    """Find the training's folder: in the making, else finished."""
    for place, pattern in ((RunDirectory(run).partials, "[0-9]*/*"), (run, "*")):
        found = [path for path in sorted(place.glob(pattern)) if EpochFolder(path).plan()]
        if len(found) > 1:
            names = ", ".join(map(str, found))
            raise TrainingError(f"{run} holds several trainings to evaluate: {names}")
        if found:
            return found[0]
    raise TrainingError(
        f"{run} holds no training that leaves its evaluation to others: begin one with "
        "train.machine.evaluator=elsewhere, and evaluate once its stage has begun"
    )
