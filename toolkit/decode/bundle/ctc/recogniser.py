"""Recognition with a CTC network, utterance by utterance."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from toolkit.decode.bundle.ctc.scorer import CtcScorer
from toolkit.decode.bundle.ctc.settings import LM, SETTINGS, WORDS, read_ctc_settings
from toolkit.decode.bundle.ctc.word_times import CtcWordAligner
from toolkit.decode.bundle.settings import ADVICE, MODEL, NEURAL_LM, BundleError
from toolkit.decode.bundle.sizes import check_frontend, check_language_model
from toolkit.decode.ctc.decoder import CtcDecodeError, Hypothesis
from toolkit.decode.ctc.lists import CtcRescorer, missing_words
from toolkit.decode.ctc.words import WordsDecoder
from toolkit.decode.rescoring.rescorer import Rescorer
from toolkit.decode.silence import SilenceGate
from toolkit.decode.transcript import Recognised
from toolkit.features.cmn_state import CmnState
from toolkit.features.frontend import Frontend
from toolkit.features.silence import counted_frames
from toolkit.lang.ngram.backoff import BackoffModel
from toolkit.lang.ngram.binary import read_binary
from toolkit.storage.words import split_words


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
        check_frontend(self._bundle / SETTINGS, self.frontend_config, inputs, self._bundle / MODEL)

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

    def chosen(self, hypotheses: Sequence[Hypothesis]) -> str:
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
            gate = self.silence_gate()
            gate.push(features)
            log_probs = gate(log_probs)
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
            return Recognised(text, self.word_aligner.evenly(words, len(log_probs)))
