"""An LSTM that predicts the next word."""

from torch import Tensor, nn
from torch.nn import functional

from toolkit.models.config import WordLstmConfig
from toolkit.models.lstm import LstmState, initialise
from toolkit.models.lstm_cpu import is_faster_than_torch, run_lstm

LARGEST_FIRST_WEIGHT = 0.1
"""Word vectors begin uniformly between minus this and this."""


class WordLstm(nn.Module):
    """Word vectors, LSTM layers, and a softmax whose weights are the word vectors ("tied")."""

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
        """Read words.

        Args:
          words: [N, T] word ids; rows may be padded on the right with any ids.
          state: what an earlier call returned, to go on after its words; None for zeros.

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
