"""The files of a training run: checkpoints, weights of epochs, and the headline that marks its end.

A checkpoint is nested dicts and lists of tensors and plain values in one safetensors file.
"""

import json
import logging
import os
import re
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from toolkit.config.settings import result_parameters
from toolkit.models.ctc import MaskedBatchNorm
from toolkit.models.store import storable
from toolkit.processes import ranks
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_json, read_tensors, reading, validated
from toolkit.train.config import TrainerConfig
from toolkit.train.errors import TrainingError

logger = logging.getLogger(__name__)
HEADLINE = "headline.json"
NUM_CHECKPOINTS = 2
"""Number of checkpoints that are kept: the newest, and the one before it in case of damage."""
MAX_BATCHES = 200
"""Largest number of batches from which statistics of batch normalisation are estimated."""
_NAME = re.compile(r"epoch-(\d+)-step-(\d+)\.safetensors")
_RANK_NAME = re.compile(r"epoch-(\d+)-step-(\d+)\.rank-\d+\.safetensors")


def write_state(path: Path, state: dict[str, Any], every_rank: bool = False) -> None:
    """Write nested dicts (with str or int keys) and lists atomically, bit for bit.

    Tensors are moved to the CPU; everything else goes to the file's header as JSON. Keys keep
    their types, so that an optimizer's state is restored unchanged. With `every_rank`, ranks other
    than 0 write too.
    """
    tensors: dict[str, Tensor] = {}
    # safetensors stores named tensors and strings: the nesting becomes one JSON string.
    tree = _split(state, "", tensors)
    write_atomically(
        path, save(storable(tensors), metadata={"plain": json.dumps(tree)}), every_rank
    )


def read_state(path: Path) -> dict[str, Any]:
    """Read what `write_state` wrote; tensors are on the CPU.

    Raises:
      TrainingError: the file is damaged.
    """
    with reading(path, TrainingError, "remove it to go on", "not a checkpoint"):
        tensors, metadata = read_tensors(path, {})
        return validated(_join(json.loads(metadata["plain"]), tensors), dict)


class Checkpoints:
    """The checkpoints of one training in a folder; the newest two are kept.

    A checkpoint is a file of the common state. If the ranks' states differ, each rank has a file of
    its own beside it; the common file is written last.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = Path(folder)

    def save(self, epoch: int, step: int, state: dict[str, Any]) -> None:
        """Write the state after `step` steps of `epoch`, then remove old checkpoints.

        Checkpoints of later steps are removed, too: with more workers a training run resumes from a
        lower step number.
        """
        write_state(self._folder / f"{_stem(epoch, step)}.safetensors", state)
        stored = self._stored(_NAME)
        reached = [position for position, _ in stored if position <= (epoch, step)]
        newest = set(reached[-NUM_CHECKPOINTS:])
        for position, path in stored + self._stored(_RANK_NAME):
            if position not in newest:
                path.unlink(missing_ok=True)

    def save_rank(self, epoch: int, step: int, rank: int, state: dict[str, Any]) -> None:
        """Write the state of one rank; all ranks must have done so before `save`."""
        write_state(self._rank_path(epoch, step, rank), state, every_rank=True)

    def load_rank(self, epoch: int, step: int, rank: int) -> dict[str, Any]:
        """Read what `save_rank` wrote.

        Raises:
          TrainingError: the file is damaged or missing.
        """
        path = self._rank_path(epoch, step, rank)
        if not path.exists():
            raise TrainingError(
                f"{path}, the state of worker {rank} in the checkpoint, is missing: restore it, "
                f"or remove {_stem(epoch, step)}.safetensors to resume from the previous "
                "checkpoint"
            )
        return read_state(path)

    def load_latest(self) -> dict[str, Any] | None:
        """Read the newest checkpoint; None when there is none."""
        stored = self._stored(_NAME)
        return read_state(stored[-1][1]) if stored else None

    def _rank_path(self, epoch: int, step: int, rank: int) -> Path:
        return self._folder / f"{_stem(epoch, step)}.rank-{rank:04d}.safetensors"

    def _stored(self, pattern: re.Pattern) -> list[tuple[tuple[int, int], Path]]:
        """List the files of a kind, oldest first."""
        matches = [(pattern.fullmatch(path.name), path) for path in self._folder.glob("*")]
        return sorted((tuple(map(int, m.groups())), path) for m, path in matches if m)


def selection_score(metrics: dict[str, float]) -> float:
    """Return the score that selects weights (the highest wins).

    It is the accuracy, else the objective, else minus the loss, else 0.
    """
    scores = (metrics.get(name) for name in ("accuracy", "objective"))
    return next((score for score in scores if score is not None), -metrics.get("loss", 0.0))


def held_out_metrics(record: dict[str, float]) -> dict[str, float]:
    """Return the held-out metrics of an epoch's record, without their prefix."""
    prefix = "valid_"
    return {n.removeprefix(prefix): x for n, x in record.items() if n.startswith(prefix)}


class EpochWeights:
    """Stored weights of the epochs that may still be selected.

    Args:
      folder: folder of the stored weights.
      average_epochs: number of last epochs that are averaged; 1: no averaging.
      prefer_average: see `TrainerConfig`.
    """

    def __init__(self, folder: Path, average_epochs: int, prefer_average: bool = False) -> None:
        self._folder = Path(folder)
        self._average_epochs = average_epochs
        self._prefer_average = prefer_average

    def save(self, model: nn.Module, history: list[dict[str, float]]) -> None:
        """Store the weights of the newest epoch, and remove those that cannot be selected any more.

        The best epoch before the newest is kept as well: a run that is killed before the newest
        epoch's checkpoint repeats that epoch, on a GPU possibly with a lower score.

        Args:
          model: the model after epoch len(history) - 1.
          history: a record per epoch; of equal scores the latest counts as the best.
        """
        scores = [selection_score(held_out_metrics(record)) for record in history]
        newest = len(scores) - 1
        write_atomically(self._path(newest), save(storable(model.state_dict())))
        best = {_best(scores), _best(scores[:-1] or scores)}
        # The last epochs for the average, and the best one
        needed = {*range(newest - self._average_epochs + 1, newest + 1), *best}
        for path in self._folder.glob("model-*.safetensors"):
            if path not in map(self._path, needed):
                path.unlink(missing_ok=True)

    def select(
        self,
        model: nn.Module,
        history: list[dict[str, float]],
        evaluate: Callable[[], dict[str, float]],
    ) -> tuple[str, dict[str, float]]:
        """Load the best epoch's weights into `model`, or the average if that scores no lower.

        The average is over the weights of the last `average_epochs` epochs, in float64. Thus an
        epoch that lowered the score never decides the result. With `prefer_average`, the average
        is taken if it scores no lower than the worst of the averaged epochs.

        Args:
          model: gets the weights.
          history: a record per epoch; without held-out metrics the average is taken.
          evaluate: returns the held-out metrics of the weights in `model`.

        Returns:
          A description of the selected weights, and their held-out metrics.
        """
        metrics = [held_out_metrics(record) for record in history]
        scores = [selection_score(epoch_metrics) for epoch_metrics in metrics]
        best = _best(scores)
        number = min(self._average_epochs, len(scores))
        if number > 1:
            # The average is kept only if it scores no lower than the score chosen below.
            average = _average([self._load(e) for e in range(len(scores) - number, len(scores))])
            model.load_state_dict(average)
            average_metrics = evaluate()
            score = selection_score(average_metrics)
            if any(scores):  # all are 0 without held-out data
                logger.info(
                    "held-out score of the average of the last %d epochs: %.4f, of epoch %d: %.4f",
                    number,
                    score,
                    best + 1,
                    scores[best],
                )
            if score >= (min(scores[-number:]) if self._prefer_average else scores[best]):
                return f"average of the last {number} epochs", average_metrics
        model.load_state_dict(self._load(best))
        return f"epoch {best + 1}", metrics[best]

    def _path(self, epoch: int) -> Path:
        return self._folder / f"model-{epoch:04d}.safetensors"

    def _load(self, epoch: int) -> dict[str, Tensor]:
        return load(self._path(epoch).read_bytes())


def update_batch_norm(
    model: nn.Module,
    batches: Iterable[Any],
    device: torch.device,
    compute_loss: Callable[[Any], object],
) -> None:
    """Re-estimate the running means and variances of a model's batch normalisations.

    The statistics of an averaged network are not the average of the networks' statistics. As in
    Kaldi's nnet3-combine, they are estimated on training data without dropout, here over the first
    `MAX_BATCHES` batches with equal weights. Every rank uses the same batches, so that all ranks
    have the same statistics. A model without batch normalisation is not changed.

    Args:
      model: the model to change; it is in evaluation mode afterwards.
      batches: training batches; no more than needed are read. Do not pass those of an epoch that
        begins with the shortest utterances.
      device: device of the model.
      compute_loss: runs the model on a batch.
    """
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d | MaskedBatchNorm)]
    model.eval()
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    try:
        # Only the normalisations are in training mode: they update statistics, dropout is off.
        for norm in norms:
            norm.train()
        with torch.no_grad():
            for number, batch in enumerate(islice(batches, MAX_BATCHES), 1):
                for norm in norms:
                    # m_n = m_(n-1) + (x_n - m_(n-1)) / n: the mean of all batches so far
                    norm.momentum = 1 / number
                compute_loss(batch.to(device))
    finally:
        model.eval()
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


def training_identity(config: TrainerConfig, **more: Any) -> dict[str, Any]:
    """Return what a training run depends on, its settings and `more`, as read back from JSON."""
    return json.loads(json.dumps({**result_parameters(config), **more}))


def changed_settings(stored: dict[str, Any], present: dict[str, Any]) -> list[str]:
    """Return the names of what differs between two identities of training runs."""
    names = sorted(present.keys() | stored.keys())
    return [name for name in names if stored.get(name) != present.get(name)]


def finished_headline(out: Path, identity: dict[str, Any]) -> dict[str, float] | None:
    """Return the headline of a training run that finished in `out` with this identity, else None.

    Also removes checkpoints that a kill during their removal left behind.
    """
    path = out / HEADLINE
    if not os.path.lexists(path):
        return None
    with reading(path, TrainingError, "remove it to go on"):
        stored = read_json(path, {"settings": {str: Any}, "headline": {str: Any}})
    if stored["settings"] != identity:
        return None
    _remove_checkpoints(out)
    return stored["headline"]


def finish_training(
    out: Path, identity: dict[str, Any], headline: dict[str, float]
) -> dict[str, float]:
    """Mark a training run as finished, after its results are stored; return the headline.

    Removes the checkpoints of all its phases.
    """
    stored = {"settings": identity, "headline": headline}
    write_atomically(out / HEADLINE, json.dumps(stored, indent=1) + "\n")
    if ranks.rank() == 0:
        _remove_checkpoints(out)
    return headline


def _remove_checkpoints(out: Path) -> None:
    """Delete the checkpoints of a finished training run."""
    for path in out.rglob("checkpoints/*.safetensors"):
        path.unlink(missing_ok=True)


def _stem(epoch: int, step: int) -> str:
    """Return the beginning of a checkpoint's file name."""
    return f"epoch-{epoch:04d}-step-{step:08d}"


def _split(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Split nested containers into tensors and JSON, which tags the kind of each container."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return ["tensor", name]
    if isinstance(value, dict):
        # [key, value] pairs: the keys of a JSON object would all become strings.
        items = [[key, _split(item, f"{name}/{key}", tensors)] for key, item in value.items()]
        return ["dict", items]
    if isinstance(value, (list, tuple)):
        items = [_split(item, f"{name}/{i}", tensors) for i, item in enumerate(value)]
        return ["list", items]
    return ["value", value]


def _join(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """Restore what `_split` took apart; tuples come back as lists."""
    kind, value = tree
    if kind == "tensor":
        return tensors[value]
    if kind == "dict":
        return {key: _join(item, tensors) for key, item in value}
    if kind == "list":
        return [_join(item, tensors) for item in value]
    return value


def _best(scores: list[float]) -> int:
    """Return the index of the highest score; the latest wins ties."""
    return max(range(len(scores)), key=lambda epoch: (scores[epoch], epoch))


def _average(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Average the weights of some epochs."""
    # In float64: [epochs, ...] to the mean, rounded once
    return {
        name: torch.stack([state[name].double() for state in states]).mean(dim=0).to(value.dtype)
        for name, value in states[0].items()
    }
