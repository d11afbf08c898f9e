"""Streaming recognition: front end, network and search carry their states from block to block."""

from dataclasses import dataclass

import torch
from torch import Tensor

from toolkit.decode.bundle.recogniser import Recogniser
from toolkit.decode.bundle.settings import BundleError
from toolkit.decode.transcript import Recognised
from toolkit.features.cmn_state import CmnState
from toolkit.features.low_frame_rate import LOW_RATE_FACTOR, stack
from toolkit.features.silence import counted_frames
from toolkit.features.stream import StreamingFrontend
from toolkit.fsa.online import OnlineSearch
from toolkit.fsa.search import search_with_retries
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
        self, recogniser: Recogniser, endpoint: EndpointConfig | None = None, details: bool = False
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
    def warm_up(cls, recogniser: Recogniser) -> None:
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
        found = self._recogniser.best(lattice, scores, self._details)
        self._begin_utterance()
        found = found.within(begin, self._begin)
        return StreamResult(found.text, found, begin, self._begin, onset)
