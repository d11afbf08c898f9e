"""LSTM layers each of which is followed by layer norm."""

import torch
from torch import Tensor, nn

from toolkit.models.recurrence import faster_than_torch, run_lstm

LstmState = tuple[Tensor, Tensor]
"""Hidden and cell state after the last input frame, each [layers, N, hidden]."""


class NormedLstm(nn.Module):
    """Called as `nn.LSTM` with batch first, whose layers' outputs it normalises.

    The mean of a frame's values is subtracted and their variance made 1, then each is scaled and
    shifted by weights of its own (Ba et al. 2016). Within a layer nothing is normalised, so that
    torch's LSTM computes it. Dropout follows the norm of all layers but the last.

    Args:
      input_size: values per frame.
      hidden_size: cells per layer.
      num_layers: number of layers.
      dropout: probability of dropping a value between two layers.
    """

    def __init__(self, input_size: int, hidden_size: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        sizes = [input_size, *[hidden_size] * (num_layers - 1)]
        self.layers = nn.ModuleList(nn.LSTM(size, hidden_size, batch_first=True) for size in sizes)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden_size) for _ in sizes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, state: LstmState | None = None) -> tuple[Tensor, LstmState]:
        """Run the layers: [N, T, D] to [N, T, H].

        Args:
          x: inputs.
          state: hidden and cell state before the first frame, [layers, N, H] each; None for zeros.
            Hidden states are not normalised.

        Returns:
          Normalised outputs of the last layer, and the state after the last frame.
        """
        hiddens, cells = [], []
        for i, (lstm, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            before = None if state is None else (state[0][i : i + 1], state[1][i : i + 1])
            if faster_than_torch(x):
                x, (hidden, cell) = run_lstm(lstm, x, before)
            else:
                x, (hidden, cell) = lstm(x, before)
            hiddens.append(hidden)
            cells.append(cell)
            x = norm(x)
            if i + 1 < len(self.layers):
                x = self.dropout(x)
        return x, (torch.cat(hiddens), torch.cat(cells))
