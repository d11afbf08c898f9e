"""Phases: consecutive trainings of one model, each with its own data and learning rates."""

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from toolkit.parallel.strategy import BatchSource, Strategy
from toolkit.storage.files import write_atomically
from toolkit.train.batches import Batch
from toolkit.train.config import TrainerConfig
from toolkit.train.loop import Trainer
from toolkit.train.monitor import Progress
from toolkit.train.objectives import Objective
from toolkit.train.schedule import Schedule

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Phase:
    """One phase."""

    data: BatchSource
    """Its training data."""
    config: TrainerConfig
    """Its epochs and learning rates."""
    out: Path
    """Folder of this phase alone."""
    schedule: Schedule | None = None
    """Its learning rate schedule; by default that of `config`."""


class Phases:
    """Runs phases on a model; a phase that lowers the held-out score is undone.

    A resumed run skips the finished phases, since their checkpoints are kept until `clean`, and
    continues in the interrupted one.

    Args:
      model: with its initial weights; gets the selected ones.
      objective: the loss.
      phases: the first phase's folder gets `history.json` with the epochs of all phases.
      valid: held-out batches, or None.
      device: device to train on.
      progress: called as progress(steps done, steps of all phases).
      strategy: data-parallel method; one process by default.
      given: see `Trainer`.
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
        given: dict[str, Any] | None = None,
    ) -> None:
        self._model = model
        self._objective = objective
        self._phases = phases
        self._valid = valid
        self._device = device
        self._progress = progress
        self._strategy = Strategy() if strategy is None else strategy
        self._given = given
        self._trainers: list[Trainer] = []
        self.history: list[dict[str, float]] = []
        """A record per epoch of all phases."""

    def run(self) -> list[dict[str, float]]:
        """Train to the end; return the last record of each phase, see `Trainer.run`."""
        world_size = self._strategy.world_size
        steps = [
            sum(p.data.num_steps(e, world_size) for e in range(p.config.epochs))
            for p in self._phases
        ]
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
                given=self._given,
            )
            self._trainers.append(trainer)
            record = trainer.run()
            done = len(self.history)
            self.history += [{**r, "epoch": done + r["epoch"]} for r in trainer.history]
            best = max((r["score"] for r in records), default=record["score"])
            if record["score"] < best:
                logger.warning(
                    "phase %d lowered the held-out score (%.4f -> %.4f): its weights are dropped",
                    *(number + 1, best, record["score"]),
                )
                self._model.load_state_dict(before)
            records.append(record)
        if len(self._phases) > 1:
            path = self._phases[0].out / "history.json"
            write_atomically(path, json.dumps(self.history, indent=1) + "\n")
        return records

    def clean(self) -> None:
        """Remove the checkpoints, after the final model has been stored."""
        for trainer in self._trainers:
            trainer.clean()

    def _shifted(self, done: int, total: int) -> Progress | None:
        progress = self._progress
        return None if progress is None else lambda step, _: progress(done + step, total)
