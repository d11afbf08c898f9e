"""What recognition on held-out utterances says of a CTC model (A22, A25)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from toolkit.models.ctc import CtcModel
from toolkit.train.ctc.batch import CtcBatch
from toolkit.train.ctc.objective import CtcObjective
from toolkit.train.prefetch import prefetched

BATCHES_AHEAD = 2


class Units(Protocol):
    """Output units, see `toolkit.lang.units.units`."""

    size: int
    blank: int

    def decode(self, ids: Sequence[int]) -> str:
        """Write labels as text."""


class Text(Protocol):
    """A hypothesis."""

    text: str


class Decoder(Protocol):
    """Turns log-probabilities into texts, see `toolkit.decode.ctc.decoder`."""

    def decode_many(self, utterances: Sequence[Tensor], jobs: int = 1) -> Iterator[Sequence[Text]]:
        """Yield hypotheses, the best first, of utterances [T, C] each, in order."""


class Rates(Protocol):
    """Error rates in per cent, see `toolkit.score.cer`."""

    wer: float
    cer: float
    cer_usual: float
    ser: float


class Score(Protocol):
    """Compares hypotheses with references, both by utterance id."""

    def __call__(self, refs: Mapping[str, str], hyps: Mapping[str, str]) -> Rates:
        """Score all utterances together."""


@dataclass(frozen=True)
class Recognition:
    """How sentences are made of a model's output and judged; processes get a copy."""

    units: Units
    """What the model's outputs are."""
    sentences: Decoder
    """For the sentences during training; beam width 1 (A24)."""
    search: Decoder
    """For evaluation; beam width 256 (A24)."""
    score: Score
    """`toolkit.score.cer.error_rates` or the like."""
    jobs: int = 1
    """Threads that `search` may use."""


class Evaluation:
    """Measures a model on held-out utterances.

    Args:
      valid: batches, gone through from the first to the last each time.
      recognition: what is done with the model's output.
      objective: its loss is reported too.
    """

    def __init__(
        self, valid: Iterable[CtcBatch], recognition: Recognition, objective: CtcObjective
    ) -> None:
        self._valid = valid
        self._recognition = recognition
        self._objective = objective

    def __call__(self, model: CtcModel) -> dict[str, float]:
        """Measure; the model is left in evaluation mode.

        Returns:
          `loss` per weight; `wer`, `cer` (the paper's), `cer_usual` and `ser` in per cent, an
          utterance that is too short to give an output counting as nothing recognised.
        """
        model.eval()
        device = model.output.weight.device
        recognition = self._recognition
        references: dict[str, str] = {}
        texts: list[str] = []
        loss = weight = 0.0
        with torch.inference_mode():
            for batch in prefetched(self._valid, BATCHES_AHEAD):
                moved = batch.to(device)
                log_probs, lengths = model(moved.inputs, moved.input_lengths)
                value, stats = self._objective.of(log_probs, lengths, moved)
                loss, weight = loss + value.item(), weight + stats["weight"].item()
                references |= references_of(batch, recognition.units)
                outputs = rows(log_probs, lengths)
                texts += texts_of(recognition.search, outputs, recognition.jobs)
        rates = recognition.score(references, dict(zip(references, texts, strict=True)))
        of_texts = {name: getattr(rates, name) for name in ("wer", "cer", "cer_usual", "ser")}
        return {"loss": loss / weight, **of_texts}


def sentences(
    model: CtcModel, batch: CtcBatch, recognition: Recognition
) -> tuple[list[str], list[str]]:
    """Recognise the utterances of a batch, as evaluation would; references and hypotheses."""
    training = model.training
    model.eval()
    with torch.inference_mode():
        outputs = rows(*model(batch.inputs, batch.input_lengths))
    model.train(training)
    references = references_of(batch, recognition.units).values()
    return list(references), texts_of(recognition.sentences, outputs, recognition.jobs)


def references_of(batch: CtcBatch, units: Units) -> dict[str, str]:
    """Write the labels of a batch as text, by utterance."""
    return dict(zip(batch.ids, map(units.decode, batch.label_sequences()), strict=True))


def texts_of(decoder: Decoder, outputs: Sequence[Tensor], jobs: int) -> list[str]:
    """Recognise utterances: [T, C] each."""
    return [hypotheses[0].text for hypotheses in decoder.decode_many(outputs, jobs)]


def rows(log_probs: Tensor, lengths: Tensor) -> list[Tensor]:
    """Take a batch apart: [T_n, C] each, on the CPU."""
    return [row[:n] for row, n in zip(log_probs.cpu(), lengths.tolist(), strict=True)]
