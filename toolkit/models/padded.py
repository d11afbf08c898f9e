"""Bidirectional LSTMs over padded utterances."""

from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from toolkit.processes.devices import to_device


def run_padded(lstm: nn.LSTM, inputs: Tensor, lengths: Tensor) -> Tensor:
    """Run an LSTM over the real frames of each row alone.

    As torch's packing with `enforce_sorted=False`, which waits for the GPU to sort the rows and to
    put them back.

    Args:
      lstm: batch first.
      inputs: [N, T, D], padded on the right with anything.
      lengths: [N] on the CPU, the real frames of each row; 0 counts as 1.

    Returns:
      [N, T, directions * H]; zeros in the padding.
    """
    lengths, order = lengths.clamp(min=1).sort(descending=True)
    rows = to_device(order, inputs.device)
    packed = pack_padded_sequence(inputs.index_select(0, rows), lengths, batch_first=True)
    hidden, _ = pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=inputs.shape[1])
    return hidden.index_select(0, to_device(order.argsort(), inputs.device))
