"""Recognition and alignment of recordings with a CTC network."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from toolkit.align.folder import RecordingTimes, SpeakerAdaptation
from toolkit.align.inputs import Recording
from toolkit.decode.bundle import (
    ADVICE,
    CTC_SETTINGS,
    LM,
    MODEL,
    NEURAL_LM,
    NORMALISER,
    UNITS,
    WORDS,
    BundleError,
    check_frontend,
    check_language_model,
    read_ctc_settings,
)
from toolkit.decode.config import EndpointConfig
from toolkit.decode.ctc.dictionary import CtcDecodeError
from toolkit.decode.ctc.search import CtcHypothesis, WordsDecoder
from toolkit.decode.decoded import DecodedUtterance
from toolkit.decode.rescore import CtcRescorer, Rescorer, missing_words
from toolkit.decode.speech import load_detector
from toolkit.decode.stream import Recogniser, RecogniserStream, StreamParts, Utterance
from toolkit.decode.words import CtcWordAligner, SilenceGate
from toolkit.features.frontend import Frontend
from toolkit.features.normalise import Cmvn
from toolkit.features.shards import CmnState
from toolkit.features.silence import counted_frames
from toolkit.features.stream import extract_file
from toolkit.hmm.transforms import FmllrStatistics
from toolkit.lang.arpa import read_binary
from toolkit.lang.ngram import BackoffModel
from toolkit.lang.text_policy import EnglishRules, LetterRules, TextPolicy
from toolkit.lang.units import SPACE, Characters, Units, load_units
from toolkit.models.ctc import CtcModel, CtcState, ctc_log_probs
from toolkit.models.store import load_model, quantize_int8
from toolkit.processes.devices import full_float32
from toolkit.storage.lines import split_words

WHOLE, WINDOW, CONTEXT = 6000, 3000, 500
"""In input frames: the longest recording that is scored at once; the window for longer recordings,
and its context on either side."""


class CtcScorer:
    """Scores recordings with a CTC network, including its normaliser and output units.

    Args:
      bundle: the bundle's folder.
      device: where the network computes.
      int8: whether it computes in 8 bits, see `toolkit.models.store`; only on the CPU.

    Raises:
      BundleError: the bundle's parts do not belong together.
    """

    def __init__(self, bundle: Path, device: str = "cpu", int8: bool = False) -> None:
        self._bundle = bundle
        self.model: nn.Module = load_model(bundle / MODEL).to(device)
        self.normaliser = Cmvn.load(bundle / NORMALISER)
        self.units = load_units(bundle / UNITS)
        config, sizes = self.model.config, (len(self.normaliser.prior_mean), self.units.size)
        if not (hasattr(config, "frames_needed") and hasattr(config, "subsampling")):
            raise BundleError(f"{bundle / MODEL} does not contain a CTC network; {ADVICE}")
        if (config.input_dim, config.output_dim) != sizes:
            raise BundleError(
                f"{bundle / MODEL} has {config.input_dim} inputs and {config.output_dim} outputs, "
                f"but {bundle / NORMALISER} is for {sizes[0]} inputs and {bundle / UNITS} for "
                f"{sizes[1]} outputs. The files are from different training runs; {ADVICE}"
            )
        if int8:
            self.model = quantize_int8(self.model)
        self.subsampling = self.model.config.subsampling
        """Input frames per row of log-probabilities."""
        self.offset = (self.model.config.frames_needed - self.subsampling) / 2
        """Number of input frames before those that the first row stands for: the network's left
        context."""

    @property
    def can_stream(self) -> bool:
        """Whether network and normaliser work without future frames."""
        return self._forward and self.normaliser.online

    @property
    def _forward(self) -> bool:
        """Whether the network can carry its state from one block of frames to the next."""
        return isinstance(self.model, CtcModel) and not self.model.config.bidirectional

    def log_probs(self, features: Tensor, state: CmnState | None = None) -> Tensor:
        """Return the log-probabilities of an utterance or a whole recording.

        A long recording is scored in windows with some context. A `CtcModel` with unidirectional
        LSTMs carries its state from window to window instead, which gives the result of the whole
        recording.

        Args:
          features: [T, F] before normalisation.
          state: the normaliser's state after the speaker's earlier utterances; None for a new
            speaker.

        Returns:
          [T', C] float32, on the CPU.

        Raises:
          BundleError: the features give outputs that are not finite.
        """
        (log_probs,) = self.batch_log_probs([(features, state)])
        return log_probs

    def batch_log_probs(self, utterances: Sequence[Utterance]) -> list[Tensor]:
        """Return `log_probs` of several utterances; short ones are scored in one batch."""
        # Longer utterances are scored piece by piece. The results are in the order given.
        inputs = [self.normaliser.apply(features, state) for features, state in utterances]
        short = [frames for frames in inputs if len(frames) <= WHOLE]
        scored = iter(ctc_log_probs(self.model, short) if short else ())
        return [
            self._checked(next(scored)) if len(frames) <= WHOLE else self._long(frames)
            for frames in inputs
        ]

    def _long(self, inputs: Tensor) -> Tensor:
        """Score a long recording piece by piece."""
        if self._forward:
            return torch.cat(list(self._in_turn(inputs)))
        return self._checked(torch.cat(list(self._windows(inputs))))

    @torch.inference_mode()
    def stream(self, inputs: Tensor, state: CtcState | None) -> tuple[Tensor, CtcState]:
        """Score the next normalised frames [T, F] of a stream; see `CtcModel.stream`.

        Raises:
          BundleError: the outputs are not finite.
        """
        device = next(self.model.parameters()).device
        with full_float32(device):
            rows, state = self.model.eval().stream(inputs[None].to(device), state)
        return self._checked(rows[0].float().cpu()), state

    def _checked(self, log_probs: Tensor) -> Tensor:
        """Return log-probabilities, or raise a BundleError if they are not finite."""
        if not log_probs.isfinite().all():
            raise BundleError(
                f"{self._bundle}: the network's outputs are not finite: its weights or "
                f"{NORMALISER} are damaged; {ADVICE}"
            )
        return log_probs

    def _in_turn(self, inputs: Tensor) -> Iterator[Tensor]:
        """Score blocks one after the other, carrying the network's state."""
        state = None
        for block in inputs.split(WINDOW):
            rows, state = self.stream(block, state)
            yield rows

    def _windows(self, inputs: Tensor) -> Iterator[Tensor]:
        """Score overlapping windows."""
        # Windows of WINDOW frames, with CONTEXT frames on both sides; both counted in rows here.
        step, context = WINDOW // self.subsampling, CONTEXT // self.subsampling
        needed = self.model.config.frames_needed
        rows = (len(inputs) - needed) // self.subsampling + 1
        for begin in range(0, rows, step):
            end, first = min(begin + step, rows), max(0, begin - context)
            last = min(end + context, rows) - 1
            # Row r of a window needs the frames from r * subsampling on.
            window = inputs[first * self.subsampling : last * self.subsampling + needed]
            yield ctc_log_probs(self.model, [window])[0][begin - first : end - first]


class CtcRecogniser(Recogniser):
    """Recognises utterances with a bundle written by `write_ctc_bundle`.

    Args:
      bundle: the folder; `Bundle.choose` finds one in a run's `final/`.
      device: where the network computes; the front end and the search run on the CPU.
      fast: leave out rescoring with a neural language model.
      int8: whether the network computes in 8 bits, on the CPU.

    Raises:
      BundleError: the folder is not such a bundle.
    """

    def __init__(
        self, bundle: Path, device: str = "cpu", fast: bool = False, int8: bool = False
    ) -> None:
        self._bundle = Path(bundle)
        self.settings = read_ctc_settings(self._bundle)
        if fast and self.settings.fast is not None:
            self.settings = replace(self.settings, search=self.settings.fast, rescored=False)
        self.frontend_config = self.settings.frontend
        self.frontend = Frontend(self.frontend_config)
        self.detector = load_detector(self._bundle, self.frontend_config)
        self.scorer = CtcScorer(self._bundle, device, int8)
        inputs = len(self.scorer.normaliser.prior_mean)
        check_frontend(
            self._bundle / CTC_SETTINGS, self.frontend_config, inputs, self._bundle / MODEL
        )

    @property
    def frame_shift(self) -> float:
        """Seconds between consecutive rows of log-probabilities."""
        return self.scorer.subsampling * self.frontend_config.frame_shift_ms / 1000

    @cached_property
    def decoder(self) -> WordsDecoder:
        """The CTC decoder, loaded on first use.

        Raises:
          BundleError: the dictionary cannot be read, or the units cannot write any of its words.
        """
        try:
            words = split_words((self._bundle / WORDS).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise BundleError(f"{self._bundle / WORDS}: {error}; {ADVICE}") from error
        search = self.settings.search
        if self._lm is not None:
            check_language_model(self._bundle / LM, self._lm.vocabulary, set(words))
        try:
            return WordsDecoder(self.scorer.units, words, self._lm, search)
        except CtcDecodeError as error:
            raise BundleError(f"{self._bundle / WORDS}: {error}; {ADVICE}") from error

    @cached_property
    def _lm(self) -> BackoffModel | None:
        """The n-gram model, if the search uses one."""
        return None if self.settings.search.mode == "words" else read_binary(self._bundle / LM)

    @cached_property
    def _rescorer(self) -> CtcRescorer | None:
        """The rescorer of n-best lists, if the bundle has a neural language model."""
        if not self.settings.rescored:
            return None
        if self._lm is None:
            raise BundleError(
                f"{self._bundle}: rescoring needs a search with n-grams, but the search of this "
                f"bundle has none; {ADVICE}"
            )
        missing = missing_words(self._lm, self.decoder.dictionary.words)
        rescorer = Rescorer.load(self._bundle / NEURAL_LM)
        shortlist = rescorer.lm.shortlist
        check_language_model(
            self._bundle / NEURAL_LM,
            (*shortlist.words, *shortlist.shares),
            set(self.decoder.dictionary.words),
        )
        return CtcRescorer(rescorer, self._lm, self.settings.search, missing)

    def best_text(self, hypotheses: Sequence[CtcHypothesis]) -> str:
        """Return the best text of an n-best list, rescored by the neural language model if any."""
        return self._rescorer.best(hypotheses) if self._rescorer else hypotheses[0].text

    @cached_property
    def word_aligner(self) -> CtcWordAligner:
        """The aligner that finds word times and confidences."""
        offset = self.scorer.offset * self.frontend_config.frame_shift_ms / 1000
        return CtcWordAligner(self.scorer.units, self.frame_shift, offset)

    def recognise_batch(
        self, utterances: Sequence[Utterance], details: bool = False
    ) -> list[DecodedUtterance]:
        """Recognise several utterances; see `Recogniser.recognise_batch`."""
        results = []
        for log_probs in self.gated_scores(utterances, self.scorer.batch_log_probs):
            if log_probs is None:
                results.append(DecodedUtterance("", () if details else None))
                continue
            text = self.best_text(self.decoder.decode(log_probs)) if len(log_probs) else ""
            results.append(self.with_words(text, log_probs) if details else DecodedUtterance(text))
        return results

    def silence_gate(self) -> SilenceGate:
        """Return the gate that keeps words out of an utterance's digital silence."""
        units = self.scorer.units
        # In digital silence only the blank is possible.
        blank = torch.arange(units.size) == units.blank
        middle = int(self.scorer.offset + self.scorer.subsampling / 2)
        kind, factor = self.frontend_config.kind, self.scorer.subsampling
        return SilenceGate(kind, blank, factor, middle, keep=None)

    def with_words(self, text: str, log_probs: Tensor) -> DecodedUtterance:
        """Return a text with the times and confidences of its words.

        Args:
          text: the recognised words.
          log_probs: [T, C] in which the words were recognised.
        """
        words = split_words(text)
        try:
            return DecodedUtterance(text, self.word_aligner(words, log_probs).words)
        except CtcDecodeError:  # `WordsConfig.complete` adds letters for which no frames are left
            return DecodedUtterance(text, self.word_aligner.uniform_times(words, len(log_probs)))

    def stream(
        self, endpoint: EndpointConfig | None = None, details: bool = False
    ) -> RecogniserStream:
        """Begin to recognise a stream; the network must have unidirectional LSTMs only.

        A row counts as speech unless its likeliest symbol is the blank or the space.
        """
        units = self.scorer.units
        silent = [i for i, s in enumerate(units.symbols) if i == units.blank or s == SPACE]
        parts = StreamParts(
            self.frontend,
            CtcScoreStream(self.scorer, self.frontend_config.kind),
            lambda: CtcSearchStream(self, details),
            lambda log_probs: torch.isin(log_probs.argmax(dim=1), torch.tensor(silent)),
            self.silence_gate(),
            self.detector,
            self.frame_shift,
            onset_rows=1,
        )
        return RecogniserStream(parts, endpoint)


class CtcScoreStream:
    """Turns features into log-probabilities block by block; normaliser and network keep state.

    Args:
      scorer: scorer of a network with unidirectional LSTMs.
      kind: kind of the features, see `FrontendConfig.kind`.

    Raises:
      BundleError: the network, or the normalisation of its features, needs the whole utterance.
    """

    def __init__(self, scorer: CtcScorer, kind: str) -> None:
        if not scorer.can_stream:
            raise BundleError(
                "streaming needs unidirectional LSTMs and causal normalisation, but this network "
                "needs the whole utterance. Transcribe without --stream, or train a network with "
                "`train.model.bidirectional=false` and `normalisation=causal`"
            )
        self._scorer, self._kind = scorer, kind
        self._network: CtcState | None = None
        self._no_rows = torch.zeros(0, scorer.units.size)
        self.mean = CmnState.empty(len(scorer.normaliser.prior_mean))
        """The normaliser's state; it carries over from utterance to utterance."""

    def push(self, features: Tensor) -> Tensor:
        """Take features [T, F] before normalisation; return the next log-probabilities [t, C]."""
        if not len(features):
            return self._no_rows
        inputs = self._scorer.normaliser.apply(features, self.mean)
        counted = counted_frames(features, self._kind)
        self.mean = self.mean.after(features, counted)
        rows, self._network = self._scorer.stream(inputs, self._network)
        return rows

    def end_utterance(self) -> Tensor:
        """Reset the network's state; discard remaining frames, which are too few for a row."""
        self._network = None
        return self._no_rows


class CtcSearchStream:
    """The dictionary search of an utterance whose log-probabilities arrive in blocks.

    Args:
      recogniser: the recogniser whose search is used.
      details: find word times and confidences.
    """

    def __init__(self, recogniser: CtcRecogniser, details: bool) -> None:
        self._recogniser, self._details = recogniser, details
        self._search = recogniser.decoder.begin()
        self._rows: list[Tensor] = []

    @property
    def num_rows(self) -> int:
        """Number of rows of log-probabilities searched so far."""
        return self._search.frames

    def advance(self, log_probs: Tensor) -> None:
        """Search the next rows [t, C] of log-probabilities."""
        if not len(log_probs):
            return
        self._search.advance(log_probs)
        if self._details:
            self._rows.append(log_probs)

    def partial_text(self, speech: bool) -> str:
        """Return the finished words so far, even before speech was detected."""
        return self._search.text()

    def finish(self) -> DecodedUtterance:
        """End the utterance; return its best words."""
        text = self._recogniser.best_text(self._search.hypotheses()) if self.num_rows else ""
        if not self._details:
            return DecodedUtterance(text)
        return self._recogniser.with_words(text, torch.cat(self._rows or [torch.zeros(0, 1)]))


@dataclass(frozen=True)
class CtcAlignerFiles:
    """The bundle of a CTC network; implements `toolkit.align.folder.AlignerFiles`."""

    bundle: Path
    """The folder."""
    unit_tier: ClassVar[str] = "units"
    by_speaker: ClassVar[bool] = False
    needs_speakers: ClassVar[bool] = False

    def spoken(self, recording: Recording) -> tuple[list[str], str]:
        """Normalise a recording's text by the units' text policy; return words and removed text."""
        return recording.spoken(_policy(self.bundle), guess=False)

    def tags(self, words: Collection[str]) -> frozenset[str]:
        """Return an empty set: tags are left out of the text, or are words of it."""
        return frozenset()

    def with_pronunciations(self, words: Collection[str]) -> "CtcAlignerFiles":
        """Return these files unchanged: output units spell any word."""
        return self

    def guessed(self, words: Collection[str]) -> tuple[list[str], list[str]]:
        """Return two empty lists: no word needs a pronunciation."""
        return [], []

    def open(self) -> "CtcAligner":
        """Load the network and return the aligner."""
        return CtcAligner(CtcRecogniser(self.bundle))


class CtcAligner:
    """Aligns recordings with a CTC network; implements `toolkit.align.folder.Aligner`."""

    def __init__(self, recogniser: CtcRecogniser) -> None:
        self._recogniser = recogniser

    def features(self, audio: Path, channel: int | None = None) -> Tensor:
        """Compute the features [T, F] of an audio file; see `toolkit.align.folder.Aligner`."""
        return extract_file(audio, self._recogniser.frontend, channel)

    def feature_sum(self, features: Tensor) -> tuple[Tensor, int]:
        """Return the float64 sum [F] of all frames, and their number."""
        return features.sum(dim=0, dtype=torch.float64), len(features)

    def speaker_statistics(
        self, features: Tensor, mean: Tensor, words: Sequence[str]
    ) -> FmllrStatistics:
        """Not needed: the network does not adapt to speakers."""
        raise NotImplementedError

    def align(
        self, features: Tensor, words: Sequence[str], speaker: SpeakerAdaptation | None = None
    ) -> RecordingTimes:
        """Align one recording, normalised by its own statistics, with its words.

        Raises:
          CtcDecodeError: there are fewer frames than labels.
          UnitsError: the units cannot write a word.
        """
        log_probs = self._recogniser.scorer.log_probs(features)
        alignment = self._recogniser.word_aligner(words, log_probs)
        return RecordingTimes(
            words=alignment.words,
            units=alignment.units,
            log_likelihood_per_frame=alignment.log_likelihood_per_frame,
            confidence=alignment.confidence,
        )


@lru_cache(maxsize=1)
def _policy(bundle: Path) -> TextPolicy:
    """Return the text policy of a bundle's units."""
    units = load_units(bundle / UNITS)
    return units.policy or _guessed_policy(units)


def _guessed_policy(units: Units) -> TextPolicy:
    """Return the policy for units that name none: English for the 30 characters of A16."""
    english = units.kind == "characters" and units.symbols == Characters().symbols
    return TextPolicy(EnglishRules.id if english else LetterRules.id)
