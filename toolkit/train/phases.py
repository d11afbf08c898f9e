"""Trainings of one model one after the other, each on data of its own."""

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from toolkit.parallel.batch import Batch, DataSource
from toolkit.parallel.strategy import SingleProcess, Strategy
from toolkit.storage.files import write_atomically
from toolkit.train.config import TrainerConfig
from toolkit.train.loop import Trainer
from toolkit.train.monitor import Progress
from toolkit.train.objectives import Objective
from toolkit.train.schedule import Schedule

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Phase:
    """One training."""

    data: DataSource
    """Its batches."""
    config: TrainerConfig
    """Its epochs and learning rates."""
    out: Path
    """Folder of this phase alone."""
    schedule: Schedule | None = None
    """Its learning rate; by default that of `config`."""


class Phases:
    """Runs phases on a model; one after which the held-out score is lower is undone.

    A run that was killed goes through the finished phases at once, since their checkpoints stay
    until `clean`, and continues in the one it was in.

    Args:
      model: with its initial weights; takes the chosen ones.
      objective: what is minimised.
      phases: the first one's folder gets `history.json` with the epochs of all.
      valid: held-out batches, or None.
      device: where to compute.
      progress: told (steps done, steps of all phases).
      strategy: data-parallel method; one process by default.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        phases: Sequence[Phase],
        valid: Iterable[Batch] | None,
        device: torch.device | str,
        progress: Progress | None,
        strategy: Strategy | None = None,
    ) -> None:
        self._model = model
        self._objective = objective
        self._phases = phases
        self._valid = valid
        self._device = device
        self._progress = progress
        self._strategy = SingleProcess() if strategy is None else strategy
        self._trainers: list[Trainer] = []
        self.history: list[dict[str, float]] = []
        """A record per epoch of all phases."""

    def run(self) -> list[dict[str, float]]:
        """Train to the end; return the last record of each phase, see `Trainer.run`."""
        _, ranks = self._strategy.part()
        steps = [sum(p.data.steps(e, ranks) for e in range(p.config.epochs)) for p in self._phases]
        records: list[dict[str, float]] = []
        for number, phase in enumerate(self._phases):
            before = {name: x.detach().clone() for name, x in self._model.state_dict().items()}
            trainer = Trainer(
                self._model,
                self._objective,
                phase.data,
                phase.config,
                phase.out,
                device=self._device,
                valid=self._valid,
                strategy=self._strategy,
                progress=self._shifted(sum(steps[:number]), sum(steps)),
                schedule=phase.schedule,
            )
            self._trainers.append(trainer)
            record = trainer.run()
            done = len(self.history)
            self.history += [{**r, "epoch": done + r["epoch"]} for r in trainer.history]
            best = max((r["score"] for r in records), default=record["score"])
            if record["score"] < best:
                logger.warning(
                    "phase %d did harm (held out: %.4f -> %.4f): the weights before it are kept",
                    *(number + 1, best, record["score"]),
                )
                self._model.load_state_dict(before)
            records.append(record)
        if len(self._phases) > 1:
            path = self._phases[0].out / "history.json"
            write_atomically(path, json.dumps(self.history, indent=1) + "\n")
        return records

    def clean(self) -> None:
        """Remove the checkpoints, once what they led to is stored elsewhere."""
        for trainer in self._trainers:
            trainer.clean()

    def _shifted(self, done: int, total: int) -> Progress | None:
        progress = self._progress
        return None if progress is None else lambda step, _: progress(done + step, total)
