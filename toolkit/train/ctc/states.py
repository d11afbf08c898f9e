"""The states of a CTC training: a machine that decides, a callback that does the work (A22)."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from toolkit.models.store import load_model
from toolkit.processes import ranks
from toolkit.train.batches import micro_batches
from toolkit.train.config import StatesConfig
from toolkit.train.ctc.evaluation import (
    BackgroundEvaluator,
    EvaluationFolder,
    HeldOutEvaluation,
    Recognition,
    sentences,
)
from toolkit.train.ctc.readers import CtcBatch
from toolkit.train.runlog import (
    Created,
    Evaluated,
    Event,
    Finished,
    RunLogWriter,
    Saved,
    Sentences,
    Step,
    Swapped,
)
from toolkit.train.trainer import Callback, Trainer

logger = logging.getLogger(__name__)
SHOWN = 4
"""Number of utterances of a batch that are recognised in `State.SENTENCES`."""
BackgroundLogging = Callable[[Callable[[Event], None]], AbstractContextManager[None]]
"""Called with the function that writes an event; returns a context that logs events, such as
utilisation, in the background of a training run."""


class State(Enum):
    """State of a training run; the names are the paper's."""

    TRAINING = "Training"
    SENTENCES = "Generating Sentences"
    SAVING = "Saving Checkpoint"
    SWAPPING = "Swapping Model"
    EVALUATING = "Evaluating"


EDGES = {
    State.TRAINING: {State.SENTENCES, State.SAVING, State.SWAPPING, State.EVALUATING},
    State.SENTENCES: {State.TRAINING},
    State.SAVING: {State.TRAINING},
    State.SWAPPING: {State.EVALUATING, State.TRAINING},
    State.EVALUATING: {State.SWAPPING, State.TRAINING},
}
"""Allowed transitions. The paper's figure has all but those from Training to Evaluating and back,
which evaluation in place takes."""


@dataclass(frozen=True)
class Transition:
    """A transition between two states."""

    step: int
    """Iterations done."""
    source: State
    target: State


class Machine:
    """The state machine: decides which states are due; the caller does their work.

    ```
    for state in machine.after_iteration():
        do(state)
    ```
    visits the states that are due after an iteration. The machine is in such a state while the
    loop's body runs, and back in Training after the loop. `after_epoch` and then `evaluation` work
    in the same way after the last iteration of an epoch.

    Args:
      config: intervals and evaluator.
    """

    def __init__(self, config: StatesConfig) -> None:
        self._config = config
        self._saved = -1  # iterations at the newest checkpoint; -1: there is none
        self.step = 0
        """Iterations done."""
        self.current = State.TRAINING
        self.transitions: list[Transition] = []
        """All transitions since this process started, in order."""

    def after_iteration(
        self, overdue: bool = False, can_checkpoint: bool = True
    ) -> Iterator[State]:
        """Count an iteration and visit the states that are due after it.

        Args:
          overdue: write a checkpoint regardless of the count.
          can_checkpoint: whether a checkpoint can be written after this iteration.
        """
        self.step += 1
        if self.step % self._config.sentences_every == 0:
            yield from self._visit(State.SENTENCES)
        if can_checkpoint and (overdue or self.step % self._config.checkpoint_every == 0):
            yield from self._visit(State.SAVING)

    def after_epoch(self) -> Iterator[State]:
        """Visit `State.SAVING`, unless there is a checkpoint of this iteration.

        There is one if a training run resumes from it; no iteration then precedes this call.
        """
        if self._saved != self.step:
            yield from self._visit(State.SAVING)

    def evaluation(self) -> Iterator[State]:
        """Visit the states of an evaluation; only `swap` and `in_place` have any."""
        if self._config.evaluator == "swap":
            yield from self._visit(State.SWAPPING, State.EVALUATING, State.SWAPPING)
        elif self._config.evaluator == "in_place":
            yield from self._visit(State.EVALUATING)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint.

        A resumed training continues in Training, whatever state the machine is in now.
        """
        return {"step": self.step, "saved": self._saved}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.step, self._saved = state["step"], state["saved"]

    def _visit(self, *states: State) -> Iterator[State]:
        """Change from Training to each state in turn, and back to Training."""
        for state in states:
            self.go_to(state)
            if state is State.SAVING:
                self._saved = self.step
            yield state
        self.go_to(State.TRAINING)

    def go_to(self, target: State) -> None:
        """Make and record a transition."""
        assert target in EDGES[self.current], f"no transition from {self.current} to {target}"
        logger.debug("iteration %d: %s -> %s", self.step, self.current.value, target.value)
        self.transitions.append(Transition(self.step, self.current, target))
        self.current = target


class TrainingStates(Callback):
    """Callback that runs the state machine from the training loop's hooks; see `Callback`.

    Args:
      config: intervals and evaluator.
      log_every: iterations between two `step` events; each epoch ends with one.
      log: the run log.
      created: first event of the log.
      recognition: decoders and scoring.
      evaluation: evaluation on the held-out data.
      out: the training's folder.
      background_logging: logs events during the training.
    """

    may_share_batches = False  # the machine counts the same iterations on all ranks

    def __init__(
        self,
        config: StatesConfig,
        log_every: int,
        log: RunLogWriter,
        created: Created,
        recognition: Recognition,
        evaluation: HeldOutEvaluation,
        out: Path,
        background_logging: BackgroundLogging | None = None,
    ) -> None:
        self.machine = Machine(config)
        self._config = config
        self._log_every = log_every
        self._log = log
        self._created = created
        self._recognition = recognition
        self._evaluation = evaluation
        self._folder = EvaluationFolder(out)
        self._out = out
        self._rank, self._world_size = 0, 1  # those of the strategy from `on_start` on
        self._background_logging = background_logging
        self._background: BackgroundEvaluator | None = None
        self._running = ExitStack()
        self._position: dict[str, Any] | None = None
        self._interval = _empty_interval()  # since the last `step` event
        self._pending: dict[str, Any] | None = None  # the epoch being evaluated in the background
        self._tick = monotonic()  # when the state Training was entered

    def on_start(self, trainer: Trainer) -> None:
        """Implement `Callback.on_start`: start or resume the log."""
        self._rank, self._world_size = trainer.strategy.rank, trainer.strategy.world_size
        if self._rank == 0:
            if self._position is None:
                self._log.create(self._created)
            else:
                self._log.resume(self._position, trainer.steps_done())
            if self._background_logging is not None:
                self._running.enter_context(self._background_logging(self._log.write))
        # The other evaluators work in the background; rank 0 alone starts and feeds them.
        if self._config.evaluator not in ("swap", "in_place"):
            self._background = BackgroundEvaluator(
                self._config.evaluator, self._out, self._evaluation, str(trainer.device)
            )
            if self._rank == 0:
                self._running.callback(self._background.stop)
                self._background.begin(self._pending and self._pending["epoch"])
        self._tick = monotonic()

    def on_step(
        self, trainer: Trainer, batch: Any, stats: dict[str, Tensor], checkpoint_due: bool
    ) -> None:
        """Implement `Callback.on_step`: visit the states that are due after an iteration."""
        interval = self._interval
        interval["seconds"] += monotonic() - self._tick
        batches = micro_batches(batch)
        interval["examples"] += sum(b.utterances for b in batches) * self._world_size
        # Sums stay on the device: reading them here would wait for the GPU at every step.
        for name in ("loss", "weight"):
            interval[name] = interval[name] + stats[name].double()
        if trainer.steps_done() % self._log_every == 0:
            self._log_step(trainer)
        self._log_pending()
        for state in self.machine.after_iteration(checkpoint_due, trainer.can_checkpoint()):
            if state is State.SAVING:
                self._save(trainer)
            else:
                self._generate(trainer, batches[-1])
        self._tick = monotonic()

    def on_epoch_end(self, trainer: Trainer) -> None:
        """Log the last iterations, and write the checkpoint that evaluation starts from."""
        if self._interval["examples"]:
            self._log_step(trainer)
        for _ in self.machine.after_epoch():  # in the state `SAVING`, unless that was just done
            self._save(trainer)

    def validate(self, trainer: Trainer) -> dict[str, float]:
        """Evaluate in this process, or submit the model to the background evaluator."""
        trained = self._log.seconds()
        if self._background is None:
            result = self._evaluate(trainer, trained)
        else:
            # One evaluation is pending at a time: wait for the previous epoch's.
            result = {}
            self._collect(trainer)
            place = {"epoch": trainer.epoch + 1, "step": trainer.steps_done()}
            self._pending = {**place, "trained": trained, "logged": False}
            if self._rank == 0:
                self._background.submit(trainer.epoch + 1, trainer.model)
        self._tick = monotonic()
        return result

    def evaluate(self, trainer: Trainer) -> dict[str, float]:
        """Implement `Callback.evaluate`."""
        return _with_accuracy(ranks.on_rank_zero(lambda: self._evaluation(trainer.model)))

    def on_end(self, trainer: Trainer) -> None:
        """Implement `Callback.on_end`: wait for a pending evaluation."""
        self._collect(trainer)
        if self._rank == 0:
            if self._background is not None:
                self._background.end()
            self._log.write(Finished(step=trainer.steps_done(), epochs=len(trainer.history)))

    def close(self) -> None:
        """Implement `Callback.close`."""
        self._running.close()

    def state_dict(self) -> dict[str, Any]:
        """Implement `Callback.state_dict`."""
        return {
            "machine": self.machine.state_dict(),
            "log": self._log.position() if self._rank == 0 else None,
            "interval": {name: float(value) for name, value in self._interval.items()},
            "pending": self._pending,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Implement `Callback.load_state_dict`."""
        self.machine.load_state_dict(state["machine"])
        self._position, self._interval = state["log"], state["interval"]
        self._pending = state["pending"]

    def _log_step(self, trainer: Trainer) -> None:
        """Log the iterations since the last `Step` event."""
        interval, self._interval = self._interval, _empty_interval()
        event = Step(
            loss=float(interval["loss"] / interval["weight"]),
            examples=int(interval["examples"]),
            seconds_in_step=round(interval["seconds"], 4),
        )
        self._write(trainer, event)

    def _save(self, trainer: Trainer) -> None:
        """Write a checkpoint, and log how long it took."""
        started = monotonic()
        trainer.save_checkpoint()
        self._write(trainer, Saved(duration=monotonic() - started))

    def _generate(self, trainer: Trainer, batch: CtcBatch) -> None:
        """Recognise sentences of the last training batch, and log them."""
        if self._rank > 0:
            return
        started = monotonic()
        # The first rows are all of the first view, hence `views=1`.
        sample = replace(
            batch,
            ids=batch.ids[:SHOWN],
            inputs=batch.inputs[:SHOWN],
            input_lengths=batch.input_lengths[:SHOWN],
            labels=batch.labels[:SHOWN],
            label_lengths=batch.label_lengths[:SHOWN],
            views=1,
        ).to(trainer.device)
        references, hypotheses = sentences(trainer.model, sample, self._recognition)
        logger.info("%s -> %s", references[0], hypotheses[0])
        event = Sentences(
            references=tuple(references),
            hypotheses=tuple(hypotheses),
            duration=monotonic() - started,
        )
        self._write(trainer, event)

    def _evaluate(self, trainer: Trainer, trained: float) -> dict[str, float]:
        """Visit the states of an evaluation in this process."""
        model, result, duration = trainer.model, {}, 0.0
        with ExitStack() as swapped:
            for state in self.machine.evaluation():
                started = monotonic()
                if state is State.EVALUATING:
                    result = ranks.on_rank_zero(partial(self._evaluation, model))
                    duration = monotonic() - started
                    continue
                # The first swap puts the evaluation model on the device, the second the training's.
                if model is trainer.model:
                    to, model = "evaluation", swapped.enter_context(self._swapped(trainer))
                else:
                    swapped.close()
                    to, model = "training", trainer.model
                self._write(trainer, Swapped(to=to, duration=monotonic() - started))
        # The result is stored before the model is removed, so that a kill cannot lose both.
        if self._rank == 0:
            self._folder.finish(trainer.epoch + 1, {**result, "duration": duration})
            self._folder.remove(trainer.epoch + 1)
        event = Evaluated(duration=duration, waited=duration, trained=trained, **result)
        self._write(trainer, event)
        return _with_accuracy(result)

    @contextmanager
    def _swapped(self, trainer: Trainer) -> Iterator[nn.Module]:
        """Swap the training model on the device for the evaluation model, loaded from disk."""
        if self._rank > 0:
            yield nn.Identity()  # rank 0 evaluates
            return
        self._folder.submit(trainer.epoch + 1, trainer.model)
        _move(trainer.model, trainer.optimizer, torch.device("cpu"))
        yield load_model(self._folder.model(trainer.epoch + 1)).to(trainer.device)
        _move(trainer.model, trainer.optimizer, trainer.device)

    def _collect(self, trainer: Trainer) -> None:
        """Wait for a pending background evaluation and add its result to the epoch's record."""
        if self._pending is None:
            return
        pending, background = self._pending, self._background
        result, waited = ranks.on_rank_zero(partial(background.result, pending["epoch"]))
        self._log_pending(waited)
        measured = _with_accuracy({k: v for k, v in result.items() if k != "duration"})
        record = trainer.history[pending["epoch"] - 1]
        record |= {f"valid_{name}": value for name, value in measured.items()}
        self._pending = None
        if self._rank == 0:
            self._folder.remove(pending["epoch"])

    def _log_pending(self, waited: float = 0.0) -> None:
        """Log the result of a background evaluation once, as soon as it is available."""
        pending = self._pending
        if self._rank > 0 or pending is None or pending["logged"]:
            return
        result = self._folder.result(pending["epoch"])
        if result is not None:
            place = {name: pending[name] for name in ("step", "epoch", "trained")}
            self._log.write(Evaluated(waited=waited, **place, **result))
            pending["logged"] = True

    def _write(self, trainer: Trainer, event: Event) -> None:
        """Log an event with the current step and epoch, on rank 0."""
        if self._rank == 0:
            place: dict[str, Any] = {"step": trainer.steps_done(), "epoch": trainer.epoch + 1}
            self._log.write(replace(event, **place))


def _empty_interval() -> dict[str, Any]:
    """Return zero sums for the next `Step` event."""
    return {"loss": 0.0, "weight": 0.0, "examples": 0.0, "seconds": 0.0}


def _with_accuracy(result: dict[str, float]) -> dict[str, float]:
    """Add `accuracy`, by which the weights are selected: 1 - CER, at least 0."""
    return {**result, "accuracy": max(0.0, 1 - result["cer"] / 100)}


def _move(model: nn.Module, optimizer: Optimizer, device: torch.device) -> None:
    """Move a model and its optimizer's state to a device, and drop the gradients."""
    optimizer.zero_grad(set_to_none=True)
    model.to(device)
    fused = any(group.get("fused") for group in optimizer.param_groups)
    for state in optimizer.state.values():
        for name, value in state.items():
            # The number of steps stays on the CPU, unless a fused step reads it.
            if isinstance(value, Tensor) and (value.dim() or fused):
                state[name] = value.to(device)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
