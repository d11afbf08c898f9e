"""Writing of bundles: all that recognition needs is copied to one folder."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from toolkit.align.gmm.training import EmConfig
from toolkit.decode.bundle.settings import (
    CALIBRATION,
    FIRST_PASS,
    GMM,
    GMM_FILES,
    GRAPH,
    LANG_FILES,
    MODEL,
    MODEL_FILES,
    NEURAL_LM,
    NEURAL_LM_FILES,
    NORMALISER,
    PROJECTION,
    RESCORER,
    SENONE_FILES,
    SENONES,
    SETTINGS,
    FirstPass,
    NeuralRescoring,
    RecogniserSettings,
    Rescoring,
)
from toolkit.decode.first_pass import DecodeConfig
from toolkit.decode.rescoring.rescorer import WEIGHTS
from toolkit.engines import engines
from toolkit.features.frontend import FrontendConfig
from toolkit.fsa.lattice import Weights
from toolkit.storage.files import write_atomically


@dataclass(frozen=True)
class TunedSearch:
    """A search and the weights that were tuned for it."""

    graph: Path
    """The decoding graph."""
    config: DecodeConfig
    """The search."""
    tuned: Path
    """`tuned.json` of the decode that chose scale and penalty."""
    rescorer: Path | None = None
    """The language model of the second pass; None: there is none."""
    rescorer_tuned: Path | None = None
    """`tuned.json` of the second pass."""
    neural: "NeuralFiles | None" = None
    """The neural language model of the last pass; None: there is none."""


@dataclass(frozen=True)
class NeuralFiles:
    """A neural language model that rescores n-best lists."""

    model: Path
    """Its folder."""
    weights: Path
    """`weights.json` of `toolkit.decode.rescoring.lists.tune_lists`."""
    tuned: Path
    """`tuned.json` of the pass whose n-best lists are rescored."""
    count: int
    """Length of the lists."""


@dataclass(frozen=True)
class NetworkFiles:
    """A trained network."""

    model: Path
    """Its folder."""
    normaliser: Path
    """The normaliser of its features."""
    senones: Path
    """The folder of its senones, which give word times, silence and endpoints."""


def write_network_bundle(
    network: NetworkFiles,
    search: TunedSearch,
    lang: Path,
    frontend: FrontendConfig,
    out: Path,
    calibration: Path | None = None,
) -> None:
    """Write the bundle of a network on log-mel features, which can then be moved anywhere.

    Args:
      network: the network.
      search: graph and weights.
      lang: the folder of the lexicon.
      frontend: the front end of the network's features.
      out: the bundle to write.
      calibration: `calibration.json` of the confidences; None leaves the lattice posteriors as
        they are.
    """
    _write_network(network, out)
    _write(RecogniserSettings(frontend, **_searching(search, out)), lang, out, calibration)


def write_speaker_bundle(
    gmm: Path,
    search: TunedSearch,
    lang: Path,
    frontend: FrontendConfig,
    out: Path,
    network: NetworkFiles | None = None,
    first_pass: tuple[Path, TunedSearch, Path, EmConfig] | None = None,
    calibration: Path | None = None,
) -> None:
    """Write the bundle of a GMM system, or of a network on the features of one.

    Args:
      gmm: the folder of the GMM system.
      search: graph and weights of the last pass.
      lang: the folder of the lexicon.
      frontend: the front end of the cepstra.
      out: the bundle to write.
      network: the network on the system's features; None: the GMMs recognise.
      first_pass: for a system trained with fMLLR the speaker-independent system, its search, the
        graph of `gmm`, on whose lattices the transforms are refined, and the settings of the
        alignments from which they are first estimated.
      calibration: see `write_network_bundle`.
    """
    _copy_all(GMM_FILES, gmm, out / GMM, optional=(PROJECTION,))
    if network is not None:
        _write_network(network, out)
    first = None
    if first_pass is not None:
        system, its_search, adapted_graph, adaptation = first_pass
        _copy_all(GMM_FILES, system, out / FIRST_PASS / GMM, optional=(PROJECTION,))
        _copy(its_search.graph, out / FIRST_PASS / GRAPH)
        if network is not None:
            _copy(adapted_graph, out / GMM / GRAPH)
        config, weights = its_search.config, Weights.load(its_search.tuned)
        scale = config.acoustic_scale
        first = FirstPass(config.beam, config.retries, weights, scale, adaptation)
    settings = RecogniserSettings(
        frontend, **_searching(search, out), by_speaker=True, first_pass=first
    )
    _write(settings, lang, out, calibration)


def _write_network(network: NetworkFiles, out: Path) -> None:
    _copy_all(MODEL_FILES, network.model, out / MODEL)
    _copy(network.normaliser, out / NORMALISER)
    _copy_all(SENONE_FILES, network.senones, out / SENONES)


def _searching(search: TunedSearch, out: Path) -> dict:
    """Copy graph and language models; return the fields of the settings."""
    _copy(search.graph, out / GRAPH)
    weights, rescoring = Weights.load(search.tuned), None
    if search.rescorer is not None and search.rescorer_tuned is not None:
        _copy(search.rescorer, out / RESCORER)
        rescoring = Rescoring(Weights.load(search.rescorer_tuned), search.config.rescoring)
    neural = search.neural
    if neural is not None:
        _copy_all(NEURAL_LM_FILES, neural.model, out / NEURAL_LM)
        _copy(neural.weights, out / NEURAL_LM / WEIGHTS)
        neural = NeuralRescoring(neural.count, Weights.load(neural.tuned).word_penalty)
    return {
        "beam": search.config.beam,
        "search_scale": weights.acoustic_scale,
        "weights": weights,
        "made_with": engines(),
        "retries": search.config.retries,
        "rescoring": rescoring,
        "neural": neural,
    }


def _write(settings: RecogniserSettings, lang: Path, out: Path, calibration: Path | None) -> None:
    _copy_all(LANG_FILES, lang, out)
    if calibration is not None:
        _copy(calibration, out / CALIBRATION)
    write_atomically(out / SETTINGS, json.dumps(asdict(settings), indent=1) + "\n")


def _copy_all(names: Sequence[str], source: Path, out: Path, optional: Sequence[str] = ()) -> None:
    for name in names:
        _copy(source / name, out / name)
    for name in optional:
        if (source / name).exists():
            _copy(source / name, out / name)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
