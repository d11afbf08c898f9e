"""Evaluators: evaluation of a training's epochs in the background or on other machines (A22, A23).

All evaluators communicate through files: the training stores the model of an epoch in a folder,
and the evaluator writes the result beside it. So the results of a run that was killed are found
again, and another machine with the same storage can evaluate.
"""

import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from toolkit.models.store import CONFIG, load_model, save_model
from toolkit.processes.context import deaf_to_interrupts, worker_context
from toolkit.processes.workers import start_worker
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_json, reading
from toolkit.train.ctc.evaluation import HeldOutEvaluation
from toolkit.train.ctc.state_machine import EvaluatorKind
from toolkit.train.errors import TrainingError

logger = logging.getLogger(__name__)
FOLDER = "evaluation"
POLL = 0.1  # seconds
REMINDER = 60.0  # seconds
_FINISHED = "finished"
_PLAN = "plan.json"


class EvaluationFolder:
    """Models to evaluate and their results, in the folder `evaluation/` of a training.

    `epoch-0003/` is a model (see `toolkit.models.store`), complete once it has its configuration;
    `epoch-0003.json` is its result, after which the training removes the model. `finished` marks
    that no more models follow. `plan.json` describes the evaluation, for evaluators elsewhere.
    """

    def __init__(self, out: Path) -> None:
        self._folder = Path(out) / FOLDER

    def submit(self, epoch: int, model: torch.nn.Module) -> None:
        """Store a model for evaluation; replaces that of an earlier start."""
        folder = self.model(epoch)
        (folder / CONFIG).unlink(missing_ok=True)
        self._result(epoch).unlink(missing_ok=True)
        save_model(folder, model)

    def model(self, epoch: int) -> Path:
        """Return the folder of an epoch's model."""
        return self._folder / f"epoch-{epoch:04d}"

    def waiting(self) -> list[int]:
        """List the epochs that have a model but no result, oldest first."""
        found = sorted(path.parent.name for path in self._folder.glob(f"epoch-*/{CONFIG}"))
        epochs = [int(name.removeprefix("epoch-")) for name in found]
        return [epoch for epoch in epochs if self.result(epoch) is None]

    def finish(self, epoch: int, result: dict[str, float]) -> None:
        """Store a result."""
        write_atomically(self._result(epoch), json.dumps(result) + "\n")

    def remove(self, epoch: int) -> None:
        """Remove a model."""
        shutil.rmtree(self.model(epoch), ignore_errors=True)

    def result(self, epoch: int) -> dict[str, float] | None:
        """Read a result; None if there is none yet."""
        path = self._result(epoch)
        if not os.path.lexists(path):
            return None
        with reading(path, TrainingError, "remove it to evaluate that epoch again"):
            return read_json(path, {str: int | float})

    def begin(self) -> None:
        """Mark that models will follow."""
        (self._folder / _FINISHED).unlink(missing_ok=True)

    def end(self) -> None:
        """Mark that no more models follow."""
        write_atomically(self._folder / _FINISHED, "")

    def is_finished(self) -> bool:
        """Whether no more models follow."""
        return (self._folder / _FINISHED).exists()

    def write_plan(self, text: str) -> None:
        """Store the description of the evaluation for evaluators elsewhere."""
        write_atomically(self._folder / _PLAN, text)

    def plan(self) -> str | None:
        """Return the description of the evaluation; None if there is none."""
        try:
            return (self._folder / _PLAN).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _result(self, epoch: int) -> Path:
        return self._folder / f"epoch-{epoch:04d}.json"


def evaluate_elsewhere(
    out: Path,
    evaluation: HeldOutEvaluation,
    device: str = "cpu",
    until_finished: bool = True,
    plan: str | None = None,
    on_result: Callable[[int, dict[str, float]], None] | None = None,
) -> int:
    """Evaluate the epochs of a training that runs in another process or on another machine.

    Args:
      out: the training's folder; it need not exist yet.
      evaluation: the evaluation to run.
      device: device of the model.
      until_finished: return when the training has finished; otherwise once no model is waiting.
      plan: description that `evaluation` was made from; when it changes or disappears, the training
        was restarted or its folder renamed, and the function returns.
      on_result: called with each epoch and its result.

    Returns:
      How many epochs were evaluated.
    """
    folder, number = EvaluationFolder(out), 0
    while folder.plan() == plan:
        finished = folder.is_finished()
        for epoch in folder.waiting():
            before = time.monotonic()
            result = evaluation(load_model(folder.model(epoch)).to(device))
            if folder.plan() != plan:
                break
            folder.finish(epoch, {**result, "duration": time.monotonic() - before})
            number += 1
            if on_result is not None:
                on_result(epoch, result)
        if finished or not until_finished:
            break
        time.sleep(POLL)
    return number


class BackgroundEvaluator:
    """Evaluates in the background of a training: `resident`, `process` or `elsewhere`.

    Args:
      kind: see `MachineConfig.evaluator`.
      out: the training's folder.
      evaluation: the evaluation to run; must be picklable if it runs in another process.
      device: device of that process, which uses one thread on a CPU.
    """

    def __init__(
        self, kind: EvaluatorKind, out: Path, evaluation: HeldOutEvaluation, device: str
    ) -> None:
        self._kind = kind
        self._out = Path(out)
        self._evaluation = evaluation
        self._device = device
        self._folder = EvaluationFolder(out)
        self._process = None

    def begin(self, pending: int | None) -> None:
        """Start evaluating.

        Args:
          pending: an epoch submitted by an earlier start whose result is still needed; its other
            submissions are dropped.
        """
        self._folder.begin()
        for epoch in self._folder.waiting():
            if epoch != pending:
                self._folder.remove(epoch)
        if self._kind == "resident" or self._folder.waiting():
            self._start()

    def submit(self, epoch: int, model: torch.nn.Module) -> None:
        """Submit an epoch's model, which may change afterwards."""
        self._folder.submit(epoch, model)
        if self._kind == "process":
            self._start()

    def result(self, epoch: int) -> tuple[dict[str, float], float]:
        """Wait for the result of an epoch; return it and the seconds waited.

        Raises:
          TrainingError: the evaluating process has ended, or the model was removed.
        """
        before = reminded = time.monotonic()
        while (result := self._folder.result(epoch)) is None:
            self._check(epoch)
            if self._kind == "elsewhere" and time.monotonic() - reminded > REMINDER:
                reminded = time.monotonic()
                logger.info(
                    "waiting for `toolkit ctc evaluate` to evaluate %s",
                    self._folder.model(epoch),
                )
            time.sleep(POLL)
        return result, time.monotonic() - before

    def end(self) -> None:
        """Mark that no more epochs follow."""
        self._folder.end()

    def stop(self) -> None:
        """End the evaluating process, if there is one."""
        if self._process is not None and self._folder.is_finished():
            self._process.join()
        elif self._process is not None:
            self._process.kill()
            self._process.join()
        self._process = None

    def _start(self) -> None:
        """Start an evaluating process once the previous one has ended."""
        if self._kind == "elsewhere":
            return
        if self._process is not None:
            self._process.join()
        arguments = (self._out, self._evaluation, self._device, self._kind == "resident")
        process = worker_context().Process(target=_serve, args=(dict(os.environ), *arguments))
        with deaf_to_interrupts():
            process.start()
        self._process = process

    def _check(self, epoch: int) -> None:
        model, process = self._folder.model(epoch), self._process
        gone = not (model / CONFIG).exists()
        ended = process is not None and not process.is_alive()
        if not (gone or ended) or self._folder.result(epoch) is not None:
            return
        if ended:
            raise TrainingError(
                f"the process that evaluates {model} ended with exit status {process.exitcode}; "
                "see its own message above. The same command resumes from the last checkpoint"
            )
        raise TrainingError(f"{model} was removed before it was evaluated: train from scratch")


def _serve(
    environment: Mapping[str, str],
    out: Path,
    evaluation: HeldOutEvaluation,
    device: str,
    until_finished: bool,
) -> None:
    start_worker(environment)
    evaluate_elsewhere(out, evaluation, device, until_finished)
