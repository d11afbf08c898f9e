"""Evaluation of a CTC model: error rates of recognition on held-out utterances (A22, A25)."""

import zlib
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
        """Convert labels to text."""


class Text(Protocol):
    """A hypothesis."""

    text: str


class Decoder(Protocol):
    """Decodes log-probabilities, see `toolkit.decode.ctc.decoder`."""

    def decode_many(self, utterances: Sequence[Tensor], jobs: int = 1) -> Iterator[Sequence[Text]]:
        """Yield the n-best lists of utterances, [T, C] each, in order."""


class Rates(Protocol):
    """Error rates in per cent, see `toolkit.score.wer`."""

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
    """Units, decoders and scoring of a CTC model's recognition; picklable."""

    units: Units
    """Output units of the model."""
    sentences: Decoder
    """Decoder for the sentences generated during training; beam width 1 (A24)."""
    search: Decoder
    """Decoder for evaluation; beam width 256 (A24)."""
    score: Score
    """Scoring function, such as `toolkit.score.wer.error_rates`."""
    jobs: int = 1
    """Number of threads for `search`."""
    utterances: int | None = None
    """How many utterances an evaluation recognises; None: all."""


class Evaluation:
    """Evaluates a model on held-out utterances.

    Args:
      valid: held-out batches, iterated over at each evaluation.
      recognition: decoders and scoring.
      objective: its loss is reported as well.
    """

    def __init__(
        self, valid: Iterable[CtcBatch], recognition: Recognition, objective: CtcObjective
    ) -> None:
        self._valid = valid
        self._recognition = recognition
        self._objective = objective

    def __call__(self, model: CtcModel) -> dict[str, float]:
        """Evaluate; the model is left in evaluation mode.

        Returns:
          `loss` per weight; `wer`, `cer` (the paper's definition), `cer_usual` and `ser` in per
          cent. An utterance that is too short for an output has an empty hypothesis.
        """
        model.eval()
        device = model.output.weight.device
        recognition = self._recognition
        sample = _Sample(recognition.utterances)
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
                if recognition.utterances is not None:
                    sample.add(refs, outputs)
                    continue
                references |= refs
                texts += texts_of(recognition.search, outputs, recognition.jobs)
        if recognition.utterances is not None:
            references, outputs = sample.chosen()
            texts = texts_of(recognition.search, outputs, recognition.jobs)
        rates = recognition.score(references, dict(zip(references, texts, strict=True)))
        of_texts = {name: getattr(rates, name) for name in ("wer", "cer", "cer_usual", "ser")}
        return {"loss": loss / weight, **of_texts}


class _Sample:
    """The utterances whose ids have the lowest checksums, whatever the order of the batches."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._kept: list[tuple[int, str, str, Tensor]] = []

    def add(self, references: Mapping[str, str], outputs: Sequence[Tensor]) -> None:
        for (name, text), output in zip(references.items(), outputs, strict=True):
            self._kept.append((zlib.crc32(name.encode()), name, text, output.clone()))
        self._kept = sorted(self._kept, key=lambda entry: entry[:2])[: self._most]

    def chosen(self) -> tuple[dict[str, str], list[Tensor]]:
        """Return references by id, and the outputs."""
        references = {name: text for _, name, text, _ in self._kept}
        return references, [output for *_, output in self._kept]


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
    return list(references), texts_of(recognition.sentences, outputs, recognition.jobs)


def references_of(batch: CtcBatch, units: Units) -> dict[str, str]:
    """Convert the labels of a batch to text: utterance id -> reference."""
    return dict(zip(batch.ids, map(units.decode, batch.label_sequences()), strict=True))


def texts_of(decoder: Decoder, outputs: Sequence[Tensor], jobs: int) -> list[str]:
    """Decode the model's outputs, [T, C] each; return the best hypotheses."""
    return [hypotheses[0].text for hypotheses in decoder.decode_many(outputs, jobs)]


def rows(log_probs: Tensor, lengths: Tensor) -> list[Tensor]:
    """Split a batch into utterances without padding: [T_n, C] each, on the CPU."""
    return [row[:n] for row, n in zip(log_probs.cpu(), lengths.tolist(), strict=True)]
