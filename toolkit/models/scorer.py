"""The neural acoustic model as a scorer for decoding and alignment."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torch import Tensor, nn

from toolkit.features.cmn_state import CmnState
from toolkit.features.low_frame_rate import LOW_RATE_FACTOR, stack
from toolkit.features.normalise import Normaliser
from toolkit.features.store import FeatureStore
from toolkit.models.lstm import log_posteriors
from toolkit.models.priors import load_log_priors
from toolkit.models.store import ModelError, load_model


class NeuralModel:
    """Weights, priors and normalisation together.

    Args:
      folder: the trained model, with `priors.json`.
      normaliser: the file of the features' normaliser.
      device: where the network computes.

    Raises:
      ModelError, NormaliserError: they cannot be read, or do not belong together.
    """

    def __init__(self, folder: Path, normaliser: Path, device: str = "cpu") -> None:
        self._folder = folder
        self.model: nn.Module = load_model(folder).to(device)
        self.normaliser = Normaliser.load(normaliser)
        self.log_priors = load_log_priors(folder)
        sizes = self.model.config.input_dim, self.model.config.output_dim
        found = LOW_RATE_FACTOR * len(self.normaliser.prior_mean), len(self.log_priors)
        if found != sizes:
            raise ModelError(
                f"{folder} is a model of {sizes[0]} inputs and {sizes[1]} targets, {normaliser} and"
                f" the priors are for {found[0]} and {found[1]}: they come from different trainings"
            )

    def log_likelihoods(
        self, features: Tensor, state: CmnState | None = None, offset: int = 0
    ) -> Tensor:
        """log p(s|x) - log p(s) for stored features.

        Args:
          features: [T, F] raw log-mel energies at 100 Hz.
          state: mean state after the speaker's earlier utterances; None for a new speaker.
          offset: 0, 1 or 2, the raw frame that the first stack begins with.

        Returns:
          [ceil((T - offset) / 3), P] at 33 Hz, on the CPU.
        """
        return self.batch_log_likelihoods([(features, state)], offset)[0]

    def batch_log_likelihoods(
        self, utterances: Sequence[tuple[Tensor, CmnState | None]], offset: int = 0
    ) -> list[Tensor]:
        """As `log_likelihoods`, for the features and states of several utterances in one batch.

        Raises:
          ModelError: outputs are not finite, in which a search would find no path.
        """
        inputs = [stack(self.normaliser.apply(x, state), offset) for x, state in utterances]
        found = [row - self.log_priors for row in log_posteriors(self.model, inputs)]
        return [self.checked(row) for row in found]

    def checked(self, scores: Tensor) -> Tensor:
        """Return scores unchanged.

        Raises:
          ModelError: they are not finite.
        """
        if not scores.isfinite().all():
            raise ModelError(
                f"{self._folder}: outputs are no numbers: the model, its normaliser or the features"
                " are damaged"
            )
        return scores


@dataclass
class NeuralScorer:
    """A neural model over stored features; see `toolkit.align.scorer.Scorer`."""

    model: Path
    """The trained model's folder."""
    normaliser: Path
    """The file of the features' normaliser."""
    features: Path
    """A feature store of log-mel energies."""
    offset: int = 0
    """The raw frame that the first stack begins with: 0, 1 or 2."""
    frame_shift: float = 0.03
    """Seconds between frames."""
    device: str = "cpu"
    """Where the network computes; on a GPU see `toolkit.align.scorer`."""

    @cached_property
    def store(self) -> FeatureStore:
        """The features that are scored."""
        return FeatureStore(self.features)

    @cached_property
    def _model(self) -> NeuralModel:
        return NeuralModel(self.model, self.normaliser, self.device)

    def log_likelihoods(self, utterance: str) -> Tensor:
        """Scaled likelihoods [T, P], given the speaker's earlier utterances."""
        return self.batch_log_likelihoods([utterance])[0]

    def scores_of(self, utterance: str, pdfs: Tensor) -> Tensor:
        """The columns `pdfs` of these, which are all computed: [T, len(pdfs)]."""
        return self.log_likelihoods(utterance)[:, pdfs]

    def batch_log_likelihoods(self, utterances: Sequence[str]) -> list[Tensor]:
        """Scaled likelihoods of several utterances in one batch: [T, P] each, on the CPU."""
        stored = [(self.store.load(name), self.store.state(name)) for name in utterances]
        return self._model.batch_log_likelihoods(stored, self.offset)
