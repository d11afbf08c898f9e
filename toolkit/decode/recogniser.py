"""The bundle: everything that turns audio into words, in one folder."""

import json
import shutil
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

from torch import Tensor

from toolkit.decode.first_pass import DecodeConfig
from toolkit.errors import ToolkitError
from toolkit.features.frontend import Frontend, FrontendConfig
from toolkit.fsa.arcs import Fsa, load_graph
from toolkit.fsa.lattice import ScoredLattice, Weights
from toolkit.fsa.search import Beam, search_widening
from toolkit.lang.tables import SymbolTable
from toolkit.models.scorer import NeuralModel
from toolkit.stages.files import write_atomically

MODEL_FILES = ("config.json", "model.safetensors", "priors.json")


class BundleError(ToolkitError):
    """A folder that is not a complete bundle."""


def write_bundle(
    model: Path,
    normaliser: Path,
    graph: Path,
    lang: Path,
    frontend: FrontendConfig,
    config: DecodeConfig,
    tuned: Path,
    out: Path,
) -> None:
    """Copy what recognition needs into `out`, so that the folder can be moved anywhere.

    Args:
      model: the trained model's folder.
      normaliser: of the features.
      graph: the decoding graph.
      lang: the folder of the lexicon.
      frontend: the front end of the model's features.
      config: the search.
      tuned: `tuned.json` of the decode that chose scale and penalty.
      out: the bundle.
    """
    (out / "model").mkdir(parents=True, exist_ok=True)
    for name in MODEL_FILES:
        shutil.copyfile(model / name, out / "model" / name)
    shutil.copyfile(normaliser, out / "normaliser.json")
    shutil.copyfile(graph, out / "graph.safetensors")
    for name in ("words.txt", "phones.txt", "lexicon.txt"):
        shutil.copyfile(lang / name, out / name)
    settings = {
        "frontend": asdict(frontend),
        "beam": asdict(config.beam),
        "search_scale": config.acoustic_scale,
        "weights": json.loads(tuned.read_text(encoding="utf-8")),
    }
    write_atomically(out / "recogniser.json", json.dumps(settings, indent=1) + "\n")


class Recogniser:
    """Speech to words with a bundle that `write_bundle` made.

    Raises:
      BundleError: the folder is not a bundle.
    """

    def __init__(self, bundle: Path) -> None:
        try:
            settings = json.loads((bundle / "recogniser.json").read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise BundleError(
                f"{bundle} is not a bundle: it has no recogniser.json. A recipe's last stage makes"
                " one in exp/<profile>/final"
            ) from error
        self._bundle = bundle
        self.frontend_config = FrontendConfig(**settings["frontend"])
        self._beam = Beam(**settings["beam"])
        self._search_scale = settings["search_scale"]
        self._weights = Weights(**settings["weights"])
        self._frontend = Frontend(self.frontend_config)
        self._model = NeuralModel(bundle / "model", bundle / "normaliser.json")
        self._words = SymbolTable.read(bundle / "words.txt")

    @cached_property
    def _graph(self) -> Fsa:
        return load_graph(self._bundle / "graph.safetensors")

    def recognise(self, samples: Tensor) -> str:
        """The words in samples[S], mono, at the front end's sampling rate, in [-1, 1].

        A recording in which no path survives twice the beam gives the empty string.
        """
        features = self._frontend(samples)
        if not len(features):
            return ""
        scores = self._model.log_likelihoods(features) * self._search_scale
        lattice, _ = search_widening(scores, self._graph, self._beam.tries([2.0]))
        if lattice is None:
            return ""
        words = ScoredLattice(lattice, scores, self._search_scale).best_words(self._weights)
        return " ".join(map(self._words.symbol, words))
