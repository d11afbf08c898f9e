"""Bidirectional LSTMs over padded utterances."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from toolkit.models.recurrence import ordered, reversal
from toolkit.processes.devices import to_device


def run_padded(lstm: nn.LSTM, inputs: Tensor, lengths: Tensor) -> Tensor:
    """Run an LSTM over the real frames of each row alone.

    Args:
      lstm: batch first, two directions.
      inputs: [N, T, D], padded on the right with anything.
      lengths: [N] on the CPU, the real frames of each row; 0 counts as 1.

    Returns:
      [N, T, 2 H]; zeros in the padding.
    """
    lengths = lengths.clamp(min=1)
    turns = inputs.device.type == "cpu" and isinstance(lstm, nn.LSTM)  # not one of integers
    return (_turned if turns else _packed)(lstm, inputs, lengths)


def _packed(lstm: nn.LSTM, inputs: Tensor, lengths: Tensor) -> Tensor:
    """As torch's packing with `enforce_sorted=False`, which waits for the GPU to sort the rows."""
    lengths, order = lengths.sort(descending=True)
    rows = to_device(order, inputs.device)
    packed = pack_padded_sequence(inputs.index_select(0, rows), lengths, batch_first=True)
    hidden, _ = pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=inputs.shape[1])
    return hidden.index_select(0, to_device(order.argsort(), inputs.device))


def _turned(lstm: nn.LSTM, inputs: Tensor, lengths: Tensor) -> Tensor:
    """Run each direction by itself, the second on rows whose real frames are turned around.

    Padding is behind the real frames then, where it changes none of them. Of packed rows torch
    computes frame by frame on the CPU, and a gradient of the weights for each. Measured on one
    thread of a busy machine, torch 2.15, seconds of a forward and a backward pass of 16 rows of 94
    to 110 frames, 384 values, 192 cells: 0.28 against 1.78; of 8 rows of 255 to 300, 800 values,
    400 cells: 2.1 against 13.9.
    """
    frames = inputs.shape[1]
    turned = reversal(frames, len(inputs), lengths)
    padding = (torch.arange(frames)[:, None] >= lengths)[:, :, None]
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
        hidden = torch.cat(outputs, dim=2).masked_fill(padding, 0)
    return hidden.transpose(0, 1)
