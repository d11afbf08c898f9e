"""The training loop: steps, epochs, validation, checkpoints and exact resumption.

`fit` is the loop of every training. Criteria differ in the objective, the source of batches and,
for CTC, the callback.
"""

import json
import logging
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn

from toolkit.config.settings import result_parameters
from toolkit.models.tdnnf import constrain
from toolkit.parallel.strategy import CHECKPOINT, BatchSource, Strategy, make_strategy
from toolkit.processes.devices import torch_threads
from toolkit.storage.files import write_atomically
from toolkit.train.batches import AccumulatedBatches, load_ahead, micro_batches
from toolkit.train.checkpoints import (
    Checkpoints,
    EpochWeights,
    changed_settings,
    selection_score,
    update_batch_norm,
)
from toolkit.train.config import TrainerConfig
from toolkit.train.errors import TrainingDataError, TrainingError, no_step
from toolkit.train.monitor import EpochMonitor, Monitor, Progress, log_epoch
from toolkit.train.optimizer import (
    Schedule,
    learning_rate_schedule,
    load_optimizer,
    make_optimizer,
)
from toolkit.train.precision import NonFiniteDetector, Precision, non_finite_message

logger = logging.getLogger(__name__)

Objective = Callable[[Any, Any], tuple[Tensor, dict[str, Tensor]]]
"""Called as objective(model, batch); returns the loss summed over the batch, with a gradient, and
sums by name, without gradients. A step minimises loss / sums["weight"]; the other sums are reported
divided by that of `weight`."""


@dataclass(frozen=True)
class FitResult:
    """Result of a training run, besides the weights in the model."""

    history: list[dict[str, float]]
    """A record per epoch."""
    selected: dict[str, float]
    """Held-out metrics of the weights that are now in the model; empty without held-out data."""
    score: float
    """`selection_score(selected)`: accuracy, else objective, else minus the loss."""
    initial: dict[str, float]
    """Held-out metrics before the first epoch, with `keep_initial`."""


class Callback:
    """Hooks of the training loop, called on every rank in the same order, and their defaults.

    By default a checkpoint is saved when it is due, and the objective is averaged over the held-out
    batches after every epoch.
    """

    may_share_batches = True
    """Whether ranks may take different numbers of steps."""

    def on_start(self, trainer: "Trainer") -> None:
        """Called when training begins, or resumes after `load_state_dict`."""

    def on_step(
        self, trainer: "Trainer", batch: Any, stats: dict[str, Tensor], checkpoint_due: bool
    ) -> None:
        """Called after every step; must leave the model in training mode.

        Args:
          trainer: the trainer, which can save a checkpoint.
          batch: the batch of the step, not moved to the device.
          stats: the objective's sums and `loss`; scalars on the device.
          checkpoint_due: the last checkpoint is `checkpoint_seconds` old; the same on every rank.
        """
        if checkpoint_due:
            trainer.save_checkpoint()

    def on_epoch_end(self, trainer: "Trainer") -> None:
        """Called after all steps of an epoch, before its validation."""

    def validate(self, trainer: "Trainer") -> dict[str, float]:
        """Evaluate the model after an epoch; return the metrics by which weights are selected.

        A result that is not available yet may be added to `trainer.history` later, before `on_end`
        returns; at most one epoch may be pending.
        """
        return trainer.validate()

    def evaluate(self, trainer: "Trainer") -> dict[str, float]:
        """Evaluate the model now; the result is comparable with that of `validate`."""
        return trainer.validate()

    def on_end(self, trainer: "Trainer") -> None:
        """Called after the last epoch, before the weights are selected."""

    def close(self) -> None:
        """Called when training has ended, successfully or not."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""


def fit(
    model: nn.Module,
    objective: Objective,
    data: BatchSource,
    config: TrainerConfig,
    out: Path,
    *,
    device: torch.device | str = "cpu",
    valid: Iterable[Any] | None = None,
    callback: Callback | None = None,
    strategy: Strategy | None = None,
    schedule: Schedule | None = None,
    identity: dict[str, Any] | None = None,
    keep_initial: bool = False,
    progress: Progress | None = None,
) -> FitResult:
    """Train, or continue what a killed run left in `out`; leave the selected weights in `model`.

    Every step is a function of (seed, epoch, step), so that on the CPU a run that was killed and
    resumed ends with bitwise the same weights as an uninterrupted one. Writes into `out`:
    checkpoints (`checkpoints/`, which `finish_training` removes), `history.json` with a record per
    epoch, TensorBoard events (`tensorboard/`).

    Several ranks share the training according to the strategy. Only rank 0 writes, except for the
    ranks' own parts of checkpoints. A training run can be resumed with another world size: it goes
    on at the last checkpoint's position in the epoch, and some batches may be seen twice.

    Args:
      model: the model with its initial weights.
      objective: computes the loss, see `Objective`.
      data: the training batches.
      config: optimizer, rates, epochs.
      out: folder of this training alone.
      device: device to train on.
      valid: held-out batches, iterated over after each epoch; without them the last weights, or
        their average, are kept.
      callback: hooks for checkpoints and validation.
      strategy: data-parallel method; by default that of `config.parallel`.
      schedule: the learning rate of every step; by default that of `config`.
      identity: what else the training depends on, see `training_identity`; a run with other values
        is not resumed.
      keep_initial: restore the initial weights if they score strictly better than all later ones.
      progress: called from time to time as progress(steps done, total steps).

    Raises:
      TrainingError: the loss or a gradient is not finite, or `out` holds another training.
      TrainingDataError: an epoch has no batch for every rank.
    """
    trainer = Trainer(
        model,
        objective,
        data,
        config,
        out,
        device=device,
        valid=valid,
        callback=callback,
        strategy=make_strategy(config.parallel, device) if strategy is None else strategy,
        schedule=schedule,
        identity=identity,
        progress=progress,
    )
    initial_weights = {}
    if keep_initial:
        initial_weights = {name: x.detach().clone() for name, x in model.state_dict().items()}
    with trainer.running():
        # Training continues where a checkpoint was written, possibly within an epoch.
        trainer.load_checkpoint_if_available()
        trainer.start()
        if keep_initial and not trainer.initial:
            trainer.initial = trainer.callback.evaluate(trainer)
        while trainer.epoch < config.epochs:
            monitor = trainer.train_epoch()
            trainer.finish_epoch(monitor)
        description, selected = trainer.select_weights()
    trainer.monitor.report_progress(sum(trainer.num_steps))
    # A fine-tuned network is kept only if it scores no lower than the network it began with.
    score = selection_score(selected)
    if keep_initial and selection_score(trainer.initial) > score:
        logger.warning(
            "kept the initial weights: their score is %.5f, but the score of %s is only %.5f",
            selection_score(trainer.initial),
            description,
            score,
        )
        model.load_state_dict(initial_weights)
        selected, score = trainer.initial, selection_score(trainer.initial)
    else:
        score_text = f"score {score:.4f}" if selected else "nothing is held out"
        logger.info("kept %s, %s", description, score_text)
    return FitResult(trainer.history, selected, score, trainer.initial)


class Trainer:
    """The state of a training run, and its single step.

    `Trainer(...).train_step(batch)` works without `fit`. See `fit` for the arguments; by default
    one process trains.
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
        valid: Iterable[Any] | None = None,
        callback: Callback | None = None,
        strategy: Strategy | None = None,
        schedule: Schedule | None = None,
        identity: dict[str, Any] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.device = torch.device(device)
        self.model = model.to(self.device)
        self.config = config
        self.callback = Callback() if callback is None else callback
        self.strategy = Strategy() if strategy is None else strategy
        self.optimizer = make_optimizer(model, config)
        if strategy is None:  # steps may be taken without `running`
            self.strategy.start(model, self.optimizer)
        self.epoch = 0
        """Number of finished epochs."""
        self.step = 0
        """Number of steps that this rank has taken in the current epoch."""
        self.history: list[dict[str, float]] = []
        """A record per finished epoch."""
        self.initial: dict[str, float] = {}
        """Held-out metrics before the first epoch, with `keep_initial`."""
        self._objective = objective
        self._data = data
        self._steps: BatchSource = data
        if config.accumulate > 1:
            self._steps = AccumulatedBatches(data, config.accumulate)
        self._load_ahead = partial(load_ahead, device=self.device)
        self._identity = identity or {}
        self._out = Path(out)
        self._valid = valid
        self._schedule = learning_rate_schedule(config) if schedule is None else schedule
        world_size = self.strategy.world_size
        self._precision = Precision(config, self.device, world_size)
        epochs = range(config.epochs)
        self._num_batches = [data.num_steps(epoch) for epoch in epochs]
        self.num_steps = [self._steps.num_steps(epoch, world_size) for epoch in epochs]
        """Number of steps that each rank takes, by epoch."""
        if min(self.num_steps) == 0:
            raise TrainingDataError(no_step(world_size))
        folder = self._out / "checkpoints"
        self._checkpoints = Checkpoints(folder)
        self._epoch_weights = EpochWeights(folder, config.average_epochs, config.prefer_average)
        enabled = self.strategy.rank == 0
        total = sum(self.num_steps)
        self.monitor = Monitor(self._out, total, progress if enabled else None, enabled)
        self._sums: dict[str, Tensor] = {}  # of the epoch so far, float64 on the device
        self._detector = NonFiniteDetector(self.device)
        self._saved = monotonic()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Return the context in which to train; it sets up threads, precision and strategy.

        At its end these, the callback and the reports are closed, whether the training failed or
        not.
        """
        failed = True
        try:
            with torch_threads(self.config.threads), self._precision.activate():
                self.strategy.start(self.model, self.optimizer)
                yield
            failed = False
        finally:
            self.callback.close()
            self.strategy.stop(failed)
            self.monitor.close()

    def start(self) -> None:
        """Open the reports and start the callback, at the first step or the one to resume from."""
        self.monitor.start(self.steps_done())
        self.callback.on_start(self)

    def steps_done(self) -> int:
        """Return the number of steps taken, over all epochs."""
        return sum(self.num_steps[: self.epoch]) + self.step

    def train_epoch(self) -> EpochMonitor:
        """Take the remaining steps of the current epoch; return their monitor."""
        title = f"epoch {self.epoch + 1}/{self.config.epochs}"
        steps, steps_before = self.num_steps[self.epoch], sum(self.num_steps[: self.epoch])
        monitor = self.monitor.epoch(title, steps, self.step, steps_before)
        may_share = self.callback.may_share_batches
        batches = self.strategy.batches(
            self._steps, self.epoch, self.step, self._load_ahead, may_share
        )
        self.model.train()
        try:
            for batch in monitor.timed(batches):
                if batch is CHECKPOINT:
                    self.save_checkpoint()
                    continue
                stats = self.train_step(batch.to(self.device))
                self.step += 1
                monitor.step(batch.frames, self._means)
                # The ranks' clocks differ: the strategy decides for all ranks when to save.
                due = monotonic() - self._saved >= self.config.checkpoint_seconds
                due = self.strategy.agree_on_checkpoint(due)
                self.callback.on_step(self, batch, stats, due)
        finally:
            batches.close()
            monitor.close()
        # Check all losses before the epoch ends and a checkpoint is written.
        self._require_finite(wait=True)
        self.step = self.strategy.position(self.step)
        return monitor

    def train_step(self, batch: Any) -> dict[str, Tensor]:
        """Take one optimizer step on a batch, or `MicroBatches`, that is on the device.

        Returns:
          The objective's sums, and `loss`.
        """
        # Dropout and sampling are functions of the position, so that a resumed run repeats them.
        seed = f"{self.config.seed} {self.epoch} {self.step} {self.strategy.rank}"
        torch.manual_seed(zlib.crc32(seed.encode()))
        rate = self._rate(self.strategy.position(self.step))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        try:
            losses, stats = self._compute_gradients(micro_batches(batch))
        except torch.cuda.OutOfMemoryError as error:
            raise TrainingError(
                f"the GPU has too little memory for a batch of {batch.frames} frames (of"
                f" {batch.ids[0]} and others): choose smaller batches; {error}"
            ) from error
        norm, is_finite = self._precision.unscale_and_clip(
            self.model, self.config.max_gradient_norm
        )
        # A step whose float16 gradients overflowed is skipped, and the loss scale lowered.
        if is_finite:
            self.optimizer.step()
            self.strategy.after_step()
            if not self.strategy.applies_constraints:
                constrain(self.model, self.steps_done())
        self._require_finite()
        # Queue this step's check for NaN and infinity, without waiting for the device. The gradient
        # norm belongs to all batches together; if it is not finite, the last batch is named.
        *earlier, (last_batch, last_loss) = zip(micro_batches(batch), losses, strict=True)
        for micro_batch, loss in earlier:
            self._detector.add(loss, micro_batch)
        self._detector.add(last_loss + (norm if is_finite else 0), last_batch)
        # The norm before clipping (0 for a step that float16 skipped), weighted like the loss.
        norm = norm.detach().to(last_loss.device) if is_finite else 0.0
        stats = {"loss": sum(losses[1:], losses[0]), **stats}
        accumulate(self._sums, stats | {"gradient_norm": norm * stats["weight"]})
        return stats

    def _compute_gradients(self, batches: Sequence[Any]) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Compute the gradients of the mean loss of all batches and all ranks.

        Returns:
          The loss of each batch, and the objective's sums over all of them.
        """
        losses: list[Tensor] = []
        sums: dict[str, Tensor] = {}
        for batch in batches:
            loss, stats = self._compute_loss(batch)
            losses.append(loss.detach())
            for name, value in stats.items():
                sums[name] = sums[name] + value if name in sums else value
            # Gradients add up; `backward` of the strategy divides them by the weight of all ranks.
            loss = self._precision.scale_loss(loss)
            if len(losses) < len(batches):
                loss.backward()  # no rank waits for another before the last batch
        self.strategy.backward(loss, sums["weight"], accumulated=len(batches) > 1)
        return losses, sums

    def validate(self) -> dict[str, float]:
        """Average the objective over the held-out batches, which are divided among the ranks.

        Returns:
          `loss` per weight and every other mean, such as `accuracy`; empty without batches.

        Raises:
          TrainingError: the loss is not finite, so that no epoch could be selected by it.
        """
        batches_of_rank = islice(
            self._valid or (), self.strategy.rank, None, self.strategy.world_size
        )
        sums: dict[str, Tensor] = {}
        losses: list[tuple[Tensor, list[str]]] = []
        self.model.eval()
        with torch.inference_mode():
            for batch in self._load_ahead(batches_of_rank):
                loss, stats = self._compute_loss(batch.to(self.device))
                losses.append((loss, batch.ids))
                accumulate(sums, {"loss": loss, **stats})
        self.strategy.barrier()  # ranks may take different times
        metrics = means(self.strategy.sum_over_ranks(sums))
        if not isfinite(metrics.get("loss", 0.0)):
            bad = [ids for loss, ids in losses if not bool(loss.isfinite())]
            where = (
                f"the batch of {', '.join(bad[0][:3])}"
                if bad
                else "a batch of another worker or the sum over all batches"
            )
            raise TrainingError(
                f"the loss of the held-out data is not finite in epoch {self.epoch + 1}, in "
                f"{where}, so the best epoch cannot be selected. Look for broken features or "
                "transcripts in this data, or for weights that are all 0"
            )
        return metrics

    def finish_epoch(self, monitor: EpochMonitor) -> None:
        """Validate, then store the epoch's record, weights and checkpoint."""
        self.strategy.end_epoch()
        self.callback.on_epoch_end(self)
        # 1. The record: means of the training sums, the rate, times and throughput.
        sums = means(self.strategy.sum_over_ranks(self._sums))
        record = {"epoch": self.epoch + 1, **sums, "rate": self._rate(self.step - 1)}
        record |= {"seconds": monitor.seconds(), **monitor.rates(), **self.strategy.report()}
        speed = torch.tensor(record["frames_per_second"], dtype=torch.float64)
        record["frames_per_second"] = self.strategy.sum_over_ranks({"": speed})[""].item()
        # 2. Validation, of the consensus weights where the ranks' own weights differ.
        with self.strategy.consensus():
            metrics = self.callback.validate(self)
            self.history.append(record | {f"valid_{n}": value for n, value in metrics.items()})
            if self.strategy.rank == 0:
                self._epoch_weights.save(self.model, self.history)
        # 3. Reports, and a checkpoint at the start of the next epoch.
        record = self.history[-1]
        log_epoch(self.config.epochs, record)
        self.epoch, self.step, self._sums = self.epoch + 1, 0, {}
        self.monitor.events(self.steps_done(), {f"epoch/{k}": v for k, v in record.items()})
        self._write_history()
        self.strategy.barrier()  # rank 0 may take long to validate
        self.save_checkpoint()

    def select_weights(self) -> tuple[str, dict[str, float]]:
        """Load the weights of the best epoch, or the average, into the model.

        Returns:
          A description of the weights, and their held-out metrics.
        """
        self.callback.on_end(self)
        self._write_history()
        self.strategy.barrier()  # until rank 0 has stored the last epoch's weights
        selected = self._epoch_weights.select(self.model, self.history, self._evaluate_average)
        self.strategy.barrier()  # until all have read them, before rank 0 removes them
        return selected

    def can_checkpoint(self) -> bool:
        """Return whether `save_checkpoint` can write a checkpoint now."""
        return self.strategy.can_checkpoint()

    def save_checkpoint(self) -> None:
        """Write a checkpoint (on every rank), if `can_checkpoint`."""
        if not self.can_checkpoint():
            return
        self._require_finite(wait=True)
        self._saved = monotonic()
        strategy = self.strategy
        rank_state = strategy.rank_state_dict()
        # Which ranks have a state of their own: each of them adds its number as a name to the sum.
        with_state = {str(strategy.rank): torch.ones(())} if rank_state else {}
        ranks_with_state = sorted(map(int, strategy.sum_over_ranks(with_state)))
        position = self.epoch, strategy.position(self.step)
        state = {
            "identity": self._full_identity(),
            "world_size": strategy.world_size,
            "ranks_with_state": ranks_with_state,
            "epoch": position[0],
            "step": position[1],
            "sums": strategy.sum_over_ranks(self._sums),
            "history": self.history,
            "initial": self.initial,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "strategy": strategy.state_dict(),
            "precision": self._precision.state_dict(),
            "callback": self.callback.state_dict(),
        }
        # All ranks' files first: the common file, written last, makes the checkpoint valid.
        if rank_state:
            self._checkpoints.save_rank(*position, strategy.rank, rank_state)
        if ranks_with_state:
            strategy.barrier()
        if strategy.rank == 0:
            self._checkpoints.save(*position, state)
        strategy.barrier()  # rank 0 may take long to write

    def load_checkpoint_if_available(self) -> None:
        """Restore the newest checkpoint, if there is one.

        Raises:
          TrainingError: the checkpoint is damaged, or from a training with other settings.
        """
        state = self._checkpoints.load_latest()
        if state is None:
            return
        differing = changed_settings(state["identity"], self._full_identity())
        if differing:
            raise TrainingError(
                f"{self._out} holds a training with other settings ({', '.join(differing)}): "
                "remove the folder to start again, or restore the old settings to continue this "
                "training"
            )
        strategy = self.strategy
        position, old_size = (state["epoch"], state["step"]), state["world_size"]
        self.epoch, self.step = position
        if self.step and old_size != strategy.world_size:  # the same share of the epoch is done
            old_steps = self._steps.num_steps(self.epoch, old_size)
            self.step = self.step * self.num_steps[self.epoch] // old_steps
        # Rank 0 continues with the sums over all ranks, the others with zeros.
        self._sums = {
            name: value.to(self.device) * (strategy.rank == 0)
            for name, value in state["sums"].items()
        }
        self.history, self.initial = state["history"], state["initial"]
        self.callback.load_state_dict(state["callback"])
        self.model.load_state_dict(state["model"])
        load_optimizer(self.optimizer, state["optimizer"])
        self._precision.load_state_dict(state["precision"])
        # With as many ranks as before, load its own state; with fewer, those of several old ranks.
        old_ranks = range(strategy.rank, old_size, strategy.world_size)
        rank_states = [
            self._checkpoints.load_rank(*position, rank)
            for rank in old_ranks
            if rank in state["ranks_with_state"]
        ]
        strategy.load_state_dict(state["strategy"], rank_states)
        strategy.barrier()  # before rank 0 writes the next checkpoint and removes this one
        logger.info("continuing at epoch %d, step %d", self.epoch + 1, self.step)
        if old_size != strategy.world_size:
            logger.info("continuing with %d workers instead of %d", strategy.world_size, old_size)

    def _compute_loss(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the objective in the training's precision."""
        with self._precision.autocast():
            return self._objective(self.model, batch)

    def _evaluate_average(self) -> dict[str, float]:
        """Evaluate averaged weights, after re-estimating their batch normalisation statistics."""
        # From the last epoch: the first may begin with the shortest utterances (`shortest_first`).
        last = self.config.epochs - 1
        with closing(self._load_ahead(self._data.batches(last))) as batches:
            update_batch_norm(self.model, batches, self.device, self._compute_loss)
        return self.callback.evaluate(self)

    def _require_finite(self, wait: bool = False) -> None:
        """Stop at the first batch whose loss or gradient norm was not finite, if there is one.

        Raises:
          TrainingError: there is such a batch; no checkpoint has been written since.
        """
        batch = self._detector.first_bad_batch(wait)
        if batch is None:
            return
        rank = self.strategy.rank
        name = "bad_batch" if rank == 0 else f"bad_batch-{rank}"
        path = self._out / "checkpoints" / f"{name}.safetensors"
        batch.save(path)
        message = non_finite_message(batch.ids, path, self.epoch + 1, self.strategy.world_size)
        raise TrainingError(message)

    def _means(self) -> dict[str, float]:
        """Return the means of the epoch's sums."""
        return means(self._sums)

    def _rate(self, step: int) -> float:
        """Return the learning rate of a step in the current epoch."""
        factor = self.config.parallel.rate_factor(self.strategy.world_size)
        return factor * self._schedule(self.epoch, step, self.num_steps)

    def _write_history(self) -> None:
        """Write the history, on rank 0."""
        if self.strategy.rank == 0:
            write_history(self._out, self.history)

    def _full_identity(self) -> dict[str, Any]:
        """Return everything that may not change when the training is resumed."""
        parameters = result_parameters(self.config)
        parameters["amp"] = self._precision.name  # resolves `auto`
        shapes = {name: list(x.shape) for name, x in self.model.state_dict().items()}
        more = {"steps per epoch": self._num_batches, "model": shapes}
        return {**self._identity, **parameters, **more}


def write_history(out: Path, history: list[dict[str, float]]) -> None:
    """Write `history.json`, a record per epoch."""
    write_atomically(out / "history.json", json.dumps(history, indent=1) + "\n")


def joined_history(results: Iterable[FitResult]) -> list[dict[str, float]]:
    """Join the histories of consecutive runs on one model, with consecutive epoch numbers."""
    history: list[dict[str, float]] = []
    for result in results:
        done = len(history)
        history += [{**record, "epoch": done + record["epoch"]} for record in result.history]
    return history


def accumulate(sums: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    """Add scalars to the sums of the same names, in float64."""
    for name, value in values.items():
        value = value.detach().double()
        sums[name] = sums[name] + value if name in sums else value


def means(sums: dict[str, Tensor]) -> dict[str, float]:
    """Divide the sums by that of `weight`, which is left out; the device is read once."""
    names = [name for name in sums if name != "weight"]
    if not names:
        return {}
    values = torch.stack([sums[name] for name in names]) / sums["weight"]
    return dict(zip(names, values.tolist(), strict=True))
