"""The unidirectional LSTM acoustic model with a few frames of look-ahead (C3, C6)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from toolkit.models.recurrence import replaces_torch, run_lstm
from toolkit.processes.devices import full_float32, to_device

LstmState = tuple[Tensor, Tensor]
"""Hidden and cell state after the last input frame, each [layers, N, hidden]."""


@dataclass(frozen=True)
class LstmConfig:
    """Sizes of an `LstmModel`."""

    input_dim: int = 192
    """D, values per low-rate frame: 3 stacked frames of 64 log-mel energies (C5)."""
    output_dim: int = 3183
    """C, number of targets: 3,183 senones (C3). Training sets it to what its alignments need."""
    hidden: int = 768
    """Cells per layer; 768 (C6)."""
    layers: int = 5
    """Number of LSTM layers; 5 (C6)."""
    lookahead: int = 3
    """Input frames (of 30 ms) that are read before an output is given; 3 (C6)."""
    dropout: float = 0.0
    """Probability of dropping a value between two layers; 0 in the paper."""

    def __post_init__(self) -> None:
        for name in ("input_dim", "output_dim", "hidden", "layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be at least 1")
        if self.lookahead < 0:
            raise ValueError(f"lookahead is {self.lookahead}, needs to be 0 frames or more")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}, needs to be in [0, 1)")


class LstmModel(nn.Module):
    """Stacked LSTM layers and one linear layer to the targets' logits.

    Look-ahead is defined here and nowhere else: the logits of frame n come out when input frame
    n + lookahead has been read. The caller therefore gives `lookahead` frames beyond the last one
    that is to be scored: real ones where the utterance goes on, else its last frame repeated
    (`with_lookahead`).
    """

    def __init__(self, config: LstmConfig) -> None:
        super().__init__()
        self.config = config
        dropout = config.dropout if config.layers > 1 else 0.0  # torch: none after the last layer
        self.lstm = nn.LSTM(
            config.input_dim, config.hidden, config.layers, batch_first=True, dropout=dropout
        )
        self.output = nn.Linear(config.hidden, config.output_dim)
        initialise(self.lstm, self.output)

    def forward(
        self, inputs: Tensor, state: LstmState | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, LstmState]:
        """Compute logits.

        Nothing to the right of frame n + lookahead changes the logits of frame n, so rows of
        different lengths may be padded on the right with anything; the padding's outputs mean
        nothing, and `state` means something only for rows without padding.

        Args:
          inputs: [N, T + lookahead, D] at the start of an utterance (or of a training chunk);
            [N, T, D] when `state` is given, which then includes the look-ahead.
          state: what an earlier call returned, to go on where its input ended; None for zeros.
          lengths: not used, see above; accepted because models of other kinds need them.

        Returns:
          logits: [N, T, C]. Over consecutive calls they are the same as those of one call.
          state: after the last input frame.
        """
        skipped = self.config.lookahead if state is None else 0
        if replaces_torch(self.lstm, inputs):
            hidden, state = run_lstm(self.lstm, inputs, state)
        else:
            hidden, state = self.lstm(inputs, state)
        return self.output(hidden[:, skipped:]), state


def initialise(lstm: nn.LSTM, output: nn.Linear) -> None:
    """Xavier for input and output weights, orthogonal recurrence, forget gates open at first.

    Two biases per gate exist for cuDNN; the second stays a plain parameter that starts at 0.
    """
    hidden = lstm.hidden_size
    for name, parameter in lstm.named_parameters():
        if name.startswith("weight"):
            fill = nn.init.xavier_uniform_ if "ih" in name else nn.init.orthogonal_
            for gate in parameter.data.split(hidden):
                fill(gate)
        else:
            nn.init.zeros_(parameter)
            if name.startswith("bias_ih"):
                nn.init.ones_(parameter.data[hidden : 2 * hidden])
    nn.init.xavier_uniform_(output.weight)
    nn.init.zeros_(output.bias)


def with_lookahead(features: Tensor, lookahead: int) -> Tensor:
    """Repeat the last frame of a whole utterance: [T, D] -> [T + lookahead, D]."""
    if not lookahead or not len(features):
        return features
    return torch.cat([features, features[-1:].expand(lookahead, -1)])


@torch.inference_mode()
def log_posteriors(model: nn.Module, utterances: Sequence[Tensor]) -> list[Tensor]:
    """Compute log p(target | x) of whole utterances in one batch.

    Args:
      model: as `LstmModel`, with `config.lookahead`; put in evaluation mode by this call.
      utterances: low-rate features, [T_n, D] each, on the CPU or the model's device; similar
        lengths waste the least.

    Returns:
      For each utterance [T_n, C], float32, natural logarithm, on the CPU. The batch an utterance
      is in changes its values by rounding at most.
    """
    logits = batch_logits(model, utterances)
    found = torch.cat(logits).float().log_softmax(dim=-1).cpu()  # one copy of all rows
    return list(found.split([len(row) for row in logits]))


@torch.inference_mode()
def batch_logits(model: nn.Module, utterances: Sequence[Tensor]) -> list[Tensor]:
    """Compute the logits of whole utterances in one batch: [T_n, C] each, on the model's device.

    Arguments are those of `log_posteriors`.
    """
    model.eval()
    device = next(model.parameters()).device
    lengths = torch.tensor([len(features) for features in utterances])
    if not lengths.any():  # torch has no LSTM over nothing
        return [torch.zeros(0, model.config.output_dim, device=device) for _ in utterances]
    rows = [with_lookahead(features.float(), model.config.lookahead) for features in utterances]
    inputs = to_device(nn.utils.rnn.pad_sequence(rows, batch_first=True), device)
    with full_float32(device):
        logits, _ = model(inputs, lengths=lengths)
    return [row[: len(features)] for row, features in zip(logits, utterances, strict=True)]
