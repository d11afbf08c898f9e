"""A small task with an LSTM on chunks of frames, for studies of large batches (B2)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from toolkit.scaling.simulator.task import Frames

CHUNK = 16
"""Frames of a chunk, over which gradients go back in time."""


@dataclass(frozen=True)
class SpeechLikeConfig:
    """Frames that look like speech to a network: what a frame is depends on those around it.

    Phones follow each other by a bigram and last some frames; features glide from one phone's
    target to the next, under a speaker's offset and noise that is correlated in time.
    """

    frames: int = 36_864
    """Number of training frames."""
    valid_frames: int = 8192
    """Number of validation frames, of other speakers."""
    phones: int = 24
    """Number of classes."""
    dimension: int = 12
    """Dimension of a frame."""
    seed: int = 0
    """Random seed."""


def speech_like_frames(config: SpeechLikeConfig) -> tuple[Frames, Frames]:
    """Draw training and validation frames, in their order in time."""
    rng = np.random.default_rng(config.seed)
    targets = rng.normal(0, 1.1, (config.phones, config.dimension))
    follow = rng.dirichlet(np.full(config.phones, 0.3), config.phones)
    mean_length = rng.uniform(2, 6, config.phones)

    def draw(frames: int) -> Frames:
        classes = np.empty(frames, dtype=np.int64)
        place, phone = 0, 0
        while place < frames:
            phone = rng.choice(config.phones, p=follow[phone])
            length = 1 + rng.poisson(mean_length[phone])
            classes[place : place + length] = phone
            place += length
        speakers = rng.normal(0, 0.4, (frames // 1000 + 1, config.dimension))
        noise = rng.normal(0, 1, (frames, config.dimension))
        features = np.empty((frames, config.dimension), dtype=np.float32)
        glide, hum = np.zeros(config.dimension), np.zeros(config.dimension)
        for t in range(frames):
            glide = 0.55 * glide + 0.45 * targets[classes[t]]
            hum = 0.6 * hum + 0.8 * noise[t]
            features[t] = glide + hum + speakers[t // 1000]
        return Frames(torch.from_numpy(features), torch.from_numpy(classes))

    return draw(config.frames), draw(config.valid_frames)


class SequenceTask:
    """See `toolkit.scaling.simulator.task.Task`: cross entropy of an LSTM on chunks of frames.

    Args:
      train: training frames in their order in time; what is left of the last chunk is not used.
      valid: validation frames, likewise.
      hidden: cells of the LSTM.
      seed: of the initial weights and of the order of the chunks.
    """

    def __init__(self, train: Frames, valid: Frames, hidden: int = 24, seed: int = 0) -> None:
        classes = int(torch.cat([train.targets, valid.targets]).max()) + 1
        self._train, self._valid, self._hidden, self._seed = train, valid, hidden, seed
        self._inputs, self._targets = _chunks(train)
        self._valid_inputs, self._valid_targets = _chunks(valid)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._model = _Lstm(train.inputs.shape[1], hidden, classes)
        self._parameters = list(self._model.parameters())
        self._initial = parameters_to_vector(self._parameters).detach().clone()
        self.size = len(self._initial)
        """P, number of weights."""
        self.frames = self._targets.numel()
        """Frames of an epoch."""
        self._order: tuple[int, np.ndarray] | None = None

    def reseeded(self, seed: int) -> "SequenceTask":
        """Return the same task with other initial weights and another order of the chunks."""
        return SequenceTask(self._train, self._valid, self._hidden, seed)

    def initial(self) -> Tensor:
        """See `Task`."""
        return self._initial.clone()

    def gradients(self, weights: Tensor, minibatches: Sequence[int], frames: int) -> Tensor:
        """See `Task`; `frames` are whole chunks."""
        chunks = frames // CHUNK
        found = []
        for index, number in enumerate(minibatches):
            if index == 0 or len(weights) > 1:
                vector_to_parameters(weights[index], self._parameters)
            chosen = self.sample_indices(number * chunks, chunks)
            logits = self._model(self._inputs[chosen])
            targets = self._targets[chosen].flatten()
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets)
            parts = torch.autograd.grad(loss, self._parameters)
            found.append(torch.cat([part.reshape(-1) for part in parts]))
        return torch.stack(found)

    @torch.no_grad()
    def evaluate(self, weights: Tensor) -> tuple[float, float]:
        """See `Task`."""
        vector_to_parameters(weights, self._parameters)
        logits = self._model(self._valid_inputs).flatten(0, 1)
        targets = self._valid_targets.flatten()
        loss = nn.functional.cross_entropy(logits, targets)
        return float(loss), float((logits.argmax(dim=1) == targets).double().mean())

    def sample_indices(self, first: int, count: int) -> Tensor:
        """Return the chunks of a minibatch; every epoch has its own permutation.

        Args:
          first: chunks before it, over all epochs.
          count: its number of chunks.

        Returns:
          [count] indices of training chunks.
        """
        total, parts = len(self._targets), []
        while count:
            epoch, place = divmod(first, total)
            if self._order is None or self._order[0] != epoch:
                self._order = epoch, np.random.default_rng([self._seed, epoch]).permutation(total)
            here = self._order[1][place : place + count]
            parts.append(here)
            first, count = first + len(here), count - len(here)
        return torch.from_numpy(np.concatenate(parts))


class _Lstm(nn.Module):
    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True)
        self.output = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.lstm(x)[0])


def _chunks(frames: Frames) -> tuple[Tensor, Tensor]:
    """Cut frames into chunks: [N, CHUNK, D] and [N, CHUNK]."""
    whole = len(frames) // CHUNK * CHUNK
    inputs, targets = frames.inputs[:whole], frames.targets[:whole]
    return inputs.unflatten(0, (-1, CHUNK)), targets.unflatten(0, (-1, CHUNK))
