"""What is done in the states of a CTC training, and what is logged of it (A22, A23)."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from toolkit.models.store import load_model
from toolkit.processes import ranks
from toolkit.train.ctc.batch import CtcBatch
from toolkit.train.ctc.evaluation import Evaluation, Recognition, sentences
from toolkit.train.ctc.evaluators import BackgroundEvaluator, EpochFolder
from toolkit.train.ctc.state_machine import Machine, MachineConfig, State
from toolkit.train.observer import Training
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

logger = logging.getLogger(__name__)
SHOWN = 4
"""Utterances of a batch whose sentences are generated."""

Beside = Callable[[Callable[[Event], None]], AbstractContextManager[None]]
"""Something that goes on beside the training and logs events, such as utilisation."""


class CtcStates:
    """Goes through the states of the machine at the loop's places; see `Observer`.

    Args:
      config: intervals and evaluator.
      log_every: iterations between two `step` events.
      log: the run log.
      created: its first event.
      recognition: of sentences.
      evaluation: what to measure on the held-out data.
      out: the training's folder.
      part: rank and number of ranks; rank 0 alone logs, recognises and evaluates.
      beside: what goes on beside the training.
    """

    def __init__(
        self,
        config: MachineConfig,
        log_every: int,
        log: RunLogWriter,
        created: Created,
        recognition: Recognition,
        evaluation: Evaluation,
        out: Path,
        part: tuple[int, int] = (0, 1),
        beside: Beside | None = None,
    ) -> None:
        self.machine = Machine(config)
        self.measured: dict[str, float] = {}
        """What `measure` gave last, named as in the trainer's history."""
        self._config = config
        self._log_every = log_every
        self._log = log
        self._created = created
        self._recognition = recognition
        self._evaluation = evaluation
        self._folder = EpochFolder(out)
        self._out = out
        self._rank, self._ranks = part
        self._beside = beside
        self._background: BackgroundEvaluator | None = None
        self._running = ExitStack()
        self._position: dict[str, Any] | None = None
        self._interval = _nothing()  # since the last `step` event
        self._pending: dict[str, Any] | None = None  # the epoch that is evaluated in the background
        self._tick = monotonic()  # when the state Training was entered

    def begin(self, trainer: Training) -> None:
        """See `Observer`; begins the log or goes on with it."""
        if self._rank == 0:
            if self._position is None:
                self._log.create(self._created)
            else:
                self._log.resume(self._position, trainer.steps_done())
            if self._beside is not None:
                self._running.enter_context(self._beside(self._log.write))
        if self._config.evaluator not in ("swap", "in_place"):
            self._background = BackgroundEvaluator(
                self._config.evaluator, self._out, self._evaluation, str(trainer.device)
            )
            if self._rank == 0:
                self._running.callback(self._background.stop)
                self._background.begin(self._pending and self._pending["epoch"])
        self._tick = monotonic()

    def after_step(
        self, trainer: Training, batch: CtcBatch, stats: dict[str, Tensor], overdue: bool
    ) -> None:
        """See `Observer`; goes through the states that are due after an iteration."""
        interval = self._interval
        interval["seconds"] += monotonic() - self._tick
        interval["examples"] += len(batch.ids) * self._ranks
        for name in ("loss", "weight"):
            interval[name] = interval[name] + stats[name].double()
        if trainer.steps_done() % self._log_every == 0:
            self._log_step(trainer)
        self._log_pending()
        for state in self.machine.after_iteration(overdue, trainer.storable()):
            if state is State.SAVING:
                self._save(trainer)
            else:
                self._generate(trainer, batch)
        self._tick = monotonic()

    def after_epoch(self, trainer: Training) -> None:
        """See `Observer`; stores what evaluation starts from."""
        for _ in self.machine.after_epoch():
            self._save(trainer)

    def validate(self, trainer: Training) -> dict[str, float]:
        """See `Observer`; evaluates here, or has it done in the background."""
        trained = self._log.seconds()
        if self._background is None:
            result = self._evaluate(trainer, trained)
        else:
            result = {}
            self._collect(trainer)
            place = {"epoch": trainer.epoch, "step": trainer.steps_done()}
            self._pending = {**place, "trained": trained, "logged": False}
            if self._rank == 0:
                self._background.submit(trainer.epoch, trainer.model)
        self._tick = monotonic()
        return result

    def measure(self, trainer: Training) -> dict[str, float]:
        """See `Observer`."""
        result = _with_accuracy(ranks.once(lambda: self._evaluation(trainer.model)))
        self.measured = _named(result)
        return result

    def end(self, trainer: Training) -> None:
        """See `Observer`; waits for what is still being evaluated."""
        self._collect(trainer)
        if self._rank == 0:
            if self._background is not None:
                self._background.end()
            self._log.write(Finished(step=trainer.steps_done(), epochs=len(trainer.history)))

    def stop(self) -> None:
        """See `Observer`."""
        self._running.close()

    def state(self) -> dict[str, Any]:
        """See `Observer`."""
        return {
            "machine": self.machine.state(),
            "log": self._log.position() if self._rank == 0 else None,
            "interval": {name: float(value) for name, value in self._interval.items()},
            "pending": self._pending,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Observer`."""
        self.machine.load_state(state["machine"])
        self._position, self._interval = state["log"], state["interval"]
        pending = state["pending"]  # where version 0.1 does not say, it has not been logged
        self._pending = pending and {"logged": False, **pending}

    def _log_step(self, trainer: Training) -> None:
        interval, self._interval = self._interval, _nothing()
        event = Step(
            loss=float(interval["loss"] / interval["weight"]),
            examples=int(interval["examples"]),
            seconds_in_step=round(interval["seconds"], 4),
        )
        self._write(trainer, event)

    def _save(self, trainer: Training) -> None:
        before = monotonic()
        trainer.checkpoint()
        self._write(trainer, Saved(duration=monotonic() - before))

    def _generate(self, trainer: Training, batch: CtcBatch) -> None:
        if self._rank > 0:
            return
        before = monotonic()
        shown = replace(
            batch,
            ids=batch.ids[:SHOWN],
            inputs=batch.inputs[:SHOWN],
            input_lengths=batch.input_lengths[:SHOWN],
            labels=batch.labels[:SHOWN],
            label_lengths=batch.label_lengths[:SHOWN],
        ).to(trainer.device)
        references, hypotheses = sentences(trainer.model, shown, self._recognition)
        logger.info("%s -> %s", references[0], hypotheses[0])
        event = Sentences(
            references=tuple(references),
            hypotheses=tuple(hypotheses),
            duration=monotonic() - before,
        )
        self._write(trainer, event)

    def _evaluate(self, trainer: Training, trained: float) -> dict[str, float]:
        """Go through the states of an evaluation here."""
        model, result, duration = trainer.model, {}, 0.0
        with ExitStack() as swapped:
            for state in self.machine.evaluation():
                before = monotonic()
                if state is State.EVALUATING:
                    result = ranks.once(partial(self._evaluation, model))
                    duration = monotonic() - before
                    continue
                if model is trainer.model:
                    to, model = "evaluation", swapped.enter_context(self._swapped(trainer))
                else:
                    swapped.close()
                    to, model = "training", trainer.model
                self._write(trainer, Swapped(to=to, duration=monotonic() - before))
        if self._rank == 0:
            self._folder.finish(trainer.epoch, {**result, "duration": duration})
            self._folder.remove(trainer.epoch)
        event = Evaluated(duration=duration, waited=duration, trained=trained, **result)
        self._write(trainer, event)
        return _with_accuracy(result)

    @contextmanager
    def _swapped(self, trainer: Training) -> Iterator[nn.Module]:
        """Let the evaluation model, from disk, take the training model's place on the device."""
        if self._rank > 0:
            yield nn.Identity()  # rank 0 evaluates
            return
        self._folder.submit(trainer.epoch, trainer.model)
        _move(trainer.model, trainer.optimizer, torch.device("cpu"))
        yield load_model(self._folder.model(trainer.epoch)).to(trainer.device)
        _move(trainer.model, trainer.optimizer, trainer.device)

    def _collect(self, trainer: Training) -> None:
        """Wait for the epoch that is being evaluated in the background; complete its record."""
        if self._pending is None:
            return
        pending, background = self._pending, self._background
        result, waited = ranks.once(partial(background.result, pending["epoch"]))
        self._log_pending(waited)
        measured = _with_accuracy({k: v for k, v in result.items() if k != "duration"})
        record = trainer.history[pending["epoch"] - 1]
        record |= _named(measured)
        self._pending = None
        if self._rank == 0:
            self._folder.remove(pending["epoch"])

    def _log_pending(self, waited: float = 0.0) -> None:
        """Log what a background evaluation found, once, as soon as its result is there."""
        pending = self._pending
        if self._rank > 0 or pending is None or pending["logged"]:
            return
        result = self._folder.result(pending["epoch"])
        if result is not None:
            place = {name: pending[name] for name in ("step", "epoch", "trained")}
            self._log.write(Evaluated(waited=waited, **place, **result))
            pending["logged"] = True

    def _write(self, trainer: Training, event: Event) -> None:
        if self._rank == 0:
            self._log.write(replace(event, step=trainer.steps_done(), epoch=trainer.epoch))


def _nothing() -> dict[str, Any]:
    return {"loss": 0.0, "weight": 0.0, "examples": 0.0, "seconds": 0.0}


def _with_accuracy(result: dict[str, float]) -> dict[str, float]:
    """Add what chooses the weights: 1 - CER, at least 0."""
    return {**result, "accuracy": max(0.0, 1 - result["cer"] / 100)}


def _named(result: dict[str, float]) -> dict[str, float]:
    return {f"valid_{name}": value for name, value in result.items()}


def _move(model: nn.Module, optimizer: Optimizer, device: torch.device) -> None:
    """Move a model, with what its optimizer holds; the gradients are not needed any more."""
    optimizer.zero_grad(set_to_none=True)
    model.to(device)
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.dim():
                state[name] = value.to(device)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
