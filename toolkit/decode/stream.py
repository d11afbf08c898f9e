"""Recognition of streams: front end, network and search carry their states from block to block."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from toolkit.decode.bundle import BundleError, is_ctc
from toolkit.decode.ctc.recogniser import CtcRecogniser
from toolkit.decode.decoded import Recognised
from toolkit.decode.recogniser import NetworkRecogniser
from toolkit.features.low_frame_rate import LOW_RATE_FACTOR, stack
from toolkit.features.shards import CmnState
from toolkit.features.silence import counted_frames
from toolkit.features.stream import StreamingFrontend
from toolkit.fsa.online_search import OnlineSearch
from toolkit.fsa.search import search_with_retries
from toolkit.models.ctc import CtcState
from toolkit.models.online import online
from toolkit.models.scorer import NeuralModel

ONSET = 3
"""Consecutive rows of scores that must be speech for an onset of speech."""


def can_stream(model: NeuralModel) -> bool:
    """Whether a model and the normalisation of its features do without what is yet to come."""
    return online(model.model) is not None and model.normaliser.online


class StreamingScorer:
    """Turns features into log-likelihoods; normaliser, stacking and network keep their states.

    Args:
      model: an LSTM of one direction or a TDNN-F.

    Raises:
      BundleError: the model, or the normalisation of its features, needs the whole utterance.
    """

    def __init__(self, model: NeuralModel) -> None:
        if online(model.model) is None:
            raise BundleError(
                "streaming needs an LSTM of one direction or a TDNN-F, but this model needs the"
                " whole utterance: transcribe without --stream"
            )
        if not model.normaliser.online:
            raise BundleError(
                "streaming needs features that are normalised with earlier frames alone, but this"
                " model's are with the whole file: transcribe without --stream"
            )
        self._model = model
        self.mean = CmnState.empty(len(model.normaliser.prior_mean))
        """The normaliser's state; it carries over from utterance to utterance."""
        self._begin_utterance()

    def _begin_utterance(self) -> None:
        self._frames = torch.zeros(0, len(self._model.normaliser.prior_mean))
        self.network = online(self._model.model)
        """The network within the utterance."""

    def push(self, features: Tensor) -> Tensor:
        """Take features [T, F] before normalisation; return the rows [t, P] of scores so far."""
        normalised = self._model.normaliser.apply(features, self.mean)
        counted = counted_frames(features, self._model.normaliser.kind)
        self.mean = self.mean.after(features, counted)
        frames = torch.cat([self._frames, normalised])
        whole = len(frames) // LOW_RATE_FACTOR * LOW_RATE_FACTOR
        self._frames = frames[whole:]
        return self._scores(self.network.push(stack(frames[:whole])))

    def end_utterance(self) -> Tensor:
        """Return the remaining rows and reset all states but the normaliser's."""
        scores = self._scores(self.network.finish(stack(self._frames)))  # repeats the last frame
        self._begin_utterance()
        return scores

    def _scores(self, logits: Tensor) -> Tensor:
        log_posteriors = logits.float().log_softmax(dim=-1)
        return self._model.checked(log_posteriors - self._model.log_priors)


@dataclass(frozen=True)
class EndpointConfig:
    """Endpoint detection: when an utterance ends within a stream; times in seconds."""

    silence: float = 0.8
    """Silence after speech that ends an utterance."""
    longest: float = 30.0
    """Longest utterance."""

    def __post_init__(self) -> None:
        if not (self.silence > 0 and self.longest > 0):
            raise ValueError("silence and longest must be positive")


@dataclass(frozen=True)
class StreamResult:
    """The state of the current utterance after a block of audio; times in seconds of the stream."""

    text: str
    """The words of the utterance so far; they may still change, unless it is final."""
    final: Recognised | None
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
      onset: consecutive rows that must be speech for an onset.
    """

    def __init__(self, onset: int = ONSET) -> None:
        self._needed = onset
        self.onset: int | None = None
        """The row in which speech began."""
        self.silent = 0
        """Rows of silence at the end."""
        self._rows = self._speaking = 0

    def update(self, silences: Tensor) -> None:
        """Take the next rows [T]: for each, whether it is silence."""
        for silent in silences.tolist():
            self._rows += 1
            self.silent = self.silent + 1 if silent else 0
            self._speaking = 0 if silent else self._speaking + 1
            if self.onset is None and self._speaking == self._needed:
                self.onset = self._rows - self._needed


class StreamingRecogniser:
    """Recognises a stream; without endpoint detection it is a single utterance.

    The final text of a single utterance is that of `Recogniser.recognise` on all its samples:
    features, normaliser, network and search carry their states, and the lattice is the same.

    Args:
      recogniser: its model must be an LSTM of one direction or a TDNN-F.
      endpoint: when utterances end; None: only at the end of the stream.
      details: find word times and confidences of final utterances.

    Raises:
      BundleError: the model needs the whole utterance.
    """

    def __init__(
        self,
        recogniser: NetworkRecogniser,
        endpoint: EndpointConfig | None = None,
        details: bool = False,
    ) -> None:
        self._recogniser, self._endpoint, self._details = recogniser, endpoint, details
        self._scorer = StreamingScorer(recogniser.model)
        self._frontend = StreamingFrontend(recogniser.frontend)
        if details:
            recogniser.word_aligner  # noqa: B018 - fails now rather than at the end
        self._begin, self._frames = 0.0, 0
        self._gate = recogniser.silence_gate()
        self._begin_utterance()

    @classmethod
    def warm_up(cls, recogniser: NetworkRecogniser) -> None:
        """Load and compile everything, so that the first stream need not wait for it."""
        recogniser.search.load()
        stream = cls(recogniser, details=True)
        stream.push(torch.zeros(recogniser.frontend_config.sampling_rate // 2))
        stream.finish()

    def _begin_utterance(self) -> None:
        self._search = OnlineSearch(self._recogniser.search.graph, self._recogniser.search.beams[0])
        self._scores: list[Tensor] = []
        self._begin += self._frames * self._recogniser.frontend_config.frame_shift_ms / 1000
        self._frames = 0  # of the utterance, before stacking
        self._activity = SpeechActivity()
        self._gate.begin_utterance()

    @property
    def has_sound(self) -> bool:
        """Whether the stream has been more than digital silence."""
        return self._scorer.mean.frames > 0

    def push(self, samples: Tensor) -> StreamResult:
        """Take more samples [S], mono, at the front end's sampling rate."""
        self._read(self._frontend.push(samples))
        return self._final() if self._has_ended() else self._partial()

    def finish(self) -> StreamResult:
        """End the stream.

        Raises:
          FrontendError: it was shorter than one window.
        """
        self._read(self._frontend.finish())
        return self._final()

    def _read(self, features: Tensor) -> None:
        self._frames += len(features)
        self._gate.push(features)
        self._take(self._scorer.push(features))

    def _take(self, log_likelihoods: Tensor) -> None:
        log_likelihoods = self._gate(log_likelihoods)
        self._activity.update(self._recogniser.silence(log_likelihoods) > 0.5)
        scores = log_likelihoods * self._recogniser.search.scale
        self._scores.append(scores)
        self._search.advance(scores)

    @property
    def _onset(self) -> float | None:
        row = self._activity.onset
        return None if row is None else self._begin + row * self._recogniser.frame_shift

    def _has_ended(self) -> bool:
        config, shift = self._endpoint, self._recogniser.frame_shift
        if config is None:
            return False
        too_long = self._search.num_frames * shift >= config.longest
        return too_long or (
            self._onset is not None and self._activity.silent * shift >= config.silence
        )

    def _partial(self) -> StreamResult:
        words = self._search.best_words()
        if not words and self._onset is not None:
            words = self._search.next_words()
        text = self._recogniser.search.text(words)
        return StreamResult(text, None, self._begin, self._frontend.seconds, self._onset)

    def _final(self) -> StreamResult:
        self._take(self._scorer.end_utterance())
        scores = torch.cat(self._scores)
        lattice = self._search.finish()
        if lattice is None and len(scores):
            search = self._recogniser.search
            lattice, _ = search_with_retries(scores, search.graph, search.beams[1:])
        begin, onset = self._begin, self._onset
        result = self._recogniser.best(lattice, scores, self._details)
        self._begin_utterance()
        result = result.within(begin, self._begin)
        return StreamResult(result.text, result, begin, self._begin, onset)


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
        result = self._recogniser.recognised(text, rows, self._details)
        self._begin_utterance()
        result = result.within(begin, self._begin)
        return StreamResult(text, result, begin, self._begin, onset)


class Streaming(Protocol):
    """A recogniser of one stream, see `toolkit.decode.stream.StreamingRecogniser`."""

    @property
    def has_sound(self) -> bool:
        """Whether the stream has been more than digital silence."""

    def push(self, samples: Tensor) -> StreamResult:
        """Take more samples [S]."""

    def finish(self) -> StreamResult:
        """End the stream."""


@dataclass
class Latency:
    """How far a recogniser lags behind a live stream.

    The clock advances by the processing time, and waits for a block that would not have been
    spoken yet. A file that is read at full speed thus gives the figures of a microphone.
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
        """Seconds of processing per second of audio."""
        return self.busy / self.audio if self.audio else float("nan")

    def summary(self) -> str:
        """Return the figures in one line."""
        first = "" if self.first is None else f"first words {self.first:.2f} s after speech began, "
        return (
            f"{self.audio:.1f} s of audio, real-time factor {self.real_time_factor:.3f}, {first}"
            f"final words {self.final:.2f} s after the end"
        )

    def update(self, result: StreamResult, seconds: float) -> None:
        """Account for the result after one more block, which took `seconds` to process."""
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
    recogniser: Streaming,
    now: Callable[[], float],
    latency: Latency,
) -> Iterator[StreamResult]:
    """Recognise a stream.

    Args:
      blocks: the audio in blocks of samples [S].
      recogniser: a recogniser that has not read any audio yet.
      now: returns the time in seconds.
      latency: updated after each block.

    Yields:
      Partial results whose text has changed, and final results; the last result is final.

    Raises:
      AudioError: the stream cannot be read.
      FrontendError: it was shorter than one window.
    """
    text = ""
    for block in blocks:
        begin = now()
        result = recogniser.push(block)
        latency.update(result, now() - begin)
        if result.final is not None or result.text != text:
            yield result
        text = "" if result.final is not None else result.text
    begin = now()
    result = recogniser.finish()
    latency.update(result, now() - begin)
    yield result


class StreamingBundle:
    """What the streams of one bundle share; loaded and compiled, so that none need wait for it.

    Streams may be recognised in several threads, each stream in one at a time.

    Args:
      bundle: the folder of a system, as `toolkit.decode.bundle.find_system` finds one that
        can stream.
      fast: leave out the passes that rescore.

    Raises:
      BundleError: the folder is not a bundle of a network, or the network needs the whole
        utterance.
    """

    def __init__(self, bundle: Path, fast: bool = False) -> None:
        self._recogniser: CtcRecogniser | NetworkRecogniser
        if is_ctc(bundle):
            self._kind, self._recogniser = CtcStreamingRecogniser, CtcRecogniser(bundle, fast=fast)
        else:
            self._kind, self._recogniser = StreamingRecogniser, NetworkRecogniser(bundle, fast=fast)
        self._kind.warm_up(self._recogniser)

    @property
    def sampling_rate(self) -> int:
        """The rate in Hz of the samples that streams take."""
        return self._recogniser.frontend_config.sampling_rate

    def stream(self, endpoint: EndpointConfig | None = None, details: bool = False) -> Streaming:
        """Begin a stream.

        Args:
          endpoint: when utterances end; None: only at the end of the stream.
          details: find times and confidences of the words of final utterances.
        """
        return self._kind(self._recogniser, endpoint, details)


class EndpointedBundle:
    """Begins the streams of clients, with endpoints and times of words.

    Args:
      bundle: the models.
      endpoint: when utterances end.
    """

    def __init__(self, bundle: StreamingBundle, endpoint: EndpointConfig) -> None:
        self._bundle, self._endpoint = bundle, endpoint
        first = self.stream()  # loads what finds times, before several threads would
        first.push(torch.zeros(self.sampling_rate))
        first.finish()

    @property
    def sampling_rate(self) -> int:
        """The rate in Hz of the samples that streams take."""
        return self._bundle.sampling_rate

    def stream(self) -> Streaming:
        """Begin a stream."""
        return self._bundle.stream(self._endpoint, details=True)
