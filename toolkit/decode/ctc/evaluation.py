"""Evaluates the epochs of a CTC training in a separate process (A23)."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from toolkit.config.fields import BatchFrames, BatchSize, ListLength, from_plain
from toolkit.config.settings import to_plain
from toolkit.decode.config import EvaluationConfig, PrefixConfig, WordsConfig
from toolkit.decode.ctc.dictionary import CtcDecodeError
from toolkit.decode.ctc.search import GreedyDecoder, PrefixDecoder, WordsDecoder
from toolkit.environment import usable_cpus
from toolkit.features.normalise import Cmvn
from toolkit.lang.arpa import read_arpa
from toolkit.lang.units import Units, load_units
from toolkit.score.wer import error_rates
from toolkit.stages.directory import RunDirectory
from toolkit.storage.reading import reading
from toolkit.train.config import LossPer, ReaderConfig
from toolkit.train.ctc.evaluation import (
    EvaluationFolder,
    HeldOutEvaluation,
    Recognition,
    evaluate_elsewhere,
)
from toolkit.train.ctc.objective import CtcLoss
from toolkit.train.ctc.readers import RecordSource
from toolkit.train.errors import TrainingError


@dataclass(frozen=True)
class SearchFiles:
    """Paths of the files that the dictionary search reads."""

    words: Path
    """The dictionary's words."""
    arpa: Path
    """The n-grams."""


@dataclass(frozen=True)
class EvaluationPlan:
    """Data and settings for evaluating a training run; paths are relative to the run directory."""

    units: str
    """Folder of the output units."""
    normaliser: str
    """File of the feature normaliser."""
    records: str
    """Folder of the held-out records."""
    batch: BatchSize
    """Utterances per batch."""
    pad_to: BatchFrames | None
    """Frames to which every batch is padded, see `ReaderConfig`."""
    width: ListLength
    """Beam width of the search."""
    weight: LossPer
    """Divisor of the loss, see `CtcTrainingConfig`."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """The search."""
    words: str = ""
    """File of the dictionary's words, if the search uses them."""
    arpa: str = ""
    """File of the n-grams, if the search uses them."""

    def write(self, training: Path) -> None:
        """Write the plan into a training's folder, where `evaluate_run` reads it."""
        EvaluationFolder(training).write_plan(json.dumps(to_plain(self), indent=1) + "\n")


def make_recognition(
    units: Units,
    width: int,
    jobs: int,
    config: EvaluationConfig | None = None,
    files: SearchFiles | None = None,
) -> Recognition:
    """Make the searches for sample sentences and for evaluation (A21, A24).

    Args:
      units: the output units.
      width: beam width of the evaluation.
      jobs: threads.
      config: which search; None: the default.
      files: dictionary and language model, which the search may need.

    Raises:
      CtcDecodeError: the search needs a dictionary and none is given.
    """
    config = config or EvaluationConfig()
    if config.search == "prefixes":
        search = PrefixDecoder(units, PrefixConfig(width=width))
        sentences = GreedyDecoder(units)
    else:
        if files is None:
            raise CtcDecodeError(f"evaluation with the search {config.search} needs a dictionary")
        words = files.words.read_text(encoding="utf-8").split()
        weights = {"lm_weight": config.lm_weight, "word_bonus": config.word_bonus}
        mode = "forecast" if config.search == "words+lm" else "words"
        lm = read_arpa(files.arpa) if config.search == "words+lm" else None
        search = WordsDecoder(units, words, lm, WordsConfig(width, mode, **weights))
        sentences = search.widened(1)
    return Recognition(units, sentences, search, error_rates, jobs, config.utterances)


def evaluate_run(
    run: Path, device: str, on_result: Callable[[int, dict[str, float]], None] | None = None
) -> int:
    """Evaluate the epochs of a run's CTC training until the training ends.

    The training may run on another machine. The function also returns when the training is
    restarted. If the training was stopped, the function waits until it continues.

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
    normaliser = Cmvn.load(run / plan.normaliser)
    readers = ReaderConfig(utterances_per_batch=plan.batch, readers=0, pad_to=plan.pad_to)
    evaluation = HeldOutEvaluation(
        RecordSource(run / plan.records, readers, 0, normaliser).longest_first(),
        make_recognition(
            units,
            plan.width,
            usable_cpus(),
            plan.evaluation,
            SearchFiles(run / plan.words, run / plan.arpa),
        ),
        CtcLoss(units.blank, plan.weight),
    )
    return evaluate_elsewhere(training, evaluation, device, plan=text, on_result=on_result)


def _training(run: Path) -> Path:
    """Find the folder of a run's training; an unfinished training run takes precedence."""
    for parent, pattern in ((RunDirectory(run).partials, "[0-9]*/*"), (run, "*")):
        trainings = [path for path in sorted(parent.glob(pattern)) if EvaluationFolder(path).plan()]
        if len(trainings) > 1:
            names = ", ".join(map(str, trainings))
            raise TrainingError(
                f"{run} contains several training runs to evaluate ({names}): move all but one out "
                "of the run directory"
            )
        if trainings:
            return trainings[0]
    raise TrainingError(
        f"{run} contains no training run that a separate command evaluates: start a recipe with "
        "`train.states.evaluator=elsewhere`, and run this command after its training stage has "
        "begun"
    )
