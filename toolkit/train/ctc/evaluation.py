"""Evaluation of a CTC model: error rates on held-out utterances, here or elsewhere (A22, A23, A25).

Background evaluators communicate through files: the training stores the model of an epoch in a
folder, and the evaluator writes the result beside it. So a run that was killed finds its results
again, and another machine with the same storage can evaluate.
"""

import json
import logging
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from toolkit.lang.units import Units
from toolkit.models.ctc import CtcModel
from toolkit.models.store import CONFIG, load_model, save_model
from toolkit.processes.workers import block_sigint, start_worker, worker_context
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_json, reading
from toolkit.train.batches import prefetched
from toolkit.train.config import EvaluatorKind
from toolkit.train.ctc.objective import CtcLoss
from toolkit.train.ctc.readers import CtcBatch
from toolkit.train.errors import TrainingError

logger = logging.getLogger(__name__)
BATCHES_AHEAD = 2  # loaded while the model computes
FOLDER = "evaluation"
POLL = 0.1  # seconds between two checks for a model or a result
REMINDER = 60.0  # seconds between two log lines while waiting for another machine
_FINISHED = "finished"
_PLAN = "plan.json"


class Decoder(Protocol):
    """Decodes log-probabilities, see `toolkit.decode.ctc.search`."""

    def decode_many(self, utterances: Sequence[Tensor], jobs: int = 1) -> Iterator[Sequence[Any]]:
        """Yield the n-best list of each utterance [T, C], in order; hypotheses have a `text`."""


@dataclass(frozen=True)
class Recognition:
    """Units, decoders and scoring of a CTC model's recognition; picklable."""

    units: Units
    """Output units of the model."""
    greedy_search: Decoder
    """Decoder for the sentences generated during training; beam width 1 (A24)."""
    search: Decoder
    """Decoder for evaluation; beam width 256 (A24)."""
    score: Callable[[Mapping[str, str], Mapping[str, str]], Any]
    """Called with references and hypotheses by utterance, such as `toolkit.score.wer.error_rates`;
    the result has the attributes `wer`, `cer`, `cer_usual` and `ser`."""
    jobs: int = 1
    """Number of threads for `search`."""
    utterances: int | None = None
    """How many utterances an evaluation recognises; None: all."""


class HeldOutEvaluation:
    """Evaluates a model on held-out utterances.

    Args:
      valid: held-out batches, iterated over at each evaluation.
      recognition: decoders and scoring.
      objective: its loss is reported as well.
    """

    def __init__(
        self, valid: Iterable[CtcBatch], recognition: Recognition, objective: CtcLoss
    ) -> None:
        self._valid = valid
        self._recognition = recognition
        self._objective = objective

    def __call__(self, model: CtcModel) -> dict[str, float]:
        """Evaluate a model, which is left in evaluation mode.

        Returns:
          `loss`, the mean (see `CtcLoss`); `wer`, `cer` (the paper's definition), `cer_usual` and
          `ser` in per cent. An utterance that is too short for an output has an empty hypothesis.
        """
        model.eval()
        device = model.output.weight.device
        recognition = self._recognition
        sample = UtteranceSample(recognition.utterances)
        references: dict[str, str] = {}
        texts: list[str] = []
        loss = weight = 0.0
        with torch.inference_mode():
            for batch in prefetched(self._valid, BATCHES_AHEAD):
                moved = batch.to(device)
                log_probs, lengths = model(moved.inputs, moved.input_lengths)
                value, stats = self._objective.from_outputs(log_probs, lengths, moved)
                loss, weight = loss + value.item(), weight + stats["weight"].item()
                refs, outputs = references_of(batch, recognition.units), rows(log_probs, lengths)
                # A sample is decoded at the end, when it is known. Without one, every batch is
                # decoded as it comes, so that no outputs are kept.
                if recognition.utterances is not None:
                    sample.add(refs, outputs)
                    continue
                references |= refs
                texts += texts_of(recognition.search, outputs, recognition.jobs)
        if recognition.utterances is not None:
            references, outputs = sample.selected()
            texts = texts_of(recognition.search, outputs, recognition.jobs)
        rates = recognition.score(references, dict(zip(references, texts, strict=True)))
        error_rates = {name: getattr(rates, name) for name in ("wer", "cer", "cer_usual", "ser")}
        return {"loss": loss / weight, **error_rates}


class UtteranceSample:
    """The utterances whose ids have the lowest checksums, whatever the order of the batches.

    Args:
      size: number of utterances; None: all.
    """

    def __init__(self, size: int | None) -> None:
        self._size = size
        self._entries: list[tuple[int, str, str, Tensor]] = []  # checksum, id, text, outputs

    def add(self, references: Mapping[str, str], outputs: Sequence[Tensor]) -> None:
        """Add the utterances of a batch."""
        # Outputs are cloned, as each is a view that would keep its whole batch in memory.
        for (name, text), output in zip(references.items(), outputs, strict=True):
            self._entries.append((zlib.crc32(name.encode()), name, text, output.clone()))
        self._entries = sorted(self._entries, key=lambda entry: entry[:2])[: self._size]

    def selected(self) -> tuple[dict[str, str], list[Tensor]]:
        """Return references by id, and the outputs."""
        references = {name: text for _, name, text, _ in self._entries}
        return references, [output for *_, output in self._entries]


def sentences(
    model: CtcModel, batch: CtcBatch, recognition: Recognition
) -> tuple[list[str], list[str]]:
    """Recognise the utterances of a batch; return references and hypotheses."""
    training = model.training
    model.eval()
    with torch.inference_mode():
        outputs = rows(*model(batch.inputs, batch.input_lengths))
    model.train(training)
    references = references_of(batch, recognition.units).values()
    return list(references), texts_of(recognition.greedy_search, outputs, recognition.jobs)


def references_of(batch: CtcBatch, units: Units) -> dict[str, str]:
    """Convert the labels of a batch to text: utterance id -> reference."""
    return dict(zip(batch.ids, map(units.decode, batch.label_sequences()), strict=True))


def texts_of(decoder: Decoder, outputs: Sequence[Tensor], jobs: int) -> list[str]:
    """Decode the model's outputs, [T, C] each; return the best hypotheses."""
    return [hypotheses[0].text for hypotheses in decoder.decode_many(outputs, jobs)]


def rows(log_probs: Tensor, lengths: Tensor) -> list[Tensor]:
    """Split a batch into utterances without padding: [T_n, C] each, on the CPU."""
    return [row[:n] for row, n in zip(log_probs.cpu(), lengths.tolist(), strict=True)]


class EvaluationFolder:
    """Models to evaluate and their results, in the folder `evaluation/` of a training run.

    `epoch-0003/` is a model (see `toolkit.models.store`), complete once it has its configuration;
    `epoch-0003.json` is its result, after which the training removes the model. `finished` marks
    that no more models follow. `plan.json` describes the evaluation, for evaluators elsewhere.
    """

    def __init__(self, out: Path) -> None:
        self._folder = Path(out) / FOLDER

    def submit(self, epoch: int, model: torch.nn.Module) -> None:
        """Store a model for evaluation; replace one that an earlier start of the training left."""
        folder = self.model(epoch)
        # A model without its configuration, which is written last, counts as incomplete.
        (folder / CONFIG).unlink(missing_ok=True)
        self._result(epoch).unlink(missing_ok=True)
        save_model(folder, model)

    def model(self, epoch: int) -> Path:
        """Return the folder of an epoch's model."""
        return self._folder / f"epoch-{epoch:04d}"

    def waiting(self) -> list[int]:
        """List the epochs that have a model but no result, oldest first."""
        names = sorted(path.parent.name for path in self._folder.glob(f"epoch-*/{CONFIG}"))
        epochs = [int(name.removeprefix("epoch-")) for name in names]
        return [epoch for epoch in epochs if self.result(epoch) is None]

    def finish(self, epoch: int, result: dict[str, float]) -> None:
        """Store a result: what `HeldOutEvaluation` returned, and `duration` in seconds."""
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
        """Return whether no more models follow."""
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
    """Evaluate the epochs of a training run that runs in another process or on another machine.

    Args:
      out: the training's folder; it need not exist yet.
      evaluation: the evaluation to run.
      device: device of the model.
      until_finished: return when the training has finished; otherwise once no model is waiting.
      plan: description that `evaluation` was made from; when it changes or disappears, the training
        was restarted or its folder renamed, and the function returns.
      on_result: called with each epoch and its result.

    Returns:
      Number of epochs that were evaluated.
    """
    folder, number = EvaluationFolder(out), 0
    while folder.plan() == plan:
        # Read before the list of models, so that a model submitted in between is not missed.
        finished = folder.is_finished()
        for epoch in folder.waiting():
            started = time.monotonic()
            result = evaluation(load_model(folder.model(epoch)).to(device))
            if folder.plan() != plan:
                break  # the training was restarted meanwhile, so the result is of another model
            folder.finish(epoch, {**result, "duration": time.monotonic() - started})
            number += 1
            if on_result is not None:
                on_result(epoch, result)
        if finished or not until_finished:
            break
        time.sleep(POLL)
    return number


class BackgroundEvaluator:
    """Evaluates in the background of a training run: `resident`, `process` or `elsewhere`.

    Args:
      kind: see `StatesConfig.evaluator`.
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
          pending: the epoch whose result is still needed from an earlier start, or None. That
            start's models of other epochs are removed.
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
        started = reminded = time.monotonic()
        while (result := self._folder.result(epoch)) is None:
            self._check(epoch)
            if self._kind == "elsewhere" and time.monotonic() - reminded > REMINDER:
                reminded = time.monotonic()
                logger.info(
                    "waiting for `toolkit ctc evaluate` to evaluate %s",
                    self._folder.model(epoch),
                )
            time.sleep(POLL)
        return result, time.monotonic() - started

    def end(self) -> None:
        """Mark that no more epochs follow."""
        self._folder.end()

    def stop(self) -> None:
        """End the evaluating process, if there is one."""
        # After `end` the process ends by itself. If `end` was not called, the training has failed.
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
        with block_sigint():
            process.start()
        self._process = process

    def _check(self, epoch: int) -> None:
        """Raise a TrainingError if no process can evaluate the epoch any more."""
        model, process = self._folder.model(epoch), self._process
        is_removed = not (model / CONFIG).exists()
        has_ended = process is not None and not process.is_alive()
        # The result is read last: it may have been written just before the process ended.
        if not (is_removed or has_ended) or self._folder.result(epoch) is not None:
            return
        if has_ended:
            raise TrainingError(
                f"the process that evaluates {model} ended with exit status {process.exitcode}; "
                "see the message of that process above. Run the same command again to resume from "
                "the last checkpoint"
            )
        raise TrainingError(f"{model} was removed before it was evaluated: train from scratch")


def _serve(
    environment: Mapping[str, str],
    out: Path,
    evaluation: HeldOutEvaluation,
    device: str,
    until_finished: bool,
) -> None:
    """Run `evaluate_elsewhere` in a process of this machine."""
    start_worker(environment)
    evaluate_elsewhere(out, evaluation, device, until_finished)
