"""The training loop: epochs, validation, checkpoints, exact resumption."""

import json
import logging
import zlib
from collections.abc import Iterable
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from toolkit.config.settings import parameters_of
from toolkit.models.semi_orthogonal import constrain
from toolkit.parallel.strategy import CHECKPOINT, BatchSource, Strategy
from toolkit.storage.files import write_atomically
from toolkit.train.batch_statistics import estimate_statistics
from toolkit.train.batches import Batch, load_ahead
from toolkit.train.checkpoint import Checkpoints
from toolkit.train.config import TrainerConfig, changed_settings, load_optimizer, make_optimizer
from toolkit.train.errors import TrainingDataError, TrainingError, no_step
from toolkit.train.finite import FiniteCheck, not_finite
from toolkit.train.metrics import accumulate, means
from toolkit.train.monitor import EpochMonitor, Monitor, Progress, log_epoch
from toolkit.train.objectives import Objective
from toolkit.train.observer import DefaultObserver, Observer
from toolkit.train.precision import Precision
from toolkit.train.schedule import Schedule, decaying
from toolkit.train.selection import EpochModels, score_of
from toolkit.train.validation import held_out_means

logger = logging.getLogger(__name__)


class Trainer:
    """Trains a model and leaves the selected weights in it.

    Every step is a function of (seed, epoch, step), so that a run that was killed and resumed ends
    on the CPU with bitwise the same weights as one that was not. Writes into `out`: checkpoints
    (`checkpoints/`), `history.json` with a record per epoch, TensorBoard events (`tensorboard/`).

    Several ranks share the training according to the strategy. Only rank 0 writes, except for the
    ranks' own parts of checkpoints. A training can be resumed with another world size, from the
    last checkpoint at the same position in the epoch; some batches may then be seen twice.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        data: BatchSource,
        config: TrainerConfig,
        out: Path,
        *,
        device: torch.device | str = "cpu",
        valid: Iterable[Batch] | None = None,
        strategy: Strategy | None = None,
        progress: Progress | None = None,
        observer: Observer | None = None,
        schedule: Schedule | None = None,
        given: dict[str, Any] | None = None,
    ) -> None:
        """Prepare to train or to resume.

        Args:
          model: with its initial weights.
          objective: the loss.
          data: source of the training batches.
          config: optimizer, rates, epochs.
          out: folder of this training alone; an interrupted run in it is resumed.
          device: device to train on.
          valid: held-out batches, iterated over after each epoch; without them the last weights
            are kept.
          strategy: data-parallel method; one process by default.
          progress: called from time to time as progress(steps done, total steps).
          observer: hooks for checkpoints and validation; by default `DefaultObserver`.
          schedule: the learning rate of every step; by default it decays exponentially from the
            first step to the last.
          given: what else the training depends on; a run with other values is not resumed.
        """
        self._device = torch.device(device)
        self._model = model.to(self._device)
        self._objective = objective
        self._ahead = partial(load_ahead, device=self._device)
        self._data = data
        self._config, self._given = config, given or {}
        self._out = Path(out)
        self._valid = valid
        self._strategy = Strategy() if strategy is None else strategy
        self._observer = DefaultObserver() if observer is None else observer
        own = decaying(*config.rates(), config.warmup_steps)
        self._schedule = own if schedule is None else schedule
        self._rank, self._world_size = self._strategy.rank, self._strategy.world_size
        self._precision = Precision(config, self._device, self._world_size)
        self._optimizer = make_optimizer(model, config)
        self._batches = [data.num_steps(epoch) for epoch in range(config.epochs)]
        self._steps = [data.num_steps(epoch, self._world_size) for epoch in range(config.epochs)]
        if min(self._steps) == 0:
            raise TrainingDataError(no_step(self._world_size))
        self._checkpoints = Checkpoints(self._out / "checkpoints")
        self._epoch_models = EpochModels(
            self._out / "checkpoints", config.average_epochs, config.prefer_average
        )
        shown = self._rank == 0
        self._monitor = Monitor(self._out, sum(self._steps), progress if shown else None, shown)
        self._epoch = self._step = 0  # position of the next step
        self._sums: dict[str, Tensor] = {}  # statistics of the epoch so far, float64 on the device
        self._finite = FiniteCheck(self._device)
        self._saved = monotonic()
        self.history: list[dict[str, float]] = []
        """A record per finished epoch."""

    def run(self) -> dict[str, float]:
        """Train to the end.

        Returns:
          The record of the last epoch, with `score`, the selected weights' held-out accuracy (or
          minus the loss, for objectives without accuracy).

        Raises:
          TrainingError: the loss or a gradient is not finite, or `out` holds another run.
        """
        failed = True
        try:
            self._strategy.start(self._model, self._optimizer)
            self._resume()
            self._monitor.start(self.steps_done())
            self._observer.begin(self)
            with self._precision.used():
                while self._epoch < self._config.epochs:
                    self._train_epoch()
            self._observer.end(self)
            self._store_history()
            self._strategy.barrier()  # until rank 0 has stored the last epoch's weights
            chosen, score = self._epoch_models.choose(
                self._model, self._scores(), self._measure_average
            )
            self._strategy.barrier()  # until all have read them, before rank 0 removes them
            failed = False
        finally:
            self._observer.stop()
            self._strategy.stop(failed)
            self._monitor.close()
        self._monitor.report_progress(sum(self._steps))
        told = f"score {score:.4f}" if "valid_loss" in self.history[-1] else "nothing is held out"
        logger.info("kept %s, %s", chosen, told)
        return {**self.history[-1], "score": score}

    def clean(self) -> None:
        """Remove the checkpoints, after the final model has been stored."""
        if self._rank == 0:
            self._checkpoints.remove()
            self._epoch_models.remove()

    @property
    def model(self) -> nn.Module:
        """The model."""
        return self._model

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer."""
        return self._optimizer

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self._device

    @property
    def epoch(self) -> int:
        """The current epoch, counted from 1."""
        return self._epoch + 1

    def steps_done(self) -> int:
        """Return the number of steps taken, over all epochs."""
        return sum(self._steps[: self._epoch]) + self._step

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Take one optimizer step on a batch that is on the device.

        Returns:
          The objective's stats, and `loss`.
        """
        seed = f"{self._config.seed} {self._epoch} {self._step} {self._rank}"
        torch.manual_seed(zlib.crc32(seed.encode()))  # for dropout
        rate = self._rate(self._strategy.position(self._step))
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.zero_grad(set_to_none=True)
        try:
            loss, stats = self._compute(batch)
            self._strategy.backward(self._precision.scaled(loss), stats["weight"])
        except torch.cuda.OutOfMemoryError as error:
            raise TrainingError(
                f"the GPU has too little memory for a batch of {batch.frames} frames (of"
                f" {batch.ids[0]} and others): choose smaller batches; {error}"
            ) from error
        norm, usable = self._precision.clip(self._model, self._config.max_gradient_norm)
        if usable:
            self._optimizer.step()
            self._strategy.after_step()
            if not self._strategy.applies_constraints:
                constrain(self._model, self.steps_done())
        self._check(self._finite.known())
        self._finite.add(loss.detach() + (norm if usable else 0), batch)
        stats = {"loss": loss.detach(), **stats}
        accumulate(self._sums, stats | {"gradient_norm": self._weighted(norm, usable, stats)})
        return stats

    @staticmethod
    def _weighted(norm: Tensor, usable: bool, stats: dict[str, Tensor]) -> Tensor:
        """Return the norm before clipping times the batch's weight, 0 for a step not taken."""
        return (norm.detach().to(stats["loss"].device) if usable else 0.0) * stats["weight"]

    def evaluate(self) -> dict[str, float]:
        """Average the objective over the held-out batches, which are divided among the ranks.

        Returns:
          See `held_out_means`, whose errors it raises.
        """
        mine = islice(self._valid or (), self._rank, None, self._world_size)
        batches = (batch.to(self._device) for batch in self._ahead(mine))
        return held_out_means(self._model, batches, self._compute, self._strategy, self._epoch)

    def _measure_average(self) -> float:
        last = self._config.epochs - 1
        with closing(self._ahead(self._data.batches(last))) as batches:
            estimate_statistics(self._model, batches, self._device, self._compute)
        return score_of(self._observer.measure(self))

    def _train_epoch(self) -> None:
        epoch, config = self._epoch, self._config
        title = f"epoch {epoch + 1}/{config.epochs}"
        before = sum(self._steps[:epoch])
        monitor = self._monitor.epoch(title, self._steps[epoch], self._step, before)
        # Other observers need equal numbers of steps on all ranks.
        may_share = isinstance(self._observer, DefaultObserver)
        batches = self._strategy.batches(self._data, epoch, self._step, self._ahead, may_share)
        self._model.train()
        try:
            for batch in monitor.timed(batches):
                if batch is CHECKPOINT:
                    self.checkpoint()
                    continue
                stats = self.update(batch.to(self._device))
                self._step += 1
                monitor.step(batch.frames, self._values)
                overdue = monotonic() - self._saved >= config.checkpoint_seconds
                overdue = self._strategy.agree_on_checkpoint(overdue)
                self._observer.after_step(self, batch, stats, overdue)
        finally:
            batches.close()
            monitor.close()
        self._check(self._finite.all())
        self._step = self._strategy.position(self._step)
        self._finish_epoch(monitor)

    def _compute(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        with self._precision.autocast():
            return self._objective(self._model, batch)

    def _check(self, batch: Batch | None) -> None:
        """Stop at the first batch whose loss or gradient norm was not finite, if there is one.

        Raises:
          TrainingError: it was found; no checkpoint has been written since.
        """
        if batch is None:
            return
        name = "bad_batch" if self._rank == 0 else f"bad_batch-{self._rank}"
        path = self._out / "checkpoints" / f"{name}.safetensors"
        batch.save(path)
        raise TrainingError(not_finite(batch, path, self._epoch + 1, self._world_size))

    def _finish_epoch(self, monitor: EpochMonitor) -> None:
        """Validate, then store the epoch's record, weights and checkpoint."""
        self._strategy.end_epoch()
        self._observer.after_epoch(self)
        record = {
            "epoch": self._epoch + 1,
            **means(self._strategy.sum_over_ranks(self._sums)),
            "rate": self._rate(self._step - 1),
        }
        record |= {"seconds": monitor.seconds(), **monitor.rates(), **self._strategy.report()}
        speed = torch.tensor(record["frames_per_second"], dtype=torch.float64)
        record["frames_per_second"] = self._strategy.sum_over_ranks({"": speed})[""].item()
        with self._strategy.consensus():
            record |= {
                f"valid_{name}": value for name, value in self._observer.validate(self).items()
            }
            self.history.append(record)
            if self._rank == 0:
                self._epoch_models.add(self._model, self._scores())
        log_epoch(self._config.epochs, record)
        self._epoch, self._step, self._sums = self._epoch + 1, 0, {}
        self._monitor.events(self.steps_done(), {f"epoch/{k}": v for k, v in record.items()})
        self._store_history()
        self._strategy.barrier()  # rank 0 may take long to validate
        self.checkpoint()

    def _store_history(self) -> None:
        if self._rank == 0:
            text = json.dumps(self.history, indent=1) + "\n"
            write_atomically(self._out / "history.json", text)

    def _scores(self) -> list[float]:
        return [score_of(record, "valid_") for record in self.history]

    def _values(self) -> dict[str, float]:
        return means(self._sums)

    def _rate(self, step: int) -> float:
        factor = self._config.parallel.rate_factor(self._world_size)
        return factor * self._schedule(self._epoch, step, self._steps)

    def can_checkpoint(self) -> bool:
        """Whether `checkpoint` can write a checkpoint now."""
        return self._strategy.can_checkpoint()

    def checkpoint(self) -> None:
        """Write a checkpoint (on every rank), if `can_checkpoint`."""
        if not self.can_checkpoint():
            return
        self._check(self._finite.all())
        self._saved = monotonic()
        own = self._strategy.rank_state_dict()
        wrote = self._strategy.sum_over_ranks({str(self._rank): torch.ones(())} if own else {})
        position = self._epoch, self._strategy.position(self._step)
        state = {
            "run": self._identity(),
            "ranks": self._world_size,
            "own": sorted(map(int, wrote)),
            "epoch": position[0],
            "step": position[1],
            "sums": self._strategy.sum_over_ranks(self._sums),
            "history": self.history,
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "strategy": self._strategy.state_dict(),
            "precision": self._precision.state_dict(),
            "observer": self._observer.state_dict(),
        }
        if own:
            self._checkpoints.save_rank_state(*position, self._rank, own)
        if wrote:
            self._strategy.barrier()
        if self._rank == 0:
            self._checkpoints.save(*position, state)
        self._strategy.barrier()  # rank 0 may take long to write

    def _resume(self) -> None:
        """Restore the newest checkpoint, if there is one."""
        state = self._checkpoints.latest()
        if state is None:
            return
        stored = {**self._given, **state["run"]}  # earlier versions stored none of it
        differing = changed_settings(self._config, stored, self._identity())
        if differing:
            raise TrainingError(
                f"{self._out} holds a training with other settings ({', '.join(differing)}): "
                "remove the folder to start anew, or restore the settings to resume it"
            )
        position, old_size = (state["epoch"], state["step"]), state["ranks"]
        self._epoch, self._step = position
        if self._step and old_size != self._world_size:  # no more of the epoch than was seen
            before = self._data.num_steps(self._epoch, old_size)
            self._step = self._step * self._steps[self._epoch] // before
        self._sums = {
            name: value.to(self._device) * (self._rank == 0)
            for name, value in state["sums"].items()
        }
        self.history = state["history"]
        self._observer.load_state_dict(state["observer"])
        self._model.load_state_dict(state["model"])
        load_optimizer(self._optimizer, state["optimizer"])
        self._precision.load_state_dict(state.get("precision", {}))
        mine = range(self._rank, old_size, self._world_size)  # this rank alone for equal sizes
        wrote = state.get("own", range(old_size if old_size > 1 else 0))  # not in version 0.1
        own = [self._checkpoints.load_rank_state(*position, rank) for rank in mine if rank in wrote]
        self._strategy.load_state_dict(state["strategy"], own)
        self._strategy.barrier()  # before rank 0 writes the next checkpoint and removes this one
        logger.info("continuing at epoch %d, step %d", self._epoch + 1, self._step)
        if old_size != self._world_size:
            logger.info("with %d workers, %d before", self._world_size, old_size)

    def _identity(self) -> dict[str, Any]:
        """Return the settings that may not change when a training is resumed."""
        described = parameters_of(self._config)
        described["amp"] = self._precision.name  # resolves `auto`
        shapes = {name: list(x.shape) for name, x in self._model.state_dict().items()}
        return {**described, "steps per epoch": self._batches, "model": shapes, **self._given}
