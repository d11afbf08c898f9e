"""Recogniser bundles: model, graph and lexicon in one folder, and recognition with them."""

import json
import shutil
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

from torch import Tensor

from toolkit.config.convert import read_plain
from toolkit.decode.first_pass import DecodeConfig
from toolkit.decode.silence import SilencePosteriors
from toolkit.decode.transcript import Recognised
from toolkit.decode.word_times import WordAligner
from toolkit.engines import engines
from toolkit.errors import ToolkitError
from toolkit.features.cmn_state import CmnState
from toolkit.features.frontend import Frontend, FrontendConfig
from toolkit.features.low_frame_rate import LOW_RATE_FACTOR
from toolkit.fsa.beam import Beam
from toolkit.fsa.files import load_fst
from toolkit.fsa.fst import Fst, Lattice
from toolkit.fsa.lattice import ScoredLattice, Weights
from toolkit.fsa.search import search_with_retries
from toolkit.hmm.senones import Senones
from toolkit.lang.tables import SymbolTable
from toolkit.models.scorer import NeuralModel
from toolkit.storage.files import write_atomically

SETTINGS = "recogniser.json"
SENONES = "senones"
CALIBRATION = "calibration.json"
MODEL_FILES = ("config.json", "model.safetensors", "priors.json")
LANG_FILES = ("words.txt", "phones.txt", "lexicon.txt", "lang.json")
SENONE_FILES = ("topology.json", "tree.json")
WIDER = (2.0,)
"""Factors by which the beam is widened when no path survives."""


class BundleError(ToolkitError):
    """A folder that is not a complete bundle."""


@dataclass(frozen=True)
class RecogniserSettings:
    """The content of `recogniser.json`."""

    frontend: FrontendConfig
    """The front end of the model's features."""
    beam: Beam
    """Pruning of the search."""
    search_scale: float
    """Factor on acoustic log-likelihoods during the search."""
    weights: Weights
    """Acoustic scale and word penalty of the best path, tuned on development data."""
    made_with: dict[str, str] = field(default_factory=dict)
    """The engines of the process that wrote it (`toolkit.engines`); any recognises with it."""


def write_bundle(
    model: Path,
    normaliser: Path,
    graph: Path,
    lang: Path,
    frontend: FrontendConfig,
    config: DecodeConfig,
    tuned: Path,
    out: Path,
    senones: Path | None = None,
    calibration: Path | None = None,
) -> None:
    """Copy all that recognition needs to the folder `out`, which can then be moved anywhere.

    Args:
      model: the trained model's folder.
      normaliser: the features' normaliser.
      graph: the decoding graph.
      lang: the folder of the lexicon.
      frontend: the front end of the model's features.
      config: the search.
      tuned: `tuned.json` of the decode that chose scale and penalty.
      out: the bundle to write.
      senones: the folder of the model's senones; without it there are no word times and
        confidences, no endpoint detection, and recordings are segmented by energy alone.
      calibration: `calibration.json` of the confidences; None leaves the lattice posteriors as
        they are.
    """
    for name in MODEL_FILES:
        _copy(model / name, out / "model" / name)
    _copy(normaliser, out / "normaliser.json")
    _copy(graph, out / "graph.safetensors")
    for name in LANG_FILES:
        _copy(lang / name, out / name)
    if senones is not None:
        for name in SENONE_FILES:
            _copy(senones / name, out / SENONES / name)
    if calibration is not None:
        _copy(calibration, out / CALIBRATION)
    weights = Weights.load(tuned)
    scale = weights.acoustic_scale
    settings = RecogniserSettings(frontend, config.beam, scale, weights, engines())
    write_atomically(out / SETTINGS, json.dumps(asdict(settings), indent=1) + "\n")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


class Recogniser:
    """Recognises speech with a bundle from `write_bundle`.

    Args:
      bundle: the folder.
      device: where the network computes; the front end and the search are the CPU's.

    Raises:
      BundleError: the folder is not a bundle.
    """

    def __init__(self, bundle: Path, device: str = "cpu") -> None:
        self._bundle = Path(bundle)
        if not (self._bundle / SETTINGS).is_file():
            raise BundleError(
                f"{bundle} is not a bundle: it has no {SETTINGS}. A recipe's last stage makes"
                " one in exp/<profile>/final"
            )
        self.settings = read_plain(
            self._bundle / SETTINGS,
            RecogniserSettings,
            BundleError,
            "run the recipe's last stage again",
        )
        self.frontend_config = self.settings.frontend
        self.frontend = Frontend(self.frontend_config)
        normaliser = self._bundle / "normaliser.json"
        self.model = NeuralModel(self._bundle / "model", normaliser, device)
        self._words = SymbolTable.read(self._bundle / "words.txt")

    @property
    def frame_shift(self) -> float:
        """Seconds between two rows of scores."""
        return LOW_RATE_FACTOR * self.frontend_config.frame_shift_ms / 1000

    @property
    def beam(self) -> Beam:
        """Pruning of the search."""
        return self.settings.beam

    @cached_property
    def graph(self) -> Fst:
        """The decoding graph, loaded on first use."""
        return load_fst(self._bundle / "graph.safetensors")

    @cached_property
    def word_aligner(self) -> WordAligner:
        """Finds word times and confidences.

        Raises:
          BundleError: the bundle has no senones.
        """
        calibration = self._bundle / CALIBRATION
        return WordAligner(
            self._bundle,
            self._senones("word times (--format ctm, srt, vtt and json)"),
            calibration if calibration.exists() else None,
            self.frame_shift,
            self.beam.search,
        )

    @cached_property
    def silence(self) -> SilencePosteriors | None:
        """Computes posteriors of silence; None if the bundle has no senones."""
        if not (self._bundle / SENONES).is_dir():
            return None
        return SilencePosteriors(self._senones("silence"), self.model.log_priors)

    def _senones(self, purpose: str) -> Senones:
        if not all((self._bundle / SENONES / name).is_file() for name in SENONE_FILES):
            raise BundleError(
                f"{self._bundle} has no {SENONES}/, which {purpose} need: it was written by an"
                " earlier version of the toolkit; run the recipe's last stage again"
            )
        return Senones.load(self._bundle / SENONES)

    def scores(self, features: Tensor, state: CmnState | None = None) -> Tensor:
        """Score the features of an utterance.

        Args:
          features: [T, F] before normalisation.
          state: the normaliser's state after the speaker's earlier utterances; None for a new
            speaker.

        Returns:
          [ceil(T / 3), P] log-likelihoods times the acoustic scale of the search.
        """
        return self.model.log_likelihoods(features, state) * self.settings.search_scale

    def recognise(self, samples: Tensor) -> str:
        """Return the words in samples [S], mono, at the front end's sampling rate, in [-1, 1].

        The text is empty if no path survives a beam of twice the width.
        """
        return self.recognise_features(self.frontend(samples)).text

    def recognise_features(
        self, features: Tensor, state: CmnState | None = None, details: bool = False
    ) -> Recognised:
        """Recognise an utterance.

        Args:
          features, state: see `scores`.
          details: find word times and confidences too.

        Raises:
          BundleError: the bundle has no senones, which `details` needs.
        """
        if not len(features):
            return Recognised("", () if details else None)
        scores = self.scores(features, state)
        lattice, _ = search_with_retries(scores, self.graph, self.beam.with_retries(WIDER))
        return self.best(lattice, scores, details)

    def best(self, lattice: Lattice | None, scores: Tensor, details: bool) -> Recognised:
        """Return the best path of an utterance's lattice.

        Args:
          lattice: from the search; None if no path survived.
          scores: [T, P] the scores that were searched.
          details: see `recognise_features`.
        """
        if lattice is None:
            return Recognised("", () if details else None)
        scale, weights = self.settings.search_scale, self.settings.weights
        scored = ScoredLattice(lattice, scores, scale)
        if not details:
            return Recognised(self.text(scored.best_words(weights)))
        words = self.word_aligner(scored, weights, scores, scale)
        return Recognised(" ".join(word.word for word in words), tuple(words))

    def text(self, words: list[int]) -> str:
        """Return the words with these ids, separated by spaces."""
        return " ".join(map(self._words.symbol, words))
