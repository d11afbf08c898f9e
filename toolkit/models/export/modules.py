"""Wrappers for export: modules with plain tensors, states included, as inputs and outputs."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from toolkit.models.blstm import BlstmModel
from toolkit.models.ctc import CtcModel
from toolkit.models.lstm import LstmModel
from toolkit.models.store import ModelError
from toolkit.models.tdnnf import TdnnfModel, repeat_ends


class ExportedLstm(nn.Module):
    """`LstmModel`: (inputs [N, T, D], hidden, cell) -> (log-posteriors [N, T, C], hidden, cell).

    Hidden and cell are [layers, N, H], zeros at the beginning. Nothing is skipped: the first
    `lookahead` outputs belong to no frame.
    """

    def __init__(self, model: LstmModel) -> None:
        super().__init__()
        self.lstm, self.output = model.lstm, model.output

    def forward(self, inputs: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, ...]:
        """Run over more frames."""
        outputs, (hidden, cell) = self.lstm(inputs, (hidden, cell))
        return self.output(outputs).log_softmax(dim=-1), hidden, cell


class ExportedBlstm(nn.Module):
    """`BlstmModel`: inputs [N, T, D], without padding -> log-posteriors [N, T, C]."""

    def __init__(self, model: BlstmModel) -> None:
        super().__init__()
        self.lstm, self.output = model.lstm, model.output

    def forward(self, inputs: Tensor) -> Tensor:
        """Run over whole utterances."""
        return self.output(self.lstm(inputs)[0]).log_softmax(dim=-1)


class ExportedTdnnf(nn.Module):
    """`TdnnfModel`: inputs [N, T, D], without padding -> log-posteriors [N, T, C]."""

    def __init__(self, model: TdnnfModel) -> None:
        super().__init__()
        self.model = model
        self.padding = model.config.raw_context - 1

    def forward(self, inputs: Tensor) -> Tensor:
        """Run over whole utterances."""
        raw = inputs.reshape(inputs.shape[0], -1, self.model.input.in_channels)
        return self.model.logits(repeat_ends(raw, self.padding)).log_softmax(dim=-1)


class ExportedCtc(nn.Module):
    """`CtcModel`: (inputs [N, T, D], hidden, cell) -> (log-posteriors [N, T', C], hidden, cell).

    Hidden and cell are [layers, N, H], zeros at the beginning; a model of two directions has
    neither. The convolutions keep no state: each piece begins with the last `overlap` inputs of
    the piece before. Rows have no padding.
    """

    def __init__(self, model: CtcModel) -> None:
        super().__init__()
        self.convolutions, self.lstms = model.convolutions, model.lstms
        self.norms, self.output = model.norms, model.output
        self.rectified = model.config.activation == "relu"
        self.bidirectional = model.config.bidirectional

    def forward(
        self, inputs: Tensor, hidden: Tensor | None = None, cell: Tensor | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        """Run over more frames."""
        x, norms = inputs, iter(self.norms)
        for convolution in self.convolutions:
            x = convolution(x.transpose(1, 2)).transpose(1, 2)
            x = next(norms)(x.relu() if self.rectified else x, None)
        hiddens, cells = [], []
        for layer, lstm in enumerate(self.lstms):
            if hidden is None or cell is None:
                x, _ = lstm(x)
            else:
                before = hidden[layer : layer + 1], cell[layer : layer + 1]
                x, (after, last) = lstm(x, before)
                hiddens.append(after)
                cells.append(last)
            x = next(norms)(x, None)
        posteriors = self.output(x).log_softmax(dim=-1)
        return (posteriors, torch.cat(hiddens), torch.cat(cells)) if hiddens else posteriors


@dataclass(frozen=True)
class Interface:
    """How an exported model is called."""

    kind: str
    """`lstm`, `blstm`, `tdnnf` or `ctc`."""
    input_dim: int
    """D."""
    output_dim: int
    """C."""
    state: tuple[int, int] | None
    """Layers and cells of hidden and cell; None: the model sees whole utterances."""
    lookahead: int
    """Number of outputs at the beginning that belong to no frame, and of inputs needed beyond the
    last frame for its output: copies of it at the end of an utterance."""
    overlap: int
    """Inputs of the piece before with which a piece begins."""
    stacked: int
    """Raw frames in an input."""
    stride: int
    """Inputs per output."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the exported model's inputs."""
        return ("inputs",) if self.state is None else ("inputs", "hidden", "cell")

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the exported model's outputs."""
        first = "log_posteriors"
        return (first,) if self.state is None else (first, "hidden_out", "cell_out")

    def initial_state(self, rows: int) -> tuple[Tensor, ...]:
        """The states before the first frame of `rows` utterances."""
        if self.state is None:
            return ()
        layers, cells = self.state
        return torch.zeros(layers, rows, cells), torch.zeros(layers, rows, cells)


def wrap_for_export(model: nn.Module) -> tuple[nn.Module, Interface]:
    """Wrap a model for export, sharing its weights; return the wrapper and its interface.

    Raises:
      ModelError: there is no wrapper for models of this class.
    """
    config = model.config
    if isinstance(model, LstmModel):
        state, lookahead = (config.layers, config.hidden), config.lookahead
        sizes = config.input_dim, config.output_dim
        return ExportedLstm(model).eval(), Interface("lstm", *sizes, state, lookahead, 0, 3, 1)
    if isinstance(model, BlstmModel):
        sizes = config.input_dim, config.output_dim
        return ExportedBlstm(model).eval(), Interface("blstm", *sizes, None, 0, 0, 3, 1)
    if isinstance(model, TdnnfModel):
        sizes = config.input_dim, config.output_dim
        return ExportedTdnnf(model).eval(), Interface("tdnnf", *sizes, None, 0, 0, 3, 1)
    if not isinstance(model, CtcModel):
        raise ModelError(
            f"{type(model).__name__} cannot be exported: toolkit/models/export/modules.py wraps "
            "LstmModel, BlstmModel, TdnnfModel and CtcModel; write a wrapper of its kind there"
        )
    state = None if config.bidirectional else (config.lstm_layers, config.hidden)
    overlap = 0 if state is None else config.frames_needed - config.subsampling
    sizes = config.input_dim, config.output_dim
    interface = Interface("ctc", *sizes, state, 0, overlap, 1, config.subsampling)
    return ExportedCtc(model).eval(), interface
