"""Recognition with a CTC network, utterance by utterance."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

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
from toolkit.decode.ctc.dictionary import CtcDecodeError
from toolkit.decode.ctc.search import CtcHypothesis, WordsDecoder
from toolkit.decode.decoded import Recognised
from toolkit.decode.rescore import CtcRescorer, Rescorer, missing_words
from toolkit.decode.words import CtcWordAligner, SilenceGate
from toolkit.features.frontend import Frontend
from toolkit.features.normalise import Normaliser
from toolkit.features.shards import CmnState
from toolkit.features.silence import counted_frames
from toolkit.lang.arpa import read_binary
from toolkit.lang.ngram import BackoffModel
from toolkit.lang.units import load_units
from toolkit.models.ctc import CtcModel, CtcState, ctc_log_probs
from toolkit.models.store import load_model, quantize_int8
from toolkit.processes.devices import full_float32
from toolkit.storage.words import split_words

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


class CtcRecogniser:
    """Recognises speech with a bundle from `write_ctc_bundle`.

    Args:
      bundle: the folder; `find_system` finds one in a run's `final/`.
      device: where the network computes; the front end and the search are the CPU's.
      fast: leave out rescoring with a neural language model.
      int8: whether the network computes in 8 bits, on the CPU.

    Raises:
      BundleError: the folder is not such a bundle.
    """

    silence = None
    """A CTC network has no silence of its own: recordings are cut by their energy."""

    def __init__(
        self, bundle: Path, device: str = "cpu", fast: bool = False, int8: bool = False
    ) -> None:
        self._bundle = Path(bundle)
        self.settings = read_ctc_settings(self._bundle)
        if fast and self.settings.fast is not None:
            self.settings = replace(self.settings, search=self.settings.fast, rescored=False)
        self.frontend_config = self.settings.frontend
        self.frontend = Frontend(self.frontend_config)
        self.scorer = CtcScorer(self._bundle, device, int8)
        inputs = len(self.scorer.normaliser.prior_mean)
        check_frontend(
            self._bundle / CTC_SETTINGS, self.frontend_config, inputs, self._bundle / MODEL
        )

    @property
    def frame_shift(self) -> float:
        """Seconds between two rows of log-probabilities."""
        return self.scorer.subsampling * self.frontend_config.frame_shift_ms / 1000

    @cached_property
    def decoder(self) -> WordsDecoder:
        """The search, loaded on first use.

        Raises:
          BundleError: its dictionary cannot be read, or none of its words be written.
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
        """The n-grams, if the search uses any."""
        return None if self.settings.search.mode == "words" else read_binary(self._bundle / LM)

    @cached_property
    def _rescorer(self) -> CtcRescorer | None:
        """Chooses from n-best lists, if the bundle has a neural language model."""
        if not self.settings.rescored:
            return None
        if self._lm is None:
            raise BundleError(f"{self._bundle}: rescoring needs a search with n-grams; {ADVICE}")
        missing = missing_words(self._lm, self.decoder.dictionary.words)
        rescorer = Rescorer.load(self._bundle / NEURAL_LM)
        shortlist = rescorer.lm.shortlist
        check_language_model(
            self._bundle / NEURAL_LM,
            (*shortlist.words, *shortlist.shares),
            set(self.decoder.dictionary.words),
        )
        return CtcRescorer(rescorer, self._lm, self.settings.search, missing)

    def chosen(self, hypotheses: Sequence[CtcHypothesis]) -> str:
        """Return the text of an n-best list: the first, or the neural language model's choice."""
        return self._rescorer.best(hypotheses) if self._rescorer else hypotheses[0].text

    @cached_property
    def word_aligner(self) -> CtcWordAligner:
        """Finds word times and confidences."""
        offset = self.scorer.offset * self.frontend_config.frame_shift_ms / 1000
        return CtcWordAligner(self.scorer.units, self.frame_shift, offset)

    def recognise(self, samples: Tensor) -> str:
        """Return the words in samples [S], mono, at the front end's sampling rate, in [-1, 1]."""
        return self.recognise_features(self.frontend(samples)).text

    def recognise_features(
        self, features: Tensor, state: CmnState | None = None, details: bool = False
    ) -> Recognised:
        """Recognise an utterance.

        Args:
          features: [T, F] before normalisation.
          state: the normaliser's state after the speaker's earlier utterances.
          details: find word times and confidences too.
        """
        (found,) = self.recognise_batch([(features, state)], details)
        return found

    def recognise_batch(
        self, utterances: Sequence[tuple[Tensor, CmnState | None]], details: bool = False
    ) -> list[Recognised]:
        """As `recognise_features`, for several utterances that the network scores in one batch.

        Args:
          utterances: features [T_n, F] and state of each.
          details: see `recognise_features`.
        """
        found = []
        scored = self.scorer.batch_log_probs(utterances)
        for (features, _), log_probs in zip(utterances, scored, strict=True):
            if not counted_frames(features, self.frontend_config.kind).any():
                found.append(Recognised("", () if details else None))
                continue
            log_probs = self.silence_gate().gate_utterance(features, log_probs)
            text = self.chosen(self.decoder.decode(log_probs)) if len(log_probs) else ""
            found.append(self.recognised(text, log_probs, details))
        return found

    def silence_gate(self) -> SilenceGate:
        """Return what keeps words out of an utterance's digital silence."""
        units = self.scorer.units
        blank = torch.arange(units.size) == units.blank
        middle = int(self.scorer.offset + self.scorer.subsampling / 2)
        return SilenceGate(self.frontend_config.kind, blank, self.scorer.subsampling, middle)

    def recognised(self, text: str, log_probs: Tensor, details: bool) -> Recognised:
        """Return a text that was found, with the times of its words if they are wanted.

        Args:
          text: the words.
          log_probs: [T, C] in which they were found.
          details: find word times and confidences too.
        """
        if not details:
            return Recognised(text)
        words = split_words(text)
        try:
            return Recognised(text, self.word_aligner(words, log_probs).words)
        except CtcDecodeError:  # `WordsConfig.complete` adds letters that have no frame any more
            return Recognised(text, self.word_aligner.uniform_times(words, len(log_probs)))
