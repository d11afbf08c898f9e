"""An LSTM that predicts the next word."""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from toolkit.models.lstm import LstmState, initialise
from toolkit.models.lstm_cpu import is_faster_than_torch, run_lstm

LARGEST_FIRST_WEIGHT = 0.1
"""Word vectors begin uniformly between minus this and this."""


@dataclass(frozen=True)
class WordLstmConfig:
    """Sizes of a `WordLstm`."""

    vocabulary: int = 20_000
    """V, number of words with <s>, </s> and <UNK>. Training sets it to what its text needs."""
    hidden: int = 256
    """H, cells per layer, and numbers per word vector."""
    layers: int = 1
    """Number of LSTM layers."""
    dropout: float = 0.3
    """Probability of dropping a value of a word vector and of a layer's output."""

    def __post_init__(self) -> None:
        for name in ("vocabulary", "hidden", "layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be at least 1")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}, needs to be in [0, 1)")


class WordLstm(nn.Module):
    """Word vectors, LSTM layers, and a softmax whose weights are the word vectors ("tied")."""

    def __init__(self, config: WordLstmConfig) -> None:
        super().__init__()
        self.config = config
        between = config.dropout if config.layers > 1 else 0.0  # torch: none after the last layer
        self.lstm = nn.LSTM(
            config.hidden, config.hidden, config.layers, batch_first=True, dropout=between
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
