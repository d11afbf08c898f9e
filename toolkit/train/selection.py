"""Selection of the final weights: the best epoch's, or the average of the last epochs'."""

import logging
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from toolkit.models.store import storable
from toolkit.storage.files import write_atomically

logger = logging.getLogger(__name__)


def score_of(means: dict[str, float], prefix: str = "") -> float:
    """Return the score, higher is better: accuracy, else objective, else minus the loss, else 0."""
    scores = (means.get(f"{prefix}{name}") for name in ("accuracy", "objective"))
    loss = means.get(f"{prefix}loss", 0.0)
    return next((score for score in scores if score is not None), -loss)


class EpochModels:
    """Stored weights of the epochs that may still be selected.

    Args:
      folder: of the stored weights.
      average_epochs: number of last epochs that are averaged; 1: no averaging.
      prefer_average: see `TrainerConfig`.
    """

    def __init__(self, folder: Path, average_epochs: int, prefer_average: bool = False) -> None:
        self._folder = Path(folder)
        self._average_epochs = average_epochs
        self._prefer_average = prefer_average

    def add(self, model: nn.Module, scores: list[float]) -> None:
        """Store the weights of the newest epoch, and remove those that cannot be selected any more.

        The best epoch before the newest is kept as well: a run that is killed before the epoch's
        checkpoint repeats that epoch, on a GPU maybe with a lower score.

        Args:
          model: after epoch len(scores) - 1.
          scores: of all epochs so far; higher is better, the latest wins ties.
        """
        newest = len(scores) - 1
        write_atomically(self._path(newest), save(storable(model.state_dict())))
        best = {_best(scores), _best(scores[:-1] or scores)}
        needed = {*range(newest - self._average_epochs + 1, newest + 1), *best}
        for path in self._folder.glob("model-*.safetensors"):
            if path not in map(self._path, needed):
                path.unlink(missing_ok=True)

    def choose(
        self, model: nn.Module, scores: list[float], evaluate: Callable[[], float]
    ) -> tuple[str, float]:
        """Load into `model` the weights of the best epoch or, if better, the average.

        The average is over the weights of the last `average_epochs` epochs, in float64. Thus an
        epoch that lowered the score never decides the result. With `prefer_average` the average
        counts as better where it scores no less than the worst of these epochs.

        Args:
          model: gets the weights.
          scores: of all epochs; all 0: nothing is held out, and the average is taken.
          evaluate: returns the score of the weights in `model`.

        Returns:
          A description of the selected weights, and their score.
        """
        best = _best(scores)
        number = min(self._average_epochs, len(scores))
        chosen = (f"epoch {best + 1}", scores[best])
        if number > 1:
            average = _average([self._load(e) for e in range(len(scores) - number, len(scores))])
            model.load_state_dict(average)
            score = evaluate()
            if any(scores):
                logger.info("average of the last %d epochs: %.4f, %s: %.4f", number, score, *chosen)
            if score >= (min(scores[-number:]) if self._prefer_average else scores[best]):
                return f"average of the last {number} epochs", score
        model.load_state_dict(self._load(best))
        return chosen

    def remove(self) -> None:
        """Remove the stored weights."""
        for path in self._folder.glob("model-*.safetensors"):
            path.unlink(missing_ok=True)

    def _path(self, epoch: int) -> Path:
        return self._folder / f"model-{epoch:04d}.safetensors"

    def _load(self, epoch: int) -> dict[str, Tensor]:
        return load(self._path(epoch).read_bytes())


def _best(scores: list[float]) -> int:
    """Return the index of the highest score; the latest wins ties."""
    return max(range(len(scores)), key=lambda epoch: (scores[epoch], epoch))


def _average(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {
        name: torch.stack([state[name].double() for state in states]).mean(dim=0).to(value.dtype)
        for name, value in states[0].items()
    }
