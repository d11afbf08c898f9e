"""Neural acoustic models as scorers: log-posteriors, priors, normalisation, streaming."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from toolkit.features.low_frame_rate import LOW_RATE_FACTOR, stack
from toolkit.features.normalise import Cmvn
from toolkit.features.shards import CmnState, FeatureStore
from toolkit.models.lstm import LstmModel, LstmState, with_lookahead
from toolkit.models.store import ModelError, load_model
from toolkit.models.tdnnf import TdnnfModel
from toolkit.processes.devices import full_float32, to_device
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_json, reading

PRIORS = "priors.json"
FLOOR = 0.01


def log_priors(counts: Tensor) -> Tensor:
    """Compute log p(s) from counts of training frames.

    Decoding uses log p(x | s) = log p(s | x) - log p(s) + const. A target that was hardly seen
    would get a large likelihood from the noise of its posterior; therefore counts below a hundredth
    of the mean count are raised to that hundredth.

    Args:
      counts: [C] frames of each target, not all 0.

    Returns:
      [C] float32, natural logarithm.
    """
    counts = counts.double()
    # log p(s) = log(n_s / sum_s n_s), with n_s of at least FLOOR times the mean count
    floored = counts.clamp(min=FLOOR * float(counts.mean()))
    return (floored / floored.sum()).log().float()


def save_priors(folder: Path, counts: Tensor) -> None:
    """Write the counts [C] of training frames as `priors.json` in a model's folder."""
    write_atomically(Path(folder) / PRIORS, json.dumps({"counts": counts.tolist()}) + "\n")


def load_log_priors(folder: Path) -> Tensor:
    """Read log p(s) [C] float32 of the model in `folder`.

    Raises:
      ModelError: the file is missing or damaged.
    """
    path = Path(folder) / PRIORS
    with reading(path, ModelError, "train the model again", "holds no priors"):
        counts = torch.tensor(read_json(path, {"counts": [float]})["counts"])
        if not (counts.ge(0).all() and 0 < counts.sum() < math.inf):
            raise ValueError("no counts")
        return log_priors(counts)


@torch.inference_mode()
def log_posteriors(model: nn.Module, utterances: Sequence[Tensor]) -> list[Tensor]:
    """Compute log p(target | x) of whole utterances in one batch.

    Args:
      model: as `LstmModel`, with `config.lookahead`; put in evaluation mode by this call.
      utterances: low-rate features, [T_n, D] each, on the CPU or the model's device; similar
        lengths need the least padding.

    Returns:
      For each utterance [T_n, C], float32, natural logarithm, on the CPU. The other utterances of a
      batch change its values by rounding at most.
    """
    logits = batch_logits(model, utterances)
    rows = torch.cat(logits).float().log_softmax(dim=-1).cpu()  # one copy of all rows
    return list(rows.split([len(row) for row in logits]))


@torch.inference_mode()
def batch_logits(model: nn.Module, utterances: Sequence[Tensor]) -> list[Tensor]:
    """Compute the logits [T_n, C] of whole utterances in one batch, on the model's device.

    Arguments are those of `log_posteriors`.
    """
    model.eval()
    device = next(model.parameters()).device
    lengths = torch.tensor([len(features) for features in utterances])
    if not lengths.any():  # torch's LSTM does not accept empty inputs
        return [torch.zeros(0, model.config.output_dim, device=device) for _ in utterances]
    rows = [with_lookahead(features.float(), model.config.lookahead) for features in utterances]
    inputs = to_device(nn.utils.rnn.pad_sequence(rows, batch_first=True), device)
    with full_float32(device):
        logits, _ = model(inputs, lengths=lengths)
    return [row[: len(features)] for row, features in zip(logits, utterances, strict=True)]


class NeuralModel:
    """A network with its priors and its features' normaliser.

    Args:
      folder: the trained model, with `priors.json`.
      normaliser: the file of the features' normaliser.
      device: where the network computes.

    Raises:
      ModelError, NormaliserError: the files cannot be read, or do not belong together.
    """

    def __init__(self, folder: Path, normaliser: Path, device: str = "cpu") -> None:
        self._folder = folder
        self.model: nn.Module = load_model(folder).to(device)
        self.normaliser = Cmvn.load(normaliser)
        self.log_priors = load_log_priors(folder)
        sizes = self.model.config.input_dim, self.model.config.output_dim
        expected = LOW_RATE_FACTOR * len(self.normaliser.prior_mean), len(self.log_priors)
        if expected != sizes:
            raise ModelError(
                f"{folder} is a model with {sizes[0]} inputs and {sizes[1]} targets, but "
                f"{normaliser} and the priors are for {expected[0]} inputs and {expected[1]} "
                "targets. The files are from different training runs: use those of one run"
            )

    def log_likelihoods(
        self, features: Tensor, state: CmnState | None = None, offset: int = 0
    ) -> Tensor:
        """Compute log p(s|x) - log p(s) of stored features.

        Args:
          features: [T, F] raw log-mel energies at 100 Hz.
          state: the running mean after the speaker's earlier utterances; None for a new speaker.
          offset: 0, 1 or 2, the raw frame that the first stack begins with.

        Returns:
          [ceil((T - offset) / 3), P] at 33 Hz, on the CPU.
        """
        return self.batch_log_likelihoods([(features, state)], offset)[0]

    def batch_log_likelihoods(
        self, utterances: Sequence[tuple[Tensor, CmnState | None]], offset: int = 0
    ) -> list[Tensor]:
        """Return `log_likelihoods` of several utterances, computed in one batch.

        Raises:
          ModelError: outputs are not finite, so that a search would find no path.
        """
        inputs = [stack(self.normaliser.apply(x, state), offset) for x, state in utterances]
        posteriors = log_posteriors(self.model, inputs)
        # Bayes: log p(x|s) = log p(s|x) - log p(s) + log p(x), which is the same for all states
        return [self.checked(row - self.log_priors) for row in posteriors]

    def checked(self, scores: Tensor) -> Tensor:
        """Return scores unchanged, or raise an error if they are not finite.

        Raises:
          ModelError: the scores are not finite.
        """
        if not scores.isfinite().all():
            raise ModelError(
                f"{self._folder}: the model's outputs are not finite numbers: the model, its "
                "normaliser or the features are damaged"
            )
        return scores


@dataclass
class NeuralScorer:
    """A neural model that scores stored features; implements `toolkit.align.scorer.Scorer`."""

    model: Path
    """The trained model's folder."""
    normaliser: Path
    """The file of the features' normaliser."""
    features: Path
    """A feature store of log-mel energies."""
    offset: int = 0
    """The first raw frame of the first stack: 0, 1 or 2."""
    frame_shift: float = 0.03
    """Seconds between frames."""
    device: str = "cpu"
    """Where the network computes; on a GPU see `toolkit.align.scorer`."""

    @cached_property
    def store(self) -> FeatureStore:
        """The feature store."""
        return FeatureStore(self.features)

    @cached_property
    def _model(self) -> NeuralModel:
        """The loaded model."""
        return NeuralModel(self.model, self.normaliser, self.device)

    def log_likelihoods(self, utterance: str) -> Tensor:
        """Return scaled log-likelihoods [T, P], given the speaker's earlier utterances."""
        return self.batch_log_likelihoods([utterance])[0]

    def scores_of(self, utterance: str, pdfs: Tensor) -> Tensor:
        """Return the columns `pdfs` of `log_likelihoods`: [T, len(pdfs)]; all are computed."""
        return self.log_likelihoods(utterance)[:, pdfs]

    def batch_log_likelihoods(self, utterances: Sequence[str]) -> list[Tensor]:
        """Return scaled log-likelihoods [T, P] of several utterances, on the CPU."""
        stored = [(self.store.load(name), self.store.cmn_state(name)) for name in utterances]
        return self._model.batch_log_likelihoods(stored, self.offset)


class OnlineNetwork(Protocol):
    """A network that computes the logits of an utterance piece by piece."""

    def push(self, inputs: Tensor) -> Tensor:
        """Take the next low-rate frames [t, D]; return the logits [n, C] that are complete.

        They belong to the first frames whose logits have not been returned yet.
        """

    def finish(self, inputs: Tensor) -> Tensor:
        """Take the last frames [t, D], t >= 0; return all remaining logits [n, C]."""


class OnlineLstm:
    """A unidirectional LSTM whose state is carried from piece to piece."""

    def __init__(self, model: LstmModel) -> None:
        self._model = model.eval()
        self._waiting = torch.zeros(0, model.config.input_dim)
        self._last: Tensor | None = None
        self.state: LstmState | None = None
        """After the last frame that the LSTM has read."""

    def push(self, inputs: Tensor) -> Tensor:
        """Take the next frames; logits of the last `lookahead` frames wait for later frames."""
        if len(inputs):
            self._last = inputs[-1:]
        return self._run(inputs)

    def finish(self, inputs: Tensor) -> Tensor:
        """Take the last frames; copies of the last frame serve as the look-ahead."""
        if not len(inputs) and self._last is None:
            return torch.zeros(0, self._model.config.output_dim)
        whole = inputs if self._last is None else torch.cat([self._last, inputs])
        ahead = with_lookahead(whole, self._model.config.lookahead)
        return self._run(ahead[len(whole) - len(inputs) :])

    @torch.inference_mode()
    def _run(self, inputs: Tensor) -> Tensor:
        """Run the network over the next inputs, and keep its state."""
        self._waiting = torch.cat([self._waiting, inputs])
        # The first call of the LSTM needs more frames than the look-ahead.
        if len(self._waiting) <= (self._model.config.lookahead if self.state is None else 0):
            return torch.zeros(0, self._model.config.output_dim)
        logits, self.state = self._model(self._waiting[None], self.state)
        self._waiting = self._waiting[:0]
        return logits[0]


class OnlineTdnnf:
    """A TDNN-F that keeps the frames within the next output's context.

    Each piece is computed with its full context: the shorter the pieces, the more work is repeated.
    """

    def __init__(self, model: TdnnfModel) -> None:
        self._model = model.eval()
        self._context = model.config.raw_context - 1
        self._raw: Tensor | None = None  # [10 ms frames, F], from the next output's context on

    def push(self, inputs: Tensor) -> Tensor:
        """Take the next frames; return the logits whose right context is complete."""
        raw = inputs.reshape(LOW_RATE_FACTOR * len(inputs), self._model.input.in_channels)
        if self._raw is not None:
            raw = torch.cat([self._raw, raw])
        elif len(raw):
            raw = torch.cat([raw[:1].expand(self._context, -1), raw])
        else:
            return torch.zeros(0, self._model.config.output_dim)
        return self._run(raw)

    def finish(self, inputs: Tensor) -> Tensor:
        """Return the last logits; copies of the last 10 ms frame are their right context."""
        logits = self.push(inputs)
        if self._raw is None:
            return logits
        padded = torch.cat([self._raw, self._raw[-1:].expand(self._context, -1)])
        return torch.cat([logits, self._run(padded)])

    @torch.inference_mode()
    def _run(self, raw: Tensor) -> Tensor:
        """Compute the logits of raw frames."""
        # Low-rate frames whose context is complete on both sides
        ready = max(0, len(raw) - 2 * self._context) // LOW_RATE_FACTOR
        self._raw = raw[LOW_RATE_FACTOR * ready :]
        if not ready:
            return torch.zeros(0, self._model.config.output_dim)
        return self._model.logits(raw[None, : LOW_RATE_FACTOR * ready + 2 * self._context])[0]


def online(model: nn.Module) -> OnlineNetwork | None:
    """Return an `OnlineNetwork` for a new utterance; None if the network cannot run online."""
    if isinstance(model, LstmModel):
        return OnlineLstm(model)
    return OnlineTdnnf(model) if isinstance(model, TdnnfModel) else None
