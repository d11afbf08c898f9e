"""Recognition while somebody speaks: everything is carried on from piece to piece."""

from dataclasses import dataclass

import torch
from torch import Tensor

from toolkit.decode.recogniser import WIDER, BundleError, Recogniser
from toolkit.decode.transcript import Recognised
from toolkit.features.lfr import LOW_RATE_FACTOR, stack
from toolkit.features.mean_state import MeanState
from toolkit.features.stream import StreamingFrontend
from toolkit.fsa.online import OnlineSearch
from toolkit.fsa.search import search_widening
from toolkit.models.lstm import LstmModel, LstmState, with_lookahead
from toolkit.models.scorer import NeuralModel

ONSET = 3
"""Rows of scores in turn that must be speech before speech has begun."""


class StreamingScorer:
    """Raw features to log-likelihoods: normaliser, stacking and LSTM with their states.

    Args:
      model: of a unidirectional LSTM.

    Raises:
      BundleError: the model needs the whole utterance.
    """

    def __init__(self, model: NeuralModel) -> None:
        if not isinstance(model.model, LstmModel):
            raise BundleError(
                "streaming needs a unidirectional LSTM; this model looks at the whole utterance:"
                " leave --stream out"
            )
        self._model, self._lstm = model, model.model.eval()
        self._lookahead = self._lstm.config.lookahead
        self.mean = MeanState.empty(len(model.normaliser.prior_mean))
        """The normaliser's state; it goes on from utterance to utterance."""
        self._begin_utterance()

    def _begin_utterance(self) -> None:
        dimension = len(self._model.normaliser.prior_mean)
        self._frames = torch.zeros(0, dimension)
        self._inputs = torch.zeros(0, LOW_RATE_FACTOR * dimension)
        self._last: Tensor | None = None
        self.state: LstmState | None = None
        """The LSTM's, after the last row of inputs that it has read."""

    def push(self, features: Tensor) -> Tensor:
        """Take raw features [T, F]; return the rows [t, P] that can be scored by now."""
        normalised = self._model.normaliser.apply(features, self.mean)
        self.mean = self.mean.after(features)
        frames = torch.cat([self._frames, normalised])
        whole = len(frames) // LOW_RATE_FACTOR * LOW_RATE_FACTOR
        self._frames = frames[whole:]
        return self._score(stack(frames[:whole]))

    def end_utterance(self) -> Tensor:
        """Return the rows that are left, and begin anew; the normaliser's state stays."""
        rest = stack(self._frames)  # repeats the last frame
        if not len(rest) and self._last is None:
            return torch.zeros(0, self._lstm.config.output_dim)
        whole = rest if self._last is None else torch.cat([self._last, rest])
        scores = self._score(with_lookahead(whole, self._lookahead)[len(whole) - len(rest) :])
        self._begin_utterance()
        return scores

    @torch.inference_mode()
    def _score(self, inputs: Tensor) -> Tensor:
        """Run the LSTM over the next inputs [t, D]."""
        if len(inputs):
            self._last = inputs[-1:]
        self._inputs = torch.cat([self._inputs, inputs])
        # Its first call wants more than the look-ahead.
        if len(self._inputs) <= (self._lookahead if self.state is None else 0):
            return torch.zeros(0, self._lstm.config.output_dim)
        logits, self.state = self._lstm(self._inputs[None], self.state)
        self._inputs = self._inputs[:0]
        return logits[0].float().log_softmax(dim=-1) - self._model.log_priors


@dataclass(frozen=True)
class EndpointConfig:
    """When an utterance has ended though the stream goes on; times in seconds."""

    silence: float = 0.8
    """Silence behind words."""
    longest: float = 30.0
    """No utterance is longer."""

    def __post_init__(self) -> None:
        if self.silence <= 0 or self.longest <= 0:
            raise ValueError("silence and longest must be positive")


@dataclass(frozen=True)
class Heard:
    """What a stream says after a piece of audio."""

    text: str
    """The words of the utterance so far; they may still change, unless it is final."""
    final: Recognised | None
    """The utterance, if it has ended."""
    start: float
    """Where it begins, in seconds from the stream's beginning."""
    end: float
    """Seconds of the stream that have been heard; of a final utterance, its end."""
    onset: float | None
    """When speech began in it, in seconds from the stream's beginning; None: not yet, or not
    known to this bundle."""


class _Activity:
    """Whether somebody speaks, from rows of scores that are silence or not."""

    def __init__(self) -> None:
        self.onset: int | None = None
        """The row in which speech has begun."""
        self.silent = 0
        """Rows of silence, up to now."""
        self._rows = self._speaking = 0

    def note(self, silences: Tensor) -> None:
        """Take the next rows [T]: whether each is silence."""
        for silent in silences.tolist():
            self._rows += 1
            self.silent = self.silent + 1 if silent else 0
            self._speaking = 0 if silent else self._speaking + 1
            if self.onset is None and self._speaking == ONSET:
                self.onset = self._rows - ONSET


class StreamingRecogniser:
    """Recognises a stream; without end pointing it is one utterance.

    Its final text is that of `Recogniser.recognise` for all samples together: features,
    normaliser, LSTM and search carry their states, and the lattice is the same.

    Args:
      recogniser: its model must be a unidirectional LSTM.
      endpoint: when utterances end; None: with the stream.
      details: give final utterances times and confidences of words.

    Raises:
      BundleError: the bundle cannot do this.
    """

    def __init__(
        self, recogniser: Recogniser, endpoint: EndpointConfig | None = None, details: bool = False
    ) -> None:
        self._recogniser, self._endpoint, self._details = recogniser, endpoint, details
        self._scorer = StreamingScorer(recogniser.model)
        self._frontend = StreamingFrontend(recogniser.frontend)
        if details:
            recogniser.details  # noqa: B018 - fails now rather than at the end
        if endpoint is not None and recogniser.silence is None:
            raise BundleError(
                "this bundle does not say which senones are silence, which end pointing needs: an"
                " earlier version of the toolkit made it; run the recipe's last stage again"
            )
        self._begin, self._frames = 0.0, 0
        self._begin_utterance()

    @classmethod
    def warm_up(cls, recogniser: Recogniser) -> None:
        """Load and compile what the first stream would wait for."""
        stream = cls(recogniser)
        stream.push(torch.zeros(recogniser.frontend_config.sampling_rate // 2))
        stream.finish()

    def _begin_utterance(self) -> None:
        self._search = OnlineSearch(self._recogniser.graph, self._recogniser.beam)
        self._scores: list[Tensor] = []
        self._begin += self._frames * self._recogniser.frontend_config.frame_shift_ms / 1000
        self._frames = 0  # raw ones of the utterance
        self._activity = _Activity()

    def push(self, samples: Tensor) -> Heard:
        """Take more samples [S], mono, at the front end's sampling rate."""
        self._read(self._frontend.push(samples))
        return self._final() if self._has_ended() else self._partial()

    def finish(self) -> Heard:
        """End the stream.

        Raises:
          FrontendError: it was shorter than one window.
        """
        self._read(self._frontend.finish())
        return self._final()

    def _read(self, features: Tensor) -> None:
        self._frames += len(features)
        self._take(self._scorer.push(features))

    def _take(self, log_likelihoods: Tensor) -> None:
        if self._recogniser.silence is not None:
            self._activity.note(self._recogniser.silence(log_likelihoods) > 0.5)
        scores = log_likelihoods * self._recogniser.settings.search_scale
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

    def _partial(self) -> Heard:
        words = self._search.best_words()
        if not words and self._onset is not None:
            words = self._search.next_words()
        text = self._recogniser.text(words)
        return Heard(text, None, self._begin, self._frontend.seconds, self._onset)

    def _final(self) -> Heard:
        self._take(self._scorer.end_utterance())
        scores = torch.cat(self._scores)
        lattice = self._search.finish()
        if lattice is None and len(scores):
            wider = self._recogniser.beam.tries(WIDER)[1:]
            lattice, _ = search_widening(scores, self._recogniser.graph, wider)
        begin, onset = self._begin, self._onset
        found = self._recogniser.best(lattice, scores, self._details).later(begin)
        self._begin_utterance()
        return Heard(found.text, found, begin, self._begin, onset)
