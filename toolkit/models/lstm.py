"""LSTM networks: unidirectional (C3, C6) and bidirectional (C9) models, and a language model."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from toolkit.models.config import BlstmConfig, LstmConfig, WordLstmConfig
from toolkit.models.lstm_cpu import is_faster_than_torch, ordered, reversal, run_lstm
from toolkit.processes.devices import to_device

LstmState = tuple[Tensor, Tensor]
"""Hidden and cell state after the last input frame, each [layers, N, hidden]."""


class LstmModel(nn.Module):
    """Unidirectional LSTM layers and a linear layer to logits.

    Look-ahead is defined only here: the logits of frame n are the output at input frame n +
    lookahead. So the caller passes `lookahead` frames after the last one to score: real frames if
    the utterance continues, else copies of its last frame (`with_lookahead`).
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
        """Compute the logits of a batch of utterances or pieces.

        Frames after n + lookahead do not affect the logits of frame n, so rows of different lengths
        may be padded on the right with anything. The outputs for padding are meaningless, and
        `state` is valid only for rows without padding.

        Args:
          inputs: [N, T + lookahead, D] at the start of an utterance (or of a training chunk);
            [N, T, D] when `state` is given, which then includes the look-ahead.
          state: the state that an earlier call returned, to continue from its last frame; None for
            zeros.
          lengths: not used, see above; accepted because models of other kinds need them.

        Returns:
          logits: [N, T, C]. Over consecutive calls they are the same as those of one call.
          state: after the last input frame.
        """
        skipped = self.config.lookahead if state is None else 0
        if is_faster_than_torch(self.lstm, inputs):
            hidden, state = run_lstm(self.lstm, inputs, state)
        else:
            hidden, state = self.lstm(inputs, state)
        return self.output(hidden[:, skipped:]), state


def initialise(lstm: nn.LSTM, output: nn.Linear) -> None:
    """Initialise an LSTM network: Xavier, orthogonal recurrent weights, forget biases of 1.

    Two biases per gate exist for cuDNN; the second stays a plain parameter that starts at 0.
    """
    hidden = lstm.hidden_size
    for name, parameter in lstm.named_parameters():
        if name.startswith("weight"):
            # [4 H, D or H]: each gate's matrix is drawn by itself.
            fill = nn.init.xavier_uniform_ if "ih" in name else nn.init.orthogonal_
            for gate in parameter.data.split(hidden):
                fill(gate)
        else:
            nn.init.zeros_(parameter)
            if name.startswith("bias_ih"):  # rows H to 2 H are the forget gate's
                nn.init.ones_(parameter.data[hidden : 2 * hidden])
    nn.init.xavier_uniform_(output.weight)
    nn.init.zeros_(output.bias)


def with_lookahead(features: Tensor, lookahead: int) -> Tensor:
    """Append copies of an utterance's last frame: [T, D] to [T + lookahead, D]."""
    if not lookahead or not len(features):
        return features
    return torch.cat([features, features[-1:].expand(lookahead, -1)])


def run_bidirectional(lstm: nn.LSTM, inputs: Tensor, lengths: Tensor) -> Tensor:
    """Run a bidirectional LSTM over the real frames of each row.

    Args:
      lstm: batch first, two directions.
      inputs: [N, T, D], padded on the right with anything.
      lengths: [N] on the CPU, the real frames of each row; 0 counts as 1.

    Returns:
      [N, T, 2 H]; zeros in the padding.
    """
    lengths = lengths.clamp(min=1)
    turns = inputs.device.type == "cpu" and isinstance(lstm, nn.LSTM)  # not a quantised one
    return (_run_reversed if turns else _run_packed)(lstm, inputs, lengths)


def _run_packed(lstm: nn.LSTM, inputs: Tensor, lengths: Tensor) -> Tensor:
    """Run the LSTM on packed rows, sorted by length on the CPU.

    Torch's packing with `enforce_sorted=False` does the same, but waits for the GPU.
    """
    # Packed rows must be in the order of decreasing lengths; `argsort` of the order inverts it.
    lengths, order = lengths.sort(descending=True)
    rows = to_device(order, inputs.device)
    packed = pack_padded_sequence(inputs.index_select(0, rows), lengths, batch_first=True)
    hidden, _ = pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=inputs.shape[1])
    return hidden.index_select(0, to_device(order.argsort(), inputs.device))


def _run_reversed(lstm: nn.LSTM, inputs: Tensor, lengths: Tensor) -> Tensor:
    """Run both directions separately, the second on rows with reversed real frames.

    Padding then follows the real frames, and does not affect them. With packed rows on the CPU,
    torch computes frame by frame, and a gradient of the weights for each frame. Measured on one
    thread of a busy machine, torch 2.15, forward and backward pass, reversed against packed: 0.28
    against 1.78 s for 16 rows of 94 to 110 frames, 384 values, 192 cells; 2.1 against 13.9 s for 8
    rows of 255 to 300 frames, 800 values, 400 cells.
    """
    frames = inputs.shape[1]
    turned = reversal(frames, len(inputs), lengths)
    padding = (torch.arange(frames)[:, None] >= lengths)[:, :, None]  # [T, N, 1]
    hidden = inputs.transpose(0, 1).masked_fill(padding, 0)
    for layer in range(lstm.num_layers):
        if layer:
            hidden = functional.dropout(hidden, lstm.dropout, lstm.training)
        start = hidden.new_zeros(1, len(inputs), lstm.hidden_size)
        outputs = []
        for backwards in (False, True):
            x = ordered(hidden, turned) if backwards else hidden
            weights = lstm.all_weights[2 * layer + backwards]
            output = torch.lstm(
                x, (start, start), weights, lstm.bias, 1, 0.0, lstm.training, False, False
            )[0]
            outputs.append(ordered(output, turned) if backwards else output)
        hidden = torch.cat(outputs, dim=2).masked_fill(padding, 0)  # [T, N, 2 H]
    return hidden.transpose(0, 1)


class BlstmModel(nn.Module):
    """Bidirectional LSTM layers and a linear layer to logits."""

    def __init__(self, config: BlstmConfig) -> None:
        super().__init__()
        self.config = config
        self.lstm = nn.LSTM(
            config.input_dim,
            config.hidden,
            config.layers,
            batch_first=True,
            dropout=config.dropout if config.layers > 1 else 0.0,  # torch: none after the last
            bidirectional=True,
        )
        self.output = nn.Linear(2 * config.hidden, config.output_dim)
        initialise(self.lstm, self.output)

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, None]:
        """Compute the logits of a batch of utterances.

        Args:
          inputs: [N, T, D], padded on the right with anything.
          lengths: [N] on the CPU, the real frames of each row; None: all T. The backward LSTM
            begins at the last real frame, so that padding changes nothing.

        Returns:
          logits: [N, T, C]; those of the padding are meaningless.
          None, as there is no state to continue from.
        """
        if is_faster_than_torch(self.lstm, inputs):
            return self.output(run_lstm(self.lstm, inputs, lengths=lengths)[0]), None
        if lengths is None or bool((lengths == inputs.shape[1]).all()):
            return self.output(self.lstm(inputs)[0]), None
        return self.output(run_bidirectional(self.lstm, inputs, lengths)), None


LARGEST_FIRST_WEIGHT = 0.1
"""Word vectors are drawn uniformly between minus this and this."""


class WordLstm(nn.Module):
    """LSTM language model whose output layer shares the word embeddings ("tied")."""

    def __init__(self, config: WordLstmConfig) -> None:
        super().__init__()
        self.config = config
        dropout = config.dropout if config.layers > 1 else 0.0  # torch: none after the last layer
        self.lstm = nn.LSTM(
            config.hidden, config.hidden, config.layers, batch_first=True, dropout=dropout
        )
        self.output = nn.Linear(config.hidden, config.vocabulary)
        self.dropout = nn.Dropout(config.dropout)
        initialise(self.lstm, self.output)
        nn.init.uniform_(self.output.weight, -LARGEST_FIRST_WEIGHT, LARGEST_FIRST_WEIGHT)

    def forward(self, words: Tensor, state: LstmState | None = None) -> tuple[Tensor, LstmState]:
        """Read words; return the hidden values after each word.

        Args:
          words: [N, T] word ids; rows may be padded on the right with any ids.
          state: the state that an earlier call returned, to continue after its words; None for
            zeros.

        Returns:
          hidden: [N, T, H]; `output` makes the logits [N, T, V] of each next word from it.
          state: after the last word, two times [layers, N, H].
        """
        vectors = self.dropout(functional.embedding(words, self.output.weight))
        if is_faster_than_torch(self.lstm, vectors):
            hidden, state = run_lstm(self.lstm, vectors, state)
        else:
            hidden, state = self.lstm(vectors, state)
        return self.dropout(hidden), state
