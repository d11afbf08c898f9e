"""The CTC network: convolutions, LSTMs, batch normalisation and dropout (A12-A16)."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from toolkit.models.config import CtcConfig
from toolkit.models.lstm import run_bidirectional
from toolkit.models.lstm_cpu import is_faster_than_torch, run_lstm
from toolkit.processes.devices import full_float32, to_device


class MaskedBatchNorm(nn.Module):
    """Normalises features over a batch's real frames: (x - mean) / sqrt(var + epsilon).

    Unlike in `nn.BatchNorm1d`, padding is ignored in the batch's and in the running statistics, and
    the outputs for padding are 0. The computation is in float32 or wider, even under autocast.

    Args:
      features: F.
      epsilon: the paper's delta, for which it gives no value; 1e-5 is torch's default.
      momentum: weight of a batch in the running statistics, as in torch.
    """

    def __init__(self, features: int, epsilon: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Normalise by the batch's statistics in training, else by running statistics.

        Args:
          x: [N, T, F].
          mask: [N, T] bool, true for real frames; None: all are real. The values of
            other frames are not used.

        Returns:
          [N, T, F], of the weight's type.
        """
        x = x.to(self.weight.dtype)
        padding = None if mask is None else ~mask[:, :, None]  # [N, T, 1]
        if not self.training:
            # w (x - mean) / sqrt(var + eps) + b as one product and one sum (A15)
            scale = self.weight * (self.running_var + self.epsilon).rsqrt()
            y = torch.addcmul(self.bias - self.running_mean * scale, x, scale)
            return y if padding is None else y.masked_fill(padding, 0)
        if padding is None:
            count = x.shape[0] * x.shape[1]
        else:
            x = x.masked_fill(padding, 0)
            count = mask.sum().clamp(min=1)
        # Mean and biased variance of each feature over the real frames: [F]
        mean = x.sum(dim=(0, 1)) / count
        centred = x - mean
        if padding is not None:
            centred = centred.masked_fill(padding, 0)
        var = centred.square().sum(dim=(0, 1)) / count
        self._track(mean.detach(), var.detach(), count)
        y = torch.addcmul(self.bias, centred, self.weight * (var + self.epsilon).rsqrt())
        return y if padding is None else y.masked_fill(padding, 0)

    def _track(self, mean: Tensor, var: Tensor, count: Tensor | int) -> None:
        """Update the running statistics, which use the unbiased variance."""
        degrees = count - 1  # Bessel's correction: n / (n - 1), with n - 1 at least 1
        degrees = degrees.clamp(min=1) if isinstance(degrees, Tensor) else max(degrees, 1)
        unbiased = var * (count / degrees)
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(unbiased, self.momentum)


class CtcState(NamedTuple):
    """The state of a stream between two calls of `CtcModel.stream`."""

    tails: list[Tensor]
    """For each convolution, the inputs [N, t, F] that its next outputs still need."""
    lstms: list[tuple[Tensor, Tensor] | None]
    """For each LSTM, its hidden and cell state, [1, N, H] each; None before its first frame."""


class CtcModel(nn.Module):
    """Convolutions, LSTMs and a linear layer, with batch normalisation and dropout in between.

    Weights are drawn as by TensorFlow's Xavier initialisation; the biases of forget gates start at
    1, as in its LSTMCell.
    """

    def __init__(self, config: CtcConfig) -> None:
        super().__init__()
        self.config = config
        sizes = (config.input_dim, *config.channels)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(sizes[i], sizes[i + 1], config.kernels[i], config.strides[i])
            for i in range(len(config.channels))
        )
        width = config.hidden * (1 + config.bidirectional)
        self.lstms = nn.ModuleList(
            nn.LSTM(
                width if i else sizes[-1],
                config.hidden,
                batch_first=True,
                bidirectional=config.bidirectional,
            )
            for i in range(config.lstm_layers)
        )
        # One normalisation after each convolution and each LSTM (A13)
        norm_sizes = (*config.channels, *[width] * config.lstm_layers)
        self.norms = nn.ModuleList(MaskedBatchNorm(size) for size in norm_sizes)
        self.output = nn.Linear(width, config.output_dim)
        for layer in (*self.convolutions, self.output):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        for lstm in self.lstms:
            _initialise(lstm)

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute log p(unit | inputs) of whole utterances.

        Args:
          inputs: [N, T, D], padded on the right with anything: the padding changes no output of a
            real frame, no gradient and no running statistic.
          lengths: [N] int64 on the CPU, the real frames of each row; None: all T.

        Returns:
          log_probs: [N, T', C], float32 at least; those of the padding are meaningless.
          lengths: [N], how many of the T' frames are real, see `output_lengths`; 0 for rows
            that are too short. T' is 1 if even the longest row is too short.
        """
        if lengths is None:
            lengths = torch.full((inputs.shape[0],), inputs.shape[1])
        short = self.config.frames_needed - inputs.shape[1]
        x = functional.pad(inputs, (0, 0, 0, max(0, short)))
        mask = _mask(lengths, x)  # [N, T]
        x = x if mask is None else x.masked_fill(~mask[:, :, None], 0)
        for i, convolution in enumerate(self.convolutions):
            lengths = frames_after_convolution(
                lengths, self.config.kernels[i], self.config.strides[i]
            )
            # The stride reduces the number of frames, and so the lengths and the mask: [N, T'].
            x = self._convolve(convolution, x)
            mask = _mask(lengths, x)
            x = self._between(x, i, mask)
        for i, lstm in enumerate(self.lstms, len(self.convolutions)):
            x = self._between(self._recur(lstm, x, lengths), i, mask)
        return _log_softmax(self.output(x)), lengths

    def stream(self, inputs: Tensor, state: CtcState | None = None) -> tuple[Tensor, CtcState]:
        """Compute all outputs that the next inputs make possible.

        The outputs of consecutive calls equal those of the whole utterance, for any block sizes.

        Args:
          inputs: [N, T, D], the next frames of N streams; any T.
          state: the state that the previous call returned; None at the beginning.

        Returns:
          log_probs [N, t, C], t may be 0, and the state for the next call.

        Raises:
          ValueError: the model is bidirectional, or in training mode.
        """
        if self.config.bidirectional or self.training:
            raise ValueError("streaming needs a unidirectional model in evaluation mode")
        if state is None:
            widths = (self.config.input_dim, *self.config.channels[:-1])
            tails = [inputs.new_zeros(inputs.shape[0], 0, width) for width in widths]
            state = CtcState(tails, [None] * len(self.lstms))
        x, tails, lstms = inputs, [], []
        for i, convolution in enumerate(self.convolutions):
            x = torch.cat([state.tails[i], x], dim=1)
            kernel, stride = self.config.kernels[i], self.config.strides[i]
            frames = max(0, (x.shape[1] - kernel) // stride + 1)
            # The next output begins at input frame `frames * stride`: keep all from there on.
            tails.append(x[:, frames * stride :])
            if not frames:
                empty = x.new_zeros(x.shape[0], 0, self.config.output_dim)
                return empty, CtcState([*tails, *state.tails[i + 1 :]], state.lstms)
            x = self._between(self._convolve(convolution, x), i, None)
        for i, lstm in enumerate(self.lstms):
            x, lstm_state = lstm(x, state.lstms[i])
            lstms.append(lstm_state)
            x = self._between(x, len(self.convolutions) + i, None)
        return _log_softmax(self.output(x)), CtcState(tails, lstms)

    def _convolve(self, convolution: nn.Conv1d, x: Tensor) -> Tensor:
        """Apply a convolution and its activation to x [N, T, F]."""
        y = convolution(x.transpose(1, 2)).transpose(1, 2)
        return y.relu() if self.config.activation == "relu" else y

    def _between(self, x: Tensor, layer: int, mask: Tensor | None) -> Tensor:
        """Apply batch normalisation and dropout after a layer."""
        return functional.dropout(self.norms[layer](x, mask), self.config.dropout, self.training)

    def _recur(self, lstm: nn.LSTM, x: Tensor, lengths: Tensor) -> Tensor:
        """Run an LSTM over the real frames, with the fastest implementation."""
        if is_faster_than_torch(lstm, x):
            return run_lstm(lstm, x, lengths=lengths.clamp(min=1))[0]
        if not lstm.bidirectional or bool((lengths == x.shape[1]).all()):
            return lstm(x)[0]
        return run_bidirectional(lstm, x, lengths)


@torch.inference_mode()
def ctc_log_probs(model: nn.Module, utterances: Sequence[Tensor]) -> list[Tensor]:
    """Compute log p(unit | x) of whole utterances in one batch.

    Args:
      model: as `CtcModel`; put in evaluation mode by this call.
      utterances: normalised features [T_n, D] of each; similar lengths need the least padding.

    Returns:
      For each utterance [T'_n, C] on the CPU, without frames for one that is too short.
    """
    model.eval()
    inputs = nn.utils.rnn.pad_sequence(list(utterances), batch_first=True)
    lengths = torch.tensor([len(features) for features in utterances])
    device = next(model.parameters()).device
    with full_float32(device):
        log_probs, lengths = model(to_device(inputs, device), lengths)
    return [row[:n] for row, n in zip(log_probs.cpu(), lengths.tolist(), strict=True)]


def output_lengths(config: CtcConfig, lengths: Tensor) -> Tensor:
    """Return the number of output frames of each input; 0 for inputs that are too short.

    A convolution without padding gives floor((x - kernel) / stride) + 1 frames for x frames. The
    paper's equation 5 lacks its rounding brackets; rounding up would also give 830 for 1,670
    frames (A12). But if x - kernel is a multiple of the stride, only the form here (TensorFlow's
    and torch's) counts the last frame.
    """
    for kernel, stride in zip(config.kernels, config.strides, strict=True):
        lengths = frames_after_convolution(lengths, kernel, stride)
    return lengths


def frames_after_convolution(lengths: Tensor, kernel: int, stride: int) -> Tensor:
    """Return the number of frames of each row after a convolution without padding."""
    return (torch.div(lengths - kernel, stride, rounding_mode="floor") + 1).clamp(min=0)


def _mask(lengths: Tensor, x: Tensor) -> Tensor | None:
    """Return which frames of x [N, T, F] are real; None if all are."""
    frames = x.shape[1]
    if bool((lengths == frames).all()):
        return None
    return torch.arange(frames, device=x.device) < to_device(lengths, x.device)[:, None]


def _log_softmax(logits: Tensor) -> Tensor:
    """Return the log-softmax in float32 or higher precision."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)


def _initialise(lstm: nn.LSTM) -> None:
    """Draw input and recurrent weights as one Xavier matrix; set forget biases to 1.

    Two biases per gate exist for cuDNN; the second starts at 0.
    """
    hidden = lstm.hidden_size
    # Xavier's bound sqrt(6 / (fan_in + fan_out)) of TensorFlow's one matrix [D + H, 4 H] (A13)
    bound = (6 / (lstm.input_size + hidden + 4 * hidden)) ** 0.5
    for name, parameter in lstm.named_parameters():
        if name.startswith("weight"):
            nn.init.uniform_(parameter, -bound, bound)
        else:
            nn.init.zeros_(parameter)
            if name.startswith("bias_ih"):  # rows H to 2 H are the forget gate's
                nn.init.ones_(parameter.data[hidden : 2 * hidden])
