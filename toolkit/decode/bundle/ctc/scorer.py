"""The network of a CTC bundle: features to log-probabilities of the output units."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from toolkit.decode.bundle.ctc.settings import UNITS
from toolkit.decode.bundle.settings import ADVICE, MODEL, NORMALISER, BundleError
from toolkit.features.cmn_state import CmnState
from toolkit.features.normalise import Normaliser
from toolkit.lang.units.factory import load_units
from toolkit.models.ctc import CtcModel, CtcState, ctc_log_probs
from toolkit.models.store import load_model, quantize_int8
from toolkit.processes.devices import full_float32

WHOLE, WINDOW, CONTEXT = 6000, 3000, 500
"""In input frames: the longest recording that is scored at once, and the windows of longer ones."""


class CtcScorer:
    """Network, normaliser and units together.

    Args:
      bundle: the folder.
      device: where the network computes.
      int8: whether it computes in 8 bits, see `toolkit.models.store`; on the CPU alone.

    Raises:
      BundleError: the parts do not belong together.
    """

    def __init__(self, bundle: Path, device: str = "cpu", int8: bool = False) -> None:
        self._bundle = bundle
        self.model: nn.Module = load_model(bundle / MODEL).to(device)
        self.normaliser = Normaliser.load(bundle / NORMALISER)
        self.units = load_units(bundle / UNITS)
        config, sizes = self.model.config, (len(self.normaliser.prior_mean), self.units.size)
        if not (hasattr(config, "frames_needed") and hasattr(config, "subsampling")):
            raise BundleError(f"{bundle / MODEL} holds no CTC network; {ADVICE}")
        if (config.input_dim, config.output_dim) != sizes:
            raise BundleError(
                f"{bundle / MODEL} has {config.input_dim} inputs and {config.output_dim} outputs,"
                f" {bundle / NORMALISER} and {bundle / UNITS} are for {sizes[0]} and {sizes[1]}:"
                f" they come from different trainings; {ADVICE}"
            )
        if int8:
            self.model = quantize_int8(self.model)
        self.subsampling = self.model.config.subsampling
        """Input frames per row of log-probabilities."""
        self.offset = (self.model.config.frames_needed - self.subsampling) / 2
        """Input frames before the first that the first row stands for: it sees more."""

    @property
    def can_stream(self) -> bool:
        """Whether network and normaliser do without what is yet to come."""
        return self._forward and self.normaliser.online

    @property
    def _forward(self) -> bool:
        """Whether the network can carry its state from one block of frames to the next."""
        return isinstance(self.model, CtcModel) and not self.model.config.bidirectional

    def log_probs(self, features: Tensor, state: CmnState | None = None) -> Tensor:
        """Score an utterance or a whole recording.

        A long one is scored in windows with some context; a `CtcModel` of forward LSTMs carries its
        state from one to the next instead, and the result is that of the whole.

        Args:
          features: [T, F] before normalisation.
          state: the normaliser's state after the speaker's earlier utterances; None for a new
            speaker.

        Returns:
          [T', C] float32, on the CPU.

        Raises:
          BundleError: they are no numbers.
        """
        (found,) = self.batch_log_probs([(features, state)])
        return found

    def batch_log_probs(self, utterances: Sequence[tuple[Tensor, CmnState | None]]) -> list[Tensor]:
        """As `log_probs`, for features and states of several; those to score at once in a batch."""
        inputs = [self.normaliser.apply(features, state) for features, state in utterances]
        short = [frames for frames in inputs if len(frames) <= WHOLE]
        scored = iter(ctc_log_probs(self.model, short) if short else ())
        return [
            self._checked(next(scored)) if len(frames) <= WHOLE else self._long(frames)
            for frames in inputs
        ]

    def _long(self, inputs: Tensor) -> Tensor:
        if self._forward:
            return torch.cat(list(self._in_turn(inputs)))
        return self._checked(torch.cat(list(self._windows(inputs))))

    @torch.inference_mode()
    def stream(self, inputs: Tensor, state: CtcState | None) -> tuple[Tensor, CtcState]:
        """Score the next normalised frames [T, F] of a stream; see `CtcModel.stream`.

        Raises:
          BundleError: the outputs are no numbers.
        """
        device = next(self.model.parameters()).device
        with full_float32(device):
            rows, state = self.model.eval().stream(inputs[None].to(device), state)
        return self._checked(rows[0].float().cpu()), state

    def _checked(self, log_probs: Tensor) -> Tensor:
        if not log_probs.isfinite().all():
            raise BundleError(
                f"{self._bundle}: the network's outputs are no numbers, so that its weights or"
                f" {NORMALISER} are damaged; {ADVICE}"
            )
        return log_probs

    def _in_turn(self, inputs: Tensor) -> Iterator[Tensor]:
        state = None
        for block in inputs.split(WINDOW):
            rows, state = self.stream(block, state)
            yield rows

    def _windows(self, inputs: Tensor) -> Iterator[Tensor]:
        step, context = WINDOW // self.subsampling, CONTEXT // self.subsampling
        needed = self.model.config.frames_needed
        rows = (len(inputs) - needed) // self.subsampling + 1
        for begin in range(0, rows, step):
            end, first = min(begin + step, rows), max(0, begin - context)
            last = min(end + context, rows) - 1
            seen = inputs[first * self.subsampling : last * self.subsampling + needed]
            yield ctc_log_probs(self.model, [seen])[0][begin - first : end - first]
