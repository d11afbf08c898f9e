"""Recognition with a network on log-mel features, utterance by utterance."""

from collections.abc import Sequence
from functools import cached_property
from itertools import compress
from pathlib import Path

from torch import Tensor

from toolkit.decode.bundle.search import BundleSearch
from toolkit.decode.bundle.settings import (
    CALIBRATION,
    MODEL,
    NORMALISER,
    SENONES,
    SETTINGS,
    BundleError,
    read_settings,
)
from toolkit.decode.bundle.sizes import check_frontend, check_senones
from toolkit.decode.silence import SilenceGate, SilencePosteriors, silence_pdfs
from toolkit.decode.transcript import Recognised
from toolkit.decode.word_times import WordAligner
from toolkit.features.cmn_state import CmnState
from toolkit.features.frontend import Frontend
from toolkit.features.low_frame_rate import LOW_RATE_FACTOR
from toolkit.features.silence import counted_frames
from toolkit.fsa.fst import Lattice
from toolkit.hmm.senones import Senones
from toolkit.models.scorer import NeuralModel


class Recogniser:
    """Recognises speech with a bundle from `write_network_bundle`.

    Args:
      bundle: the folder of the system; `find_system` finds one in a run's `final/`.
      device: where the network computes; the front end and the search are the CPU's.
      fast: leave out the second pass.

    Raises:
      BundleError: the folder is not such a bundle, or its files come from different ones.
    """

    def __init__(self, bundle: Path, device: str = "cpu", fast: bool = False) -> None:
        self._bundle = Path(bundle)
        settings = read_settings(self._bundle)
        if settings.by_speaker:
            raise BundleError(
                f"{bundle} recognises by speaker, whole recordings at a time; this needs a network"
                " on log-mel features"
            )
        self.frontend_config = settings.frontend
        self.frontend = Frontend(self.frontend_config)
        normaliser = self._bundle / NORMALISER
        self.model = NeuralModel(self._bundle / MODEL, normaliser, device)
        inputs = len(self.model.normaliser.prior_mean)
        check_frontend(self._bundle / SETTINGS, self.frontend_config, inputs, normaliser)
        self.search = BundleSearch(self._bundle, settings, fast, len(self.model.log_priors))

    @property
    def frame_shift(self) -> float:
        """Seconds between two rows of scores."""
        return LOW_RATE_FACTOR * self.frontend_config.frame_shift_ms / 1000

    @cached_property
    def word_aligner(self) -> WordAligner:
        """Finds word times and confidences."""
        calibration = self._bundle / CALIBRATION
        return WordAligner(
            self._bundle,
            self._senones,
            calibration if calibration.exists() else None,
            self.frame_shift,
            self.search.beams[0].search,
        )

    @cached_property
    def silence(self) -> SilencePosteriors:
        """Computes posteriors of silence."""
        return SilencePosteriors(self._senones, self.model.log_priors)

    @cached_property
    def _silence_pdfs(self) -> Tensor:
        return silence_pdfs(self._senones)

    def silence_gate(self) -> SilenceGate:
        """Return what keeps words out of an utterance's digital silence."""
        middle = LOW_RATE_FACTOR // 2
        return SilenceGate(self.frontend_config.kind, self._silence_pdfs, LOW_RATE_FACTOR, middle)

    def _gated(self, features: Tensor, log_likelihoods: Tensor) -> Tensor:
        """The log-likelihoods [T, P] of an utterance, without words in its digital silence."""
        gate = self.silence_gate()
        gate.push(features)
        return gate(log_likelihoods)

    @cached_property
    def _senones(self) -> Senones:
        senones = Senones.load(self._bundle / SENONES)
        check_senones(self._bundle / SENONES, senones, len(self.model.log_priors))
        return senones

    def scores(self, features: Tensor, state: CmnState | None = None) -> Tensor:
        """Score the features of an utterance.

        Args:
          features: [T, F] before normalisation.
          state: the normaliser's state after the speaker's earlier utterances; None for a new
            speaker.

        Returns:
          [ceil(T / 3), P] log-likelihoods times the acoustic scale of the search.
        """
        log_likelihoods = self.model.log_likelihoods(features, state)
        return self._gated(features, log_likelihoods) * self.search.scale

    def recognise(self, samples: Tensor) -> str:
        """Return the words in samples [S], mono, at the front end's sampling rate, in [-1, 1].

        The text is empty if no path survives the widest beam.
        """
        return self.recognise_features(self.frontend(samples)).text

    def recognise_features(
        self, features: Tensor, state: CmnState | None = None, details: bool = False
    ) -> Recognised:
        """Recognise an utterance.

        Args:
          features, state: see `scores`.
          details: find word times and confidences too.
        """
        (found,) = self.recognise_batch([(features, state)], details)
        return found

    def recognise_batch(
        self, utterances: Sequence[tuple[Tensor, CmnState | None]], details: bool = False
    ) -> list[Recognised]:
        """As `recognise_features`, for several utterances that the network scores in one batch.

        Args:
          utterances: features [T_n, F] and state of each; see `scores`.
          details: see `recognise_features`.
        """
        kind = self.frontend_config.kind
        has_sound = [bool(counted_frames(features, kind).any()) for features, _ in utterances]
        sounding = list(compress(utterances, has_sound))
        scored = iter(self.model.batch_log_likelihoods(sounding) if sounding else ())
        found = []
        for (features, _), sound in zip(utterances, has_sound, strict=True):
            if sound:
                scores = self._gated(features, next(scored)) * self.search.scale
                found.append(self.best(self.search.lattice(scores), scores, details))
            else:
                found.append(Recognised("", () if details else None))
        return found

    def best(self, lattice: Lattice | None, scores: Tensor, details: bool) -> Recognised:
        """Return the best path of an utterance's lattice.

        Args:
          lattice: from the search; None if no path survived.
          scores: [T, P] the scores that were searched.
          details: see `recognise_features`.
        """
        return self.search.best(lattice, scores, self.word_aligner if details else None)
