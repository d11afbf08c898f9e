"""Streaming recognition with a CTC network: features, network and search carry their states."""

import torch
from torch import Tensor

from toolkit.decode.bundle.ctc.recogniser import CtcRecogniser
from toolkit.decode.bundle.settings import BundleError
from toolkit.decode.streaming import EndpointConfig, SpeechActivity, StreamResult
from toolkit.features.cmn_state import CmnState
from toolkit.features.silence import counted_frames
from toolkit.features.stream import StreamingFrontend
from toolkit.models.ctc import CtcState


class CtcStreamingRecogniser:
    """Recognises a stream; without endpoint detection it is a single utterance.

    The final text of a single utterance is that of `CtcRecogniser.recognise` on all its samples.
    Speech is where a label is the likeliest symbol: a CTC network puts blanks and spaces elsewhere.

    Args:
      recogniser: its network must have forward LSTMs alone.
      endpoint: when utterances end; None: only at the end of the stream.
      details: find word times and confidences of final utterances.

    Raises:
      BundleError: the network needs the whole utterance.
    """

    def __init__(
        self,
        recogniser: CtcRecogniser,
        endpoint: EndpointConfig | None = None,
        details: bool = False,
    ) -> None:
        if not recogniser.scorer.can_stream:
            raise BundleError(
                "streaming needs LSTMs of one direction and running means, but this network needs"
                " the whole utterance: transcribe without --stream, or train one with"
                " train.model.bidirectional=false and normalisation=causal"
            )
        self._recogniser, self._endpoint, self._details = recogniser, endpoint, details
        units = recogniser.scorer.units
        self._silent = [i for i, s in enumerate(units.symbols) if i == units.blank or s == " "]
        self._frontend = StreamingFrontend(recogniser.frontend)
        self._mean = CmnState.empty(recogniser.frontend_config.dimension)
        self._begin, self._frames = 0.0, 0
        self._gate = recogniser.silence_gate()
        self._begin_utterance()

    @classmethod
    def warm_up(cls, recogniser: CtcRecogniser) -> None:
        """Load and compile everything, so that the first stream need not wait for it."""
        stream = cls(recogniser, details=True)
        stream.push(torch.zeros(recogniser.frontend_config.sampling_rate))
        stream.finish()

    def _begin_utterance(self) -> None:
        self._search = self._recogniser.decoder.begin()
        self._network: CtcState | None = None
        self._rows: list[Tensor] = []
        self._begin += self._frames * self._recogniser.frontend_config.frame_shift_ms / 1000
        self._frames = 0  # of the utterance
        self._activity = SpeechActivity(onset=1)
        self._gate.begin_utterance()

    @property
    def has_sound(self) -> bool:
        """Whether the stream has been more than digital silence."""
        return self._mean.frames > 0

    def push(self, samples: Tensor) -> StreamResult:
        """Take more samples [S], mono, at the front end's sampling rate."""
        self._read(self._frontend.push(samples))
        if self._has_ended():
            return self._final()
        text = self._search.text()
        return StreamResult(text, None, self._begin, self._frontend.seconds, self._onset)

    def finish(self) -> StreamResult:
        """End the stream.

        Raises:
          FrontendError: it was shorter than one window.
        """
        self._read(self._frontend.finish())
        return self._final()

    def _read(self, features: Tensor) -> None:
        if not len(features):
            return
        scorer = self._recogniser.scorer
        inputs = scorer.normaliser.apply(features, self._mean)
        counted = counted_frames(features, self._recogniser.frontend_config.kind)
        self._mean = self._mean.after(features, counted)
        self._frames += len(features)
        self._gate.push(features)
        rows, self._network = scorer.stream(inputs, self._network)
        rows = self._gate(rows)
        if len(rows):
            silent = torch.isin(rows.argmax(dim=1), torch.tensor(self._silent))
            self._activity.update(silent)
            self._search.advance(rows)
            if self._details:
                self._rows.append(rows)

    @property
    def _onset(self) -> float | None:
        row = self._activity.onset
        return None if row is None else self._begin + row * self._recogniser.frame_shift

    def _has_ended(self) -> bool:
        config, shift = self._endpoint, self._recogniser.frame_shift
        if config is None:
            return False
        return self._search.frames * shift >= config.longest or (
            self._onset is not None and self._activity.silent * shift >= config.silence
        )

    def _final(self) -> StreamResult:
        begin, onset = self._begin, self._onset
        text = self._recogniser.chosen(self._search.hypotheses()) if self._search.frames else ""
        rows = torch.cat(self._rows) if self._rows else torch.zeros(0, 1)
        found = self._recogniser.recognised(text, rows, self._details)
        self._begin_utterance()
        found = found.within(begin, self._begin)
        return StreamResult(text, found, begin, self._begin, onset)
