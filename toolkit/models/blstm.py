"""The bidirectional LSTM acoustic model: the teacher (C9)."""

from dataclasses import dataclass

from torch import Tensor, nn

from toolkit.models.lstm import initialise
from toolkit.models.padded import run_padded
from toolkit.models.recurrence import replaces_torch, run_lstm


@dataclass(frozen=True)
class BlstmConfig:
    """Sizes of a `BlstmModel`."""

    input_dim: int = 192
    """D, values per low-rate frame: 3 stacked frames of 64 log-mel energies (C5)."""
    output_dim: int = 3183
    """C, number of targets: 3,183 senones (C3). Training sets it to what its alignments need."""
    hidden: int = 768
    """Cells per layer and direction; 768 (C9)."""
    layers: int = 5
    """Number of layers of two directions; 5 (C9). With 192 inputs and 3,183 targets that makes
    67.5 million parameters; the paper says 78 million."""
    dropout: float = 0.0
    """Probability of dropping a value between two layers; 0 in the paper."""

    def __post_init__(self) -> None:
        for name in ("input_dim", "output_dim", "hidden", "layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be at least 1")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}, needs to be in [0, 1)")

    @property
    def lookahead(self) -> int:
        """Input frames needed beyond the last: none, since the whole utterance is given."""
        return 0


class BlstmModel(nn.Module):
    """Stacked bidirectional LSTM layers and one linear layer to the logits."""

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
        """Compute logits.

        Args:
          inputs: [N, T, D], padded on the right with anything.
          lengths: [N] on the CPU, the real frames of each row; None: all T. The LSTM from the right
            begins at the last real frame, so that padding changes nothing.

        Returns:
          logits: [N, T, C]; those of the padding mean nothing.
          None, as there is no state to go on from.
        """
        if replaces_torch(self.lstm, inputs):
            return self.output(run_lstm(self.lstm, inputs, lengths=lengths)[0]), None
        if lengths is None or bool((lengths == inputs.shape[1]).all()):
            return self.output(self.lstm(inputs)[0]), None
        return self.output(run_padded(self.lstm, inputs, lengths)), None
