"""The recogniser interface, and recognition of streams.

In a stream, the front end, the network and the search carry their states from block to block.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from toolkit.decode.bundle import BundleError
from toolkit.decode.config import EndpointConfig
from toolkit.decode.decoded import DecodedUtterance
from toolkit.decode.speech import SpeechDetector, SpeechStream
from toolkit.decode.words import SilenceGate
from toolkit.features.config import FrontendConfig
from toolkit.features.frontend import Frontend
from toolkit.features.low_frame_rate import LOW_RATE_FACTOR, stack
from toolkit.features.shards import CmnState
from toolkit.features.silence import counted_frames
from toolkit.features.stream import StreamingFrontend
from toolkit.models.scorer import NeuralModel, online

Utterance = tuple[Tensor, CmnState | None]
"""Features [T, F] before normalisation, and the normaliser's state after the speaker's earlier
utterances; None for a new speaker."""


class Recogniser(ABC):
    """Recognises utterances with the bundle of one system."""

    frontend_config: FrontendConfig
    """The front end of the features."""
    frontend: Frontend
    """Computes the features."""
    detector: SpeechDetector | None
    """Tells speech from other sounds; None if the bundle has no speech detector."""
    by_speaker: bool = False
    """Whether features are normalised, and models adapted, by all utterances of a speaker."""

    @property
    def sampling_rate(self) -> int:
        """The sampling rate in Hz of the samples to recognise."""
        return self.frontend_config.sampling_rate

    @abstractmethod
    def silence_gate(self) -> SilenceGate:
        """Return a gate that keeps words out of an utterance's digital silence."""

    @property
    @abstractmethod
    def word_aligner(self) -> Any:
        """The aligner that finds word times and confidences; loaded on first use."""

    @abstractmethod
    def recognise_batch(
        self, utterances: Sequence[Utterance], details: bool = False
    ) -> list[DecodedUtterance]:
        """Recognise several utterances; the network scores them in one batch.

        Args:
          utterances: if `by_speaker`, all of one speaker's utterances in order of time; the
            normaliser's states are then not used.
          details: find word times and confidences too.
        """

    def recognise_features(
        self, features: Tensor, state: CmnState | None = None, details: bool = False
    ) -> DecodedUtterance:
        """Recognise one utterance, see `Utterance` and `recognise_batch`."""
        (utterance,) = self.recognise_batch([(features, state)], details)
        return utterance

    def has_speech(self, features: Tensor) -> bool:
        """Return whether anybody speaks in an utterance of features [T, F]; otherwise no words."""
        if self.detector is not None:
            return self.detector.has_speech(features)
        return bool(counted_frames(features, self.frontend_config.kind).any())

    def gated_scores(
        self, utterances: Sequence[Utterance], score: Callable[[list[Utterance]], list[Tensor]]
    ) -> Iterator[Tensor | None]:
        """Yield the gated scores [T', P] of each utterance; None if nobody speaks in it.

        Args:
          utterances: see `Utterance`.
          score: returns the model's unscaled scores of utterances in one batch.
        """
        gates = [self.silence_gate() if self.has_speech(x) else None for x, _ in utterances]
        speech = [
            (gate.push_utterance(features), state)
            for gate, (features, state) in zip(gates, utterances, strict=True)
            if gate is not None
        ]
        scores = iter(score(speech) if speech else ())
        for gate in gates:
            yield None if gate is None else gate(next(scores))

    def recognise(self, samples: Tensor) -> str:
        """Return the words in samples [S]: mono, at `sampling_rate`, in [-1, 1]."""
        return self.recognise_features(self.frontend(samples)).text

    def silence_posteriors(self, features: Tensor, state: CmnState) -> Tensor | None:
        """Return each frame's posterior of silence, [T], by which long recordings are cut.

        Args:
          features: [T, F] of an utterance before normalisation.
          state: the normaliser's state before it.

        Returns:
          The posteriors; None if the model has none.
        """
        return None

    @abstractmethod
    def stream(
        self, endpoint: "EndpointConfig | None" = None, details: bool = False
    ) -> "RecogniserStream":
        """Begin to recognise a stream.

        Several threads may recognise streams, but only one thread at a time may use each stream.

        Args:
          endpoint: when utterances end; None: only at the end of the stream.
          details: find times and confidences of the words of final utterances.

        Raises:
          BundleError: the network, or the normalisation of its features, needs the whole utterance.
        """

    def warm_up(self, endpoint: "EndpointConfig | None" = None) -> None:
        """Load and compile all that streams need, so that the first stream starts without delay.

        Raises:
          BundleError: see `stream`.
        """
        stream = self.stream(endpoint, details=True)
        # Noise, because digital silence would not reach the network.
        stream.push(0.1 * torch.randn(self.sampling_rate, generator=torch.Generator()))
        stream.partial_text()
        stream.finish()


class ScoreStream(Protocol):
    """Turns features into scores, block by block."""

    mean: CmnState
    """The normaliser's state; it carries over from utterance to utterance."""

    def push(self, features: Tensor) -> Tensor:
        """Take features [T, F] before normalisation; return the next rows [t, P] of scores."""

    def end_utterance(self) -> Tensor:
        """Return the remaining rows; reset all states except the normaliser's."""


class SearchStream(Protocol):
    """The search of one utterance, block by block."""

    @property
    def num_rows(self) -> int:
        """Number of rows of scores searched so far."""

    def advance(self, scores: Tensor) -> None:
        """Search the next rows [t, P] of scores."""

    def partial_text(self, speech: bool) -> str:
        """Return the words so far; `speech` tells whether speech has begun."""

    def finish(self) -> DecodedUtterance:
        """End the utterance; return its best words after all passes."""


def can_stream(model: NeuralModel) -> bool:
    """Whether a model and its feature normalisation work without future frames."""
    return online(model.model) is not None and model.normaliser.online


class NetworkScoreStream:
    """Turns features into log-likelihoods block by block; all parts carry their states.

    Args:
      model: a unidirectional LSTM or a TDNN-F.

    Raises:
      BundleError: the model, or the normalisation of its features, needs the whole utterance.
    """

    def __init__(self, model: NeuralModel) -> None:
        if online(model.model) is None:
            raise BundleError(
                "streaming needs a unidirectional LSTM or a TDNN-F, but this model needs the "
                "whole utterance: transcribe without --stream"
            )
        if not model.normaliser.online:
            raise BundleError(
                "streaming needs features that are normalised with earlier frames only, but this "
                "model normalises them with the whole file: transcribe without --stream"
            )
        self._model = model
        self.mean = CmnState.empty(len(model.normaliser.prior_mean))
        """The normaliser's state; it carries over from utterance to utterance."""
        self._begin_utterance()

    def _begin_utterance(self) -> None:
        """Reset the states of stacking and network."""
        self._frames = torch.zeros(0, len(self._model.normaliser.prior_mean))
        self.network = online(self._model.model)
        """The network, with its state within the utterance."""

    def push(self, features: Tensor) -> Tensor:
        """Take features [T, F] before normalisation; return the next rows [t, P] of scores."""
        normalised = self._model.normaliser.apply(features, self.mean)
        counted = counted_frames(features, self._model.normaliser.kind)
        self.mean = self.mean.after(features, counted)
        # Stack whole groups of LOW_RATE_FACTOR frames; the rest waits for the next block.
        frames = torch.cat([self._frames, normalised])
        whole = len(frames) // LOW_RATE_FACTOR * LOW_RATE_FACTOR
        self._frames = frames[whole:]
        return self._scores(self.network.push(stack(frames[:whole])))

    def end_utterance(self) -> Tensor:
        """Return the remaining rows; reset all states except the normaliser's."""
        # `stack` fills the last group of frames by repeating its last frame.
        scores = self._scores(self.network.finish(stack(self._frames)))
        self._begin_utterance()
        return scores

    def _scores(self, logits: Tensor) -> Tensor:
        """Convert the network's outputs to log-likelihoods."""
        # log p(x | s) = log p(s | x) - log p(s), up to a constant per frame.
        log_posteriors = logits.float().log_softmax(dim=-1)
        return self._model.checked(log_posteriors - self._model.log_priors)


@dataclass(frozen=True)
class StreamResult:
    """The state of the current utterance after a block of audio; times in seconds of the stream."""

    text: str
    """The words of the utterance so far; they may still change, unless it is final."""
    final: DecodedUtterance | None
    """The utterance, if it has ended."""
    start: float
    """Start of the utterance."""
    end: float
    """Audio received so far; for a final result, the end of the utterance."""
    onset: float | None
    """Onset of speech in the utterance; None if there is none yet."""


class SpeechActivity:
    """Detects the onset of speech and counts the trailing silence of an utterance.

    Args:
      onset: number of consecutive rows that must be speech before speech counts as begun.
    """

    def __init__(self, onset: int) -> None:
        self._onset_rows = onset
        self.onset: int | None = None
        """The row in which speech began."""
        self.silent = 0
        """Rows of silence at the end."""
        self._rows = self._speaking = 0

    def update(self, silences: Tensor) -> None:
        """Add the next rows, given whether each is silence: [T]."""
        for silent in silences.tolist():
            self._rows += 1
            self.silent = self.silent + 1 if silent else 0
            self._speaking = 0 if silent else self._speaking + 1
            if self.onset is None and self._speaking == self._onset_rows:
                self.onset = self._rows - self._onset_rows


@dataclass(frozen=True)
class StreamParts:
    """The parts from which a recogniser builds a stream."""

    frontend: Frontend
    """Computes the features."""
    scores: ScoreStream
    """Scores the features."""
    start_search: Callable[[], SearchStream]
    """Begins the search of the next utterance."""
    is_silence: Callable[[Tensor], Tensor]
    """Returns which rows of scores [T, P] are silence, [T] bool."""
    gate: SilenceGate
    """Keeps words out of digital silence."""
    detector: SpeechDetector | None
    """Tells speech from other sounds; None: all but digital silence counts as speech."""
    frame_shift: float
    """Seconds between two rows of scores."""
    onset_rows: int
    """Number of consecutive rows that must be speech before speech counts as begun."""


class RecogniserStream:
    """Recognises a stream; without endpoint detection, the stream is one utterance.

    The final text of a single utterance is that of `Recogniser.recognise` on all its samples:
    features, normaliser, network and search carry their states, and the lattice is the same.

    Args:
      parts: the recogniser's parts.
      endpoint: when utterances end; None: only at the end of the stream.
    """

    def __init__(self, parts: StreamParts, endpoint: EndpointConfig | None = None) -> None:
        self._parts, self._endpoint = parts, endpoint
        self._frontend = StreamingFrontend(parts.frontend)
        self._start_s, self._num_frames = 0.0, 0
        self.has_speech = False
        """Whether somebody has spoken in one of the utterances that have ended."""
        self._begin_utterance()

    def _begin_utterance(self) -> None:
        """Start the search and the speech detection of a new utterance."""
        self._search = self._parts.start_search()
        frame_shift_s = self._parts.frontend.config.frame_shift_ms / 1000
        self._start_s += self._num_frames * frame_shift_s
        self._num_frames = 0  # of this utterance
        self._activity = SpeechActivity(self._parts.onset_rows)
        self._parts.gate.begin_utterance()
        detector = self._parts.detector
        self._speech = None if detector is None else SpeechStream(detector)

    @property
    def has_sound(self) -> bool:
        """Whether the stream has contained anything except digital silence."""
        return self._parts.scores.mean.frames > 0

    def push(self, samples: Tensor) -> StreamResult:
        """Take the next samples [S], mono, at the recogniser's sampling rate."""
        self._take_features(self._frontend.push(samples))
        if self._has_ended():
            return self._end_utterance()
        is_speech = self._speech is None or self._speech.has_speech
        text = self.partial_text() if is_speech else ""
        return StreamResult(text, None, self._start_s, self._frontend.seconds, self._onset_s)

    def partial_text(self) -> str:
        """Return the words of the current utterance so far, whether or not it has speech."""
        return self._search.partial_text(self._onset_s is not None)

    def finish(self) -> StreamResult:
        """End the stream and return the result of its last utterance.

        Raises:
          FrontendError: the stream was shorter than one window.
        """
        self._take_features(self._frontend.finish())
        return self._end_utterance()

    def _take_features(self, features: Tensor) -> None:
        """Score the next features and search the scores."""
        self._num_frames += len(features)
        if self._speech is not None:
            self._speech.push(features)
        self._take_scores(self._parts.scores.push(self._parts.gate.push(features)))

    def _take_scores(self, scores: Tensor) -> None:
        """Search the next rows of scores."""
        scores = self._parts.gate(scores)
        self._activity.update(self._parts.is_silence(scores))
        self._search.advance(scores)

    @property
    def _onset_s(self) -> float | None:
        """Time of the onset of speech in seconds of the stream; None before it."""
        row = self._activity.onset
        return None if row is None else self._start_s + row * self._parts.frame_shift

    def _has_ended(self) -> bool:
        """Whether endpoint detection ends the current utterance."""
        config, shift = self._endpoint, self._parts.frame_shift
        if config is None:
            return False
        # Too long, or silent for long enough after speech.
        too_long = self._search.num_rows * shift >= config.longest
        return too_long or (
            self._onset_s is not None and self._activity.silent * shift >= config.silence
        )

    def _end_utterance(self) -> StreamResult:
        """End the current utterance and return its result."""
        # The rows that the gate and the network have held back.
        self._take_scores(self._parts.scores.push(self._parts.gate.finish()))
        self._take_scores(self._parts.scores.end_utterance())
        utterance, start_s, onset_s = self._search.finish(), self._start_s, self._onset_s
        is_speech = self.has_sound if self._speech is None else self._speech.finish()
        if not is_speech:
            utterance = DecodedUtterance("", None if utterance.words is None else ())
        self.has_speech = self.has_speech or is_speech
        self._begin_utterance()
        placed = utterance.placed(start_s, self._start_s)
        return StreamResult(placed.text, placed, start_s, self._start_s, onset_s)


@dataclass
class Latency:
    """How far recognition lags behind a live stream.

    A simulated clock advances by the processing time, and waits for a block that would not have
    been spoken yet. So a file read at full speed gives the latency of a microphone.
    """

    audio: float = 0.0
    """Seconds of audio received."""
    busy: float = 0.0
    """Seconds of processing."""
    clock: float = 0.0
    """Seconds since the stream began, in the time of a live stream."""
    first: float | None = None
    """Seconds from the onset of speech to the first words, in the first utterance that has both;
    None if there is none."""
    final: float = 0.0
    """Seconds from the end of the last utterance to its final words."""
    _shown_at: float | None = None

    @property
    def real_time_factor(self) -> float:
        """Processing seconds per second of audio."""
        return self.busy / self.audio if self.audio else float("nan")

    def summary(self) -> str:
        """Return the latency figures in one line."""
        first = "" if self.first is None else f"first words {self.first:.2f} s after speech began, "
        return (
            f"{self.audio:.1f} s of audio, real-time factor {self.real_time_factor:.3f}, {first}"
            f"final words {self.final:.2f} s after the end"
        )

    def update(self, result: StreamResult, seconds: float) -> None:
        """Add the result after another block, which took `seconds` to process."""
        self.audio = max(self.audio, result.end)
        self.clock = max(self.clock, self.audio) + seconds
        self.busy += seconds
        if result.text and self._shown_at is None:
            self._shown_at = self.clock
        # Words may be shown before enough frames are speech to detect its onset.
        if self.first is None and self._shown_at is not None and result.onset is not None:
            self.first = self._shown_at - result.onset
        if result.final is not None:
            self.final = self.clock - result.end


def recognise_stream(
    blocks: Iterable[Tensor],
    stream: "RecogniserStream",
    now: Callable[[], float],
    latency: Latency,
) -> Iterator[StreamResult]:
    """Yield the results of a stream, block by block.

    Args:
      blocks: the audio in blocks of samples [S].
      stream: has not read any audio yet.
      now: returns the time in seconds.
      latency: updated after each block.

    Yields:
      Partial results whose text has changed, and final results; the last result is final.

    Raises:
      AudioError: the stream cannot be read.
      FrontendError: the stream was shorter than one window.
    """
    text = ""
    for block in blocks:
        begin = now()
        result = stream.push(block)
        latency.update(result, now() - begin)
        if result.final is not None or result.text != text:
            yield result
        text = "" if result.final is not None else result.text
    begin = now()
    result = stream.finish()
    latency.update(result, now() - begin)
    yield result
