"""Acoustic models on streams: an utterance's logits piece by piece, those of the whole."""

from typing import Protocol

import torch
from torch import Tensor, nn

from toolkit.features.config import LOW_RATE_FACTOR
from toolkit.models.lstm import LstmModel, LstmState, with_lookahead
from toolkit.models.tdnnf import TdnnfModel


class OnlineNetwork(Protocol):
    """A network within an utterance that goes on."""

    def push(self, inputs: Tensor) -> Tensor:
        """Take the next low-rate frames [t, D]; return the logits [n, C] that can be known, n >= 0.

        They are those of the first frames whose logits were not returned yet.
        """

    def finish(self, inputs: Tensor) -> Tensor:
        """Take the last frames [t, D], t >= 0; return the logits [n, C] of all that are left."""


class OnlineLstm:
    """A unidirectional LSTM, whose state goes on from piece to piece."""

    def __init__(self, model: LstmModel) -> None:
        self._model = model.eval()
        self._waiting = torch.zeros(0, model.config.input_dim)
        self._last: Tensor | None = None
        self.state: LstmState | None = None
        """After the last frame that the LSTM has read."""

    def push(self, inputs: Tensor) -> Tensor:
        """Take the next frames; the logits of the last `lookahead` frames wait for later ones."""
        if len(inputs):
            self._last = inputs[-1:]
        return self._run(inputs)

    def finish(self, inputs: Tensor) -> Tensor:
        """Take the last frames, and repeat the last one as often as the network looks ahead."""
        if not len(inputs) and self._last is None:
            return torch.zeros(0, self._model.config.output_dim)
        whole = inputs if self._last is None else torch.cat([self._last, inputs])
        ahead = with_lookahead(whole, self._model.config.lookahead)
        return self._run(ahead[len(whole) - len(inputs) :])

    @torch.inference_mode()
    def _run(self, inputs: Tensor) -> Tensor:
        self._waiting = torch.cat([self._waiting, inputs])
        # The first call of the LSTM needs more frames than the look-ahead.
        if len(self._waiting) <= (self._model.config.lookahead if self.state is None else 0):
            return torch.zeros(0, self._model.config.output_dim)
        logits, self.state = self._model(self._waiting[None], self.state)
        self._waiting = self._waiting[:0]
        return logits[0]


class OnlineTdnnf:
    """A TDNN-F, of which the frames within its context of the next output are kept.

    A piece is computed with that context anew: the shorter the pieces, the more is computed twice.
    """

    def __init__(self, model: TdnnfModel) -> None:
        self._model = model.eval()
        self._context = model.config.raw_context - 1
        self._raw: Tensor | None = None  # [frames of 10 ms, F], from the context's first on

    def push(self, inputs: Tensor) -> Tensor:
        """Compute the logits whose right context is complete with the next frames."""
        raw = inputs.reshape(LOW_RATE_FACTOR * len(inputs), self._model.input.in_channels)
        if self._raw is not None:
            raw = torch.cat([self._raw, raw])
        elif len(raw):
            raw = torch.cat([raw[:1].expand(self._context, -1), raw])
        else:
            return torch.zeros(0, self._model.config.output_dim)
        return self._run(raw)

    def finish(self, inputs: Tensor) -> Tensor:
        """Compute the last logits; the last frame of 10 ms is repeated as their right context."""
        logits = self.push(inputs)
        if self._raw is None:
            return logits
        padded = torch.cat([self._raw, self._raw[-1:].expand(self._context, -1)])
        return torch.cat([logits, self._run(padded)])

    @torch.inference_mode()
    def _run(self, raw: Tensor) -> Tensor:
        # Low-rate frames whose context is complete on both sides
        ready = max(0, len(raw) - 2 * self._context) // LOW_RATE_FACTOR
        self._raw = raw[LOW_RATE_FACTOR * ready :]
        if not ready:
            return torch.zeros(0, self._model.config.output_dim)
        return self._model.logits(raw[None, : LOW_RATE_FACTOR * ready + 2 * self._context])[0]


def online(model: nn.Module) -> OnlineNetwork | None:
    """Begin an utterance; None if the network cannot compute frame by frame."""
    if isinstance(model, LstmModel):
        return OnlineLstm(model)
    return OnlineTdnnf(model) if isinstance(model, TdnnfModel) else None
