"""The factorised TDNN (TDNN-F) and its semi-orthogonal constraint (Povey et al. 2018)."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

from toolkit.features.config import LOW_RATE_FACTOR
from toolkit.models.config import TdnnfConfig
from toolkit.processes.devices import to_device

EVERY_STEPS = 4
"""Optimizer steps between two applications of the constraint, as in Kaldi."""
SPEED = 0.125
"""Kaldi's update speed, with which the updates converge quadratically."""
FAR, VERY_FAR = 1.02, 1.1
"""The update speed is halved above each of these ratios: the mean square of the eigenvalues of
M M^T, divided by their squared mean."""


def constrain(model: nn.Module, step: int) -> None:
    """Apply the constraint to a model's `semi_orthogonal` matrices, at every fourth step.

    Args:
      model: any model; one without `semi_orthogonal` is not changed.
      step: number of earlier steps, over all epochs.
    """
    constrain_matrices(getattr(model, "semi_orthogonal", ()), step)


def constrain_matrices(matrices: Iterable[Tensor], step: int) -> None:
    """Apply the semi-orthogonal constraint to matrices; see `constrain`."""
    if step % EVERY_STEPS == 0:
        for matrix in matrices:
            make_semi_orthogonal(matrix)


@torch.no_grad()
def make_semi_orthogonal(weight: Tensor) -> None:
    """Move M one step towards M M^T = a^2 I in place, with the scale a nearest to M's own.

    With P = M M^T and a^2 = tr(P P) / tr(P), the update is M - 4 v / a^2 (P - a^2 I) M: a gradient
    step on ||P - a^2 I||^2 with the update speed v = 1/8. As in Kaldi's floating scale, the norm of
    M is left to the optimizer, and v is smaller for a matrix that is far from semi-orthogonal:
    there the step would overshoot.

    Args:
      weight: [rows, ...], taken as a matrix of `rows` rows; transposed if it has more rows than
        columns.
    """
    matrix = weight.flatten(1)
    if matrix.shape[0] > matrix.shape[1]:
        matrix = matrix.t()
    product = matrix @ matrix.t()  # P
    trace, square = product.diagonal().sum(), product.square().sum()  # tr(P), tr(P P)
    scale = square / trace  # a^2
    # Mean square of P's eigenvalues over their squared mean: 1 for a semi-orthogonal matrix
    ratio = square * len(product) / trace.square()
    speed = SPEED * torch.where(ratio > VERY_FAR, 0.25, torch.where(ratio > FAR, 0.5, 1.0))
    product.diagonal().sub_(scale)
    matrix.sub_(4 * speed / scale * (product @ matrix))


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation of [N, F, T], by the running statistics if N = T = 1.

    A batch of a single frame has no variance, and torch raises an error for it.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalise a batch [N, F, T]."""
        if self.training and x.shape[0] * x.shape[2] == 1:
            return functional.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        return super().forward(x)


class FactorisedLayer(nn.Module):
    """A linear layer to a bottleneck, an affine layer back, ReLU, batch norm and a bypass.

    The linear layer reads the frames t - stride and t of the input, the affine one the frames t and
    t + stride of the bottleneck (Povey et al. 2018).

    Args:
      config: sizes.
      stride: context on either side, in frames of the layer's input.
      subsampling_factor: input frames per output frame.
    """

    def __init__(self, config: TdnnfConfig, stride: int, subsampling_factor: int = 1) -> None:
        super().__init__()
        width = 2 if stride else 1
        spacing = max(stride, 1)
        self.linear = nn.Conv1d(
            config.hidden, config.bottleneck, width, dilation=spacing, bias=False
        )
        self.affine = nn.Conv1d(
            config.bottleneck, config.hidden, width, subsampling_factor, dilation=spacing
        )
        self.norm = BatchNorm(config.hidden)
        self._stride, self._subsampling_factor = stride, subsampling_factor
        self._bypass, self._dropout = config.bypass, config.dropout

    def forward(self, x: Tensor) -> Tensor:
        """Run the layer: [N, H, T] to [N, H, ceil((T - 2 stride) / subsampling_factor)]."""
        y = self.norm(self.affine(self.linear(x)).relu())
        if self.training and self._dropout:
            # Dropout with one factor in [1 - p, 1 + p] per row and channel, for all its frames
            factors = torch.rand(*y.shape[:2], 1, device=y.device, dtype=y.dtype)
            y = y * (1 + self._dropout * (2 * factors - 1))
        # The bypass adds the input frame at the centre of each output's context.
        centres = slice(self._stride, -self._stride or None, self._subsampling_factor)
        return y + self._bypass * x[:, :, centres]


class TdnnfModel(nn.Module):
    """A convolution over raw frames, factorised layers, and a bottleneck before the logits.

    The input's stacked frames are split into raw frames again. The output of low-rate frame n
    depends on the raw frames up to `config.raw_context` before and after the middle one of the
    stack; beyond the ends of an utterance its first and last frame are repeated. In training, the
    batch norm's statistics are over all frames, repeated ones and padding included.
    """

    def __init__(self, config: TdnnfConfig) -> None:
        super().__init__()
        self.config = config
        full = config.at_full_rate
        first = 1 if full else LOW_RATE_FACTOR
        self.input = nn.Conv1d(config.input_dim // LOW_RATE_FACTOR, config.hidden, 3, first)
        self.input_norm = BatchNorm(config.hidden)
        layers = [
            FactorisedLayer(config, 1, LOW_RATE_FACTOR if i == full - 1 else 1) for i in range(full)
        ]
        layers += [FactorisedLayer(config, s // LOW_RATE_FACTOR) for s in config.strides[full:]]
        self.layers = nn.ModuleList(layers)
        self.narrow = nn.Conv1d(config.hidden, config.final, 1, bias=False)
        self.widen = nn.Conv1d(config.final, config.hidden, 1)
        self.wide_norm = BatchNorm(config.hidden)
        self.last = nn.Conv1d(config.hidden, config.final, 1, bias=False)
        self.last_norm = BatchNorm(config.final)
        self.output = nn.Linear(config.final, config.output_dim)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, None]:
        """Compute the logits of a batch of utterances.

        Args:
          inputs: [N, T, D], padded on the right with anything.
          lengths: [N] on the CPU, the real frames of each row; None: all T.

        Returns:
          logits: [N, T, C]; those of the padding are meaningless.
          None, as there is no state to continue from.
        """
        padding = self.config.raw_context - 1
        raw = inputs.reshape(len(inputs), -1, self.input.in_channels)  # [N, 3 T, F]
        if lengths is None or bool((lengths == inputs.shape[1]).all()):
            return self.logits(repeat_ends(raw, padding)), None
        # The raw frame to read at each position; outside a row's real frames, the nearest of them
        frames = torch.arange(-padding, raw.shape[1] + padding).clamp(min=0)
        last = LOW_RATE_FACTOR * lengths[:, None].clamp(min=1) - 1  # [N, 1]
        frames = to_device(frames.minimum(last), raw.device)
        return self.logits(raw.gather(1, frames[:, :, None].expand(-1, -1, raw.shape[2]))), None

    def logits(self, raw: Tensor) -> Tensor:
        """Compute the logits [N, T, C] of raw frames [N, 3 T + 2 (raw_context - 1), F]."""
        x = self.input_norm(self.input(raw.transpose(1, 2)).relu())  # [N, H, frames]
        for layer in self.layers:
            x = layer(x)
        x = self.wide_norm(self.widen(self.narrow(x)).relu())
        x = self.last_norm(self.last(x))
        return self.output(x.transpose(1, 2))

    @property
    def semi_orthogonal(self) -> list[Tensor]:
        """Weights of the bottleneck layers, which training keeps semi-orthogonal."""
        linear = [layer.linear for layer in self.layers]
        return [part.weight for part in (*linear, self.narrow, self.last)]


def repeat_ends(frames: Tensor, times: int) -> Tensor:
    """Repeat the first and last frames: [N, T, F] to [N, times + T + times, F]."""
    first, last = frames[:, :1].expand(-1, times, -1), frames[:, -1:].expand(-1, times, -1)
    return torch.cat([first, frames, last], dim=1)
