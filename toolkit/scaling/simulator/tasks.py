"""The small tasks that simulated workers train on: single frames, and sequences of frames."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

CHUNK = 16
"""Frames of a chunk, over which gradients go back in time."""


@dataclass(frozen=True)
class SyntheticConfig:
    """Synthetic frames, drawn from a Gaussian mixture per class and shifted by a speaker offset."""

    frames: int = 131_072
    """Number of training frames."""
    valid_frames: int = 16_384
    """Number of validation frames, of other speakers."""
    classes: int = 32
    """Number of classes; class c has a frequency in proportion to 1 / (c + 4), as senones differ in
    frequency."""
    dimension: int = 16
    """Dimension of a frame."""
    components: int = 3
    """Gaussians per class."""
    spread: float = 0.9
    """Standard deviation of the Gaussians' means; that of each Gaussian is 1."""
    seed: int = 0
    """Random seed."""


@dataclass(frozen=True)
class SpeechLikeConfig:
    """Speech-like frames, whose classes depend on the neighbouring frames.

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


@dataclass(frozen=True)
class Frames:
    """Feature frames with their classes."""

    inputs: Tensor
    """[F, D] float32."""
    targets: Tensor
    """[F] int64."""

    def __len__(self) -> int:
        return len(self.targets)


def synthetic_frames(config: SyntheticConfig) -> tuple[Frames, Frames]:
    """Draw training and validation frames."""
    rng = np.random.default_rng(config.seed)
    shape = (config.classes, config.components, config.dimension)
    centres = rng.normal(0, config.spread, shape)
    frequency = 1 / (np.arange(config.classes) + 4)

    def draw(frames: int) -> Frames:
        # x = centre of class and component + N(0, I) + speaker offset N(0, 0.25 I).
        classes = rng.choice(config.classes, frames, p=frequency / frequency.sum())
        component = rng.integers(config.components, size=frames)
        speakers = rng.normal(0, 0.5, (max(1, frames // 500), config.dimension))  # 500 frames each
        noise = rng.normal(0, 1, (frames, config.dimension))
        x = centres[classes, component] + noise + speakers[rng.integers(len(speakers), size=frames)]
        return Frames(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(classes))

    return draw(config.frames), draw(config.valid_frames)


class Task(Protocol):
    """A small task to train, on flat weights."""

    size: int
    """P, number of weights."""
    frames: int
    """Frames of an epoch."""

    def initial(self) -> Tensor:
        """Draw the initial weights: [P]."""

    def gradients(self, weights: Tensor, minibatches: Sequence[int], frames: int) -> Tensor:
        """Compute the gradients of the mean losses of minibatches, each at its own weights.

        Args:
          weights: [K, P], or [1, P] if all have the same weights.
          minibatches: K indices of minibatches, counted over all epochs.
          frames: frames per minibatch.

        Returns:
          [K, P].
        """

    def evaluate(self, weights: Tensor) -> tuple[float, float]:
        """Return the mean loss and the accuracy on the validation frames."""


class EpochSampler:
    """Returns the samples of minibatches; every epoch has its own permutation of the data.

    Args:
      size: samples of an epoch: frames or chunks.
      seed: seed of the permutations.
    """

    def __init__(self, size: int, seed: int) -> None:
        self._size, self._seed = size, seed
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.long)

    def __call__(self, first: int, count: int) -> Tensor:
        """Return the indices [count] of a minibatch.

        Args:
          first: number of samples before the minibatch, over all epochs.
          count: number of samples in the minibatch, which may extend into the next epochs.
        """
        parts = []
        while count:
            epoch, offset = divmod(first, self._size)
            if epoch != self._epoch:
                order = np.random.default_rng([self._seed, epoch]).permutation(self._size)
                self._epoch, self._order = epoch, torch.from_numpy(order)
            part = self._order[offset : offset + count]
            parts.append(part)
            first, count = first + len(part), count - len(part)
        return torch.cat(parts)


class FrameTask:
    """A `Task`: cross entropy of a network with ReLU hidden layers, on flat weights.

    Gradients are computed explicitly, since autograd's overhead would dominate at such sizes.

    Args:
      train: training frames.
      valid: validation frames.
      hidden: units of each hidden layer.
      seed: seed of the initial weights and of the order of the frames.
    """

    def __init__(
        self, train: Frames, valid: Frames, hidden: Sequence[int] = (32, 32), seed: int = 0
    ) -> None:
        classes = int(torch.cat([train.targets, valid.targets]).max()) + 1
        self._train = train
        self._valid = valid
        self._sizes = [train.inputs.shape[1], *hidden, classes]
        self._seed = seed
        self.sample_indices = EpochSampler(len(train), seed)
        """Returns a minibatch's frames from (number of frames before it, number of its frames)."""
        pairs = list(zip(self._sizes, self._sizes[1:], strict=False))
        self._splits = [n for inputs, outputs in pairs for n in (inputs * outputs, outputs)]
        self.size = sum(self._splits)
        """P, number of weights."""
        self.frames = len(train)
        """Frames of an epoch."""

    def reseeded(self, seed: int) -> "FrameTask":
        """Return the same task with other initial weights and another order of the frames."""
        return FrameTask(self._train, self._valid, self._sizes[1:-1], seed)

    def initial(self) -> Tensor:
        """Draw the initial weights: [P]."""
        generator = torch.Generator().manual_seed(self._seed)
        weights = torch.zeros(self.size)
        for matrix, _ in self._layers(weights[None]):
            # He initialisation, for rectified linear units.
            matrix.normal_(0, math.sqrt(2 / matrix.shape[1]), generator=generator)
        return weights

    def gradients(self, weights: Tensor, minibatches: Sequence[int], frames: int) -> Tensor:
        """Implement `Task.gradients`."""
        chosen = torch.stack(
            [self.sample_indices(number * frames, frames) for number in minibatches]
        )
        # K minibatches of B frames: [K, B, D] and [K, B].
        x, targets = self._train.inputs[chosen], self._train.targets[chosen]
        weights = weights.expand(len(chosen), -1)
        layers = self._layers(weights)
        activations = [x]
        # Forward pass, batched over the K models: x <- relu(x W + b), [K, B, H].
        for matrix, bias in layers[:-1]:
            x = torch.baddbmm(bias, x, matrix).relu_()
            activations.append(x)
        error = torch.baddbmm(layers[-1][1], x, layers[-1][0]).softmax(dim=2)
        # d loss / d logits = softmax - one_hot(target).
        error.scatter_add_(2, targets[:, :, None], torch.full((*targets.shape, 1), -1.0))
        # The loss is the mean over the minibatch.
        error /= frames
        gradients = torch.empty(weights.shape)
        parts = list(zip(layers, self._layers(gradients), activations, strict=True))
        # Back-propagation: the error [K, B, H] of a layer gives its gradients, then the error of
        # the layer below.
        for index in reversed(range(len(parts))):
            (matrix, _), (to_matrix, to_bias), x = parts[index]
            # dW = x^T error, db = sum over the minibatch of error.
            to_matrix.copy_(torch.bmm(x.transpose(1, 2), error))
            to_bias.copy_(error.sum(dim=1, keepdim=True))
            if index:
                # error <- (error W^T) * relu'(x); relu' is 1 where the activation is positive.
                error = torch.bmm(error, matrix.transpose(1, 2)).mul_(x > 0)
        return gradients

    def evaluate(self, weights: Tensor) -> tuple[float, float]:
        """Return the mean loss and the accuracy on the validation frames."""
        layers = self._layers(weights[None])
        x = self._valid.inputs[None]
        for matrix, bias in layers[:-1]:
            x = torch.baddbmm(bias, x, matrix).relu_()
        logits = torch.baddbmm(layers[-1][1], x, layers[-1][0])[0]
        targets = self._valid.targets
        loss = torch.nn.functional.cross_entropy(logits, targets)
        return float(loss), float((logits.argmax(dim=1) == targets).double().mean())

    def _layers(self, weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        """View [K, P] as the matrices [K, inputs, outputs] and biases [K, 1, outputs]."""
        parts = weights.split(self._splits, dim=1)
        return [
            (parts[2 * i].unflatten(1, (inputs, -1)), parts[2 * i + 1][:, None])
            for i, inputs in enumerate(self._sizes[:-1])
        ]


def speech_like_frames(config: SpeechLikeConfig) -> tuple[Frames, Frames]:
    """Draw training and validation frames, in their order in time."""
    rng = np.random.default_rng(config.seed)
    targets = rng.normal(0, 1.1, (config.phones, config.dimension))
    # Phone bigram, [phones, phones]; a concentration of 0.3 makes few successors likely.
    follow = rng.dirichlet(np.full(config.phones, 0.3), config.phones)
    mean_length = rng.uniform(2, 6, config.phones)

    def draw(frames: int) -> Frames:
        classes = np.empty(frames, dtype=np.int64)
        place, phone = 0, 0
        while place < frames:
            phone = rng.choice(config.phones, p=follow[phone])
            # Frames of a phone: 3 to 7 on average.
            length = 1 + rng.poisson(mean_length[phone])
            classes[place : place + length] = phone
            place += length
        # A speaker for every 1000 frames.
        speakers = rng.normal(0, 0.4, (frames // 1000 + 1, config.dimension))
        noise = rng.normal(0, 1, (frames, config.dimension))
        features = np.empty((frames, config.dimension), dtype=np.float32)
        glide, hum = np.zeros(config.dimension), np.zeros(config.dimension)
        for t in range(frames):
            # Coarticulation: features move towards the phone's target.
            glide = 0.55 * glide + 0.45 * targets[classes[t]]
            # Noise that is correlated in time; 0.6^2 + 0.8^2 = 1 keeps its variance.
            hum = 0.6 * hum + 0.8 * noise[t]
            features[t] = glide + hum + speakers[t // 1000]
        return Frames(torch.from_numpy(features), torch.from_numpy(classes))

    return draw(config.frames), draw(config.valid_frames)


class SequenceTask:
    """A `Task`: cross entropy of an LSTM on chunks of frames.

    Args:
      train: training frames in their order in time; an incomplete last chunk is not used.
      valid: validation frames, likewise.
      hidden: cells of the LSTM.
      seed: seed of the initial weights and of the order of the chunks.
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
        self.sample_indices = EpochSampler(len(self._targets), seed)
        """Returns a minibatch's chunks from (number of chunks before it, number of its chunks)."""

    def reseeded(self, seed: int) -> "SequenceTask":
        """Return the same task with other initial weights and another order of the chunks."""
        return SequenceTask(self._train, self._valid, self._hidden, seed)

    def initial(self) -> Tensor:
        """Implement `Task.initial`."""
        return self._initial.clone()

    def gradients(self, weights: Tensor, minibatches: Sequence[int], frames: int) -> Tensor:
        """Implement `Task.gradients`; `frames` are whole chunks."""
        chunks = frames // CHUNK
        gradients = []
        for index, number in enumerate(minibatches):
            # Synchronous methods pass one row of weights for all workers.
            if index == 0 or len(weights) > 1:
                vector_to_parameters(weights[index], self._parameters)
            chosen = self.sample_indices(number * chunks, chunks)
            logits = self._model(self._inputs[chosen])
            targets = self._targets[chosen].flatten()
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets)
            parts = torch.autograd.grad(loss, self._parameters)
            gradients.append(torch.cat([part.reshape(-1) for part in parts]))
        return torch.stack(gradients)

    @torch.no_grad()
    def evaluate(self, weights: Tensor) -> tuple[float, float]:
        """Return the loss and the accuracy on the validation data; see `Task`."""
        vector_to_parameters(weights, self._parameters)
        logits = self._model(self._valid_inputs).flatten(0, 1)
        targets = self._valid_targets.flatten()
        loss = nn.functional.cross_entropy(logits, targets)
        return float(loss), float((logits.argmax(dim=1) == targets).double().mean())


class _Lstm(nn.Module):
    """An LSTM layer and an output layer."""

    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True)
        self.output = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.lstm(x)[0])


def _chunks(frames: Frames) -> tuple[Tensor, Tensor]:
    """Cut frames into N chunks: features [N, CHUNK, D] and classes [N, CHUNK]."""
    whole = len(frames) // CHUNK * CHUNK
    inputs, targets = frames.inputs[:whole], frames.targets[:whole]
    return inputs.unflatten(0, (-1, CHUNK)), targets.unflatten(0, (-1, CHUNK))
