"""The files of a bundle and its settings."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from toolkit.align.gmm.training import EmConfig
from toolkit.config.fields import read_plain
from toolkit.errors import ToolkitError
from toolkit.features.frontend import FrontendConfig
from toolkit.fsa.beam import Beam
from toolkit.fsa.lattice import Weights
from toolkit.fsa.rescore import RescoreLimits

SETTINGS = "recogniser.json"
GRAPH = "graph.safetensors"
RESCORER = "rescoring.safetensors"
NORMALISER = "normaliser.json"
MODEL = "model"
SENONES = "senones"
CALIBRATION = "calibration.json"
GMM = "gmm"
FIRST_PASS = "first_pass"
NEURAL_LM = "neural_lm"
MODEL_FILES = ("config.json", "model.safetensors", "priors.json")
NEURAL_LM_FILES = ("config.json", "model.safetensors", "shortlist.json")
LANG_FILES = ("words.txt", "phones.txt", "lexicon.txt", "lang.json")
SENONE_FILES = ("topology.json", "tree.json")
GMM_FILES = (*SENONE_FILES, "gmm.safetensors", "features.json")
PROJECTION = "projection.safetensors"
ADVICE = "run the recipe's last stage again"


class BundleError(ToolkitError):
    """A folder that is not a complete bundle."""


@dataclass(frozen=True)
class Rescoring:
    """The second pass, with a larger language model."""

    weights: Weights
    """Acoustic scale and word penalty of the best path; the search is made at this scale."""
    limits: RescoreLimits
    """Pruning."""


@dataclass(frozen=True)
class NeuralRescoring:
    """The last pass, n-best lists with a neural language model, whose folder has its weights."""

    count: int
    """Length of the lists."""
    word_penalty: float
    """Word penalty with which they are chosen; the search is made at the scale of the weights."""

    def __post_init__(self) -> None:
        if self.count < 1 or not math.isfinite(self.word_penalty):
            raise ValueError(
                f"count is {self.count}, needs to be positive; word_penalty is"
                f" {self.word_penalty}, needs to be finite"
            )


@dataclass(frozen=True)
class FirstPass:
    """The search with a speaker-independent system whose words a speaker's transform is for."""

    beam: Beam
    """Pruning of its search."""
    retries: tuple[float, ...]
    """See `RecogniserSettings.retries`."""
    weights: Weights
    """Its acoustic scale and word penalty."""
    lattice_scale: float
    """Acoustic scale of the adapted pass on whose lattices the transform is refined."""
    adaptation: EmConfig
    """The alignments of its words, on which the transform is estimated."""

    def __post_init__(self) -> None:
        Weights(self.lattice_scale)  # checks it


@dataclass(frozen=True)
class RecogniserSettings:
    """The content of `recogniser.json`."""

    frontend: FrontendConfig
    """The front end of the model's features."""
    beam: Beam
    """Pruning of the search."""
    search_scale: float
    """Factor on acoustic log-likelihoods during the search, if nothing is rescored."""
    weights: Weights
    """Acoustic scale and word penalty of the best path, tuned on development data."""
    made_with: dict[str, str] = field(default_factory=dict)
    """The engines of the process that wrote it (`toolkit.engines`); any recognises with it."""
    retries: tuple[float, ...] = (2.0,)
    """Factors by which the beam is widened when no path survives."""
    rescoring: Rescoring | None = None
    """The second pass; None: there is none."""
    neural: NeuralRescoring | None = None
    """The pass after that; None: there is none."""
    by_speaker: bool = False
    """Whether the features are those of a GMM system, normalised by the mean of all recordings of
    a speaker; otherwise they are the front end's, with a running mean."""
    first_pass: FirstPass | None = None
    """What speakers are adapted with; None: they are not adapted. Only where `by_speaker`."""

    def __post_init__(self) -> None:
        Weights(self.search_scale)  # checks it


def read_settings(folder: Path) -> RecogniserSettings:
    """Read the settings of the bundle of one system.

    Raises:
      BundleError: the folder is no bundle.
    """
    if not (folder / SETTINGS).is_file():
        raise BundleError(
            f"{folder} is not a bundle: it has no {SETTINGS}. A recipe's last stage makes"
            " one in exp/<profile>/final"
        )
    return read_plain(folder / SETTINGS, RecogniserSettings, BundleError, ADVICE)
