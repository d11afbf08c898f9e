"""The choice among hypotheses with an n-gram and a neural language model."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from toolkit.config.convert import read_plain
from toolkit.decode.confidence import word_confidences
from toolkit.decode.rescoring.candidates import Candidates
from toolkit.fsa.lattice import Weights, WeightsError
from toolkit.models.neural_lm import NeuralLm
from toolkit.storage.files import write_atomically

WEIGHTS = "weights.json"
SAMPLES = 1000
"""Hypotheses that are sampled for posteriors."""


@dataclass(frozen=True)
class RescoringWeights:
    """How the scores of a hypothesis are added up."""

    neural: float
    """Weight of the neural model's log-probability, 0 to 1; the n-gram's has the rest."""
    acoustic_scale: float
    """Factor on acoustic log-likelihoods."""
    word_penalty: float
    """Added per word."""

    def __post_init__(self) -> None:
        if not 0 <= self.neural <= 1:
            raise ValueError(f"neural is {self.neural}, needs to be in [0, 1]")
        Weights(self.acoustic_scale, self.word_penalty)  # checks them

    @classmethod
    def of(cls, neural: float, weights: Weights) -> "RescoringWeights":
        """Join the neural model's weight with the others."""
        return cls(neural, weights.acoustic_scale, weights.word_penalty)

    @classmethod
    def load(cls, path: Path) -> "RescoringWeights":
        """Read what `save` wrote.

        Raises:
          WeightsError: naming the file.
        """
        return read_plain(path, cls, WeightsError, "rescore again")

    def save(self, path: Path) -> None:
        """Write as JSON."""
        write_atomically(path, json.dumps(asdict(self), indent=1) + "\n")

    def total(self, candidates: Candidates, neural: np.ndarray) -> np.ndarray:
        """Score hypotheses.

        The language models are interpolated log-linearly: their log-probabilities are added with
        weights, which needs of the n-gram model only what the lattice holds.

        Args:
          candidates: K hypotheses.
          neural: [K] log-probability by the neural model.

        Returns:
          [K] total scores.
        """
        acoustic, graph, lm, words = candidates.scores
        language = self.neural * neural + (1 - self.neural) * lm
        return self.acoustic_scale * acoustic + graph + language + self.word_penalty * words

    def best(self, candidates: Candidates, neural: np.ndarray) -> str:
        """Return the words of the hypothesis with the highest `total`; of equals the first.

        An empty list gives no words.
        """
        if not candidates.texts:
            return ""
        return candidates.texts[int(np.argmax(self.total(candidates, neural)))]

    def words(self, candidates: Candidates, neural: np.ndarray) -> tuple[list[str], list[float]]:
        """Return the words of `best`, and the posterior of each.

        Of hypotheses sampled in proportion to the exponentials of their totals this is the share
        that contains the word there, see `toolkit.decode.confidence.word_confidences`.
        """
        best = self.best(candidates, neural).split()
        if not best:
            return [], []
        total = self.total(candidates, neural)
        mass = np.cumsum(np.exp(total - total.max()))
        places = np.searchsorted(mass, (np.arange(SAMPLES) + 0.5) / SAMPLES * mass[-1])
        samples = [tuple(candidates.texts[place].split()) for place in places]
        return best, word_confidences(best, samples)


@dataclass(frozen=True)
class Rescorer:
    """A neural language model and the weights that were tuned for it."""

    lm: NeuralLm
    """The model."""
    weights: RescoringWeights
    """The weights."""

    @classmethod
    def load(cls, folder: Path, device: torch.device | str = "cpu") -> "Rescorer":
        """Read the model and `weights.json` of a folder.

        Raises:
          ModelError, ShortlistError, WeightsError: a file is missing or damaged.
        """
        return cls(NeuralLm.load(folder, device), RescoringWeights.load(Path(folder) / WEIGHTS))

    def best(self, candidates: Candidates) -> str:
        """Return the words of the best hypothesis, see `RescoringWeights.best`."""
        return self.weights.best(candidates, neural_scores(self.lm, [candidates])[0])

    def words(self, candidates: Candidates) -> tuple[list[str], list[float]]:
        """Return them with their posteriors, see `RescoringWeights.words`."""
        return self.weights.words(candidates, neural_scores(self.lm, [candidates])[0])


def neural_scores(lm: NeuralLm, lists: list[Candidates]) -> list[np.ndarray]:
    """Compute the neural model's log-probability of every hypothesis: [K] for each list."""
    sentences = [words for one in lists for words in one.sentences]
    sums = np.array([scores.sum() for scores in lm.score(sentences)])
    return np.split(sums, np.cumsum([len(one.texts) for one in lists])[:-1])
