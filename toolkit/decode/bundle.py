"""Bundles: folders with all files that recognition needs, and the choice among a run's systems."""

import json
import shutil
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from toolkit.align.config import EmConfig
from toolkit.config.fields import (
    Finite,
    FinitePositive,
    ListLength,
    Settings,
    from_plain,
    read_plain,
)
from toolkit.config.settings import to_plain
from toolkit.decode.config import DecodeConfig, WordsConfig
from toolkit.decode.rescore import WEIGHTS
from toolkit.engines import engines
from toolkit.errors import ToolkitError
from toolkit.features.config import FrontendConfig
from toolkit.fsa.config import Beam, RescoreLimits
from toolkit.fsa.fst import Fst
from toolkit.fsa.lattice import Weights
from toolkit.hmm.senones import Senones
from toolkit.lang.arpa import read_arpa, write_binary
from toolkit.lang.tables import END, START, UNKNOWN, SymbolTable
from toolkit.lang.units import Units
from toolkit.storage.files import write_atomically
from toolkit.storage.paths import path_below
from toolkit.storage.reading import read_json, reading

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
    """Raised when a folder is not a complete bundle."""


@dataclass(frozen=True)
class Rescoring:
    """Settings of the second pass, which rescores lattices with a larger language model."""

    weights: Weights
    """Acoustic scale and word penalty that rank the paths; the search uses the same scale."""
    limits: RescoreLimits
    """Pruning."""


@dataclass(frozen=True)
class NeuralRescoring(Settings):
    """Settings of the last pass, which rescores n-best lists with a neural language model."""

    count: ListLength
    """Length of the lists."""
    word_penalty: Finite
    """Word penalty for choosing the hypotheses; the search uses the acoustic scale of `weights`."""


@dataclass(frozen=True)
class FirstPass(Settings):
    """Settings of the speaker-independent search; its words give the first transform."""

    beam: Beam
    """Pruning of the search."""
    retries: tuple[float, ...]
    """See `RecogniserSettings.retries`."""
    weights: Weights
    """Acoustic scale and word penalty of the search."""
    lattice_scale: FinitePositive
    """Acoustic scale of the adapted pass, whose lattices refine the transform."""
    adaptation: EmConfig
    """Settings of the alignments that give the first transform."""


@dataclass(frozen=True)
class RecogniserSettings(Settings):
    """The fields of a bundle's `recogniser.json`."""

    frontend: FrontendConfig
    """The front end of the model's features."""
    beam: Beam
    """Pruning of the search."""
    search_scale: FinitePositive
    """Factor on acoustic log-likelihoods during the search, if nothing is rescored."""
    weights: Weights
    """Acoustic scale and word penalty of the best path, tuned on development data."""
    made_with: dict[str, str] = field(default_factory=dict)
    """Engines of the process that wrote the bundle (`toolkit.engines`); all engines can use it."""
    retries: tuple[float, ...] = (2.0,)
    """Factors by which the beam is widened when no path survives."""
    rescoring: Rescoring | None = None
    """The second pass; None if there is none."""
    neural: NeuralRescoring | None = None
    """The pass with a neural language model; None if there is none."""
    by_speaker: bool = False
    """Whether the features are those of a GMM system, normalised by a mean over all of a speaker's
    recordings. Otherwise they are the front end's, normalised by a running mean."""
    first_pass: FirstPass | None = None
    """Settings of the speaker adaptation, only if `by_speaker`; None: no adaptation."""


def read_settings(folder: Path) -> RecogniserSettings:
    """Read the settings of a system's bundle.

    Raises:
      BundleError: the folder is not a bundle.
    """
    if not (folder / SETTINGS).is_file():
        raise BundleError(
            f"{folder} is not a bundle: it has no {SETTINGS}. A recipe's last stage writes"
            " a bundle to exp/<profile>/final"
        )
    return read_plain(folder / SETTINGS, RecogniserSettings, BundleError, ADVICE)


CTC_SETTINGS = "ctc.json"
UNITS = "units"
WORDS = "words.txt"
LM = "lm.safetensors"
CTC_MODEL_FILES = ("config.json", "model.safetensors")


@dataclass(frozen=True)
class CtcSettings:
    """The fields of a CTC bundle's `ctc.json`."""

    frontend: FrontendConfig
    """The front end of the network's features."""
    search: WordsConfig
    """The dictionary search: weights, width and margin, tuned on development data."""
    rescored: bool = False
    """Whether the neural model in `neural_lm/` chooses from the search's n-best list."""
    fast: WordsConfig | None = None
    """The search for `--fast`, tuned without rescoring; None: the same as `search`."""
    made_with: dict[str, str] = field(default_factory=dict)
    """Engines of the process that wrote the bundle (`toolkit.engines`)."""


def is_ctc(folder: Path) -> bool:
    """Whether a folder is the bundle of a CTC network."""
    return (folder / CTC_SETTINGS).is_file()


def read_ctc_settings(folder: Path) -> CtcSettings:
    """Read the settings of a CTC network's bundle.

    Raises:
      BundleError: the folder is not such a bundle.
    """
    if not is_ctc(folder):
        raise BundleError(f"{folder} is not the bundle of a CTC network: it has no {CTC_SETTINGS}")
    return read_plain(folder / CTC_SETTINGS, CtcSettings, BundleError, ADVICE)


# If sizes disagree, compiled searches read out of bounds; files from another bundle give wrong
# words without an error. So the checks below compare the files of a bundle.
MISMATCH = "they come from different bundles; restore the bundle or write it again"


def check_graph(path: Path, graph: Fst, num_pdfs: int, words: SymbolTable) -> None:
    """Check that a graph's inputs are the acoustic model's pdfs and its outputs are in `words.txt`.

    Args:
      path: the graph's file.
      graph: the graph in that file.
      num_pdfs: the acoustic model's number of pdfs.
      words: the bundle's words.

    Raises:
      BundleError: the graph has a pdf that the model lacks, or a word that `words` lacks.
    """
    if graph.top_label > num_pdfs:
        raise BundleError(
            f"{path} has {graph.top_label} pdfs, but the acoustic model has {num_pdfs}: {MISMATCH}"
        )
    if not np.isin(graph.words, [words[word] for word in words]).all():
        raise BundleError(f"{path} has words that words.txt does not list: {MISMATCH}")


def check_frontend(settings: Path, frontend: FrontendConfig, inputs: float, model: Path) -> None:
    """Check that the front end's dimension is the model's input dimension.

    Args:
      settings: the file of the bundle's settings.
      frontend: the front end in that file.
      inputs: number of values per frame that the model takes.
      model: the model's file or folder.

    Raises:
      BundleError: the two dimensions differ.
    """
    if frontend.dimension != inputs:
        raise BundleError(
            f"{settings}: the front end has {frontend.dimension} values per frame, but {model} "
            f"expects {inputs:g}: {MISMATCH}"
        )


def check_senones(folder: Path, senones: Senones, num_pdfs: int) -> None:
    """Check that the senones belong to the acoustic model.

    Args:
      folder: the senones' folder.
      senones: the senones in that folder.
      num_pdfs: the acoustic model's number of pdfs.

    Raises:
      BundleError: the numbers of pdfs differ.
    """
    if senones.num_pdfs != num_pdfs:
        raise BundleError(
            f"{folder / 'tree.json'} has {senones.num_pdfs} pdfs, but the acoustic model has "
            f"{num_pdfs}: {MISMATCH}"
        )


def check_language_model(path: Path, modelled: Iterable[str], words: Collection[str]) -> None:
    """Check that a language model and the recogniser have at least one word in common.

    Args:
      path: the model's file or folder.
      modelled: the language model's words.
      words: the recogniser's words.

    Raises:
      BundleError: they have no word in common.
    """
    special = {START, END, UNKNOWN}
    if not any(word in words for word in modelled if word not in special):
        raise BundleError(f"{path} has none of the words of words.txt: {MISMATCH}")


CARD = "card.json"
SYNTHETIC = "synthetic"
"""Name of the corpus reader for synthetic speech."""


@dataclass(frozen=True)
class Card:
    """The description of a bundle, printed when recognition or alignment starts."""

    system: str
    """Name of the system, such as chain."""
    model: str
    """Kind of the acoustic model and its features."""
    words: int
    """Words in the vocabulary."""
    hours: float
    """Hours of training speech, without augmented copies."""
    speakers: int
    """Speakers of the training speech."""
    corpus: str
    """The recipe's `corpus.name`; "synthetic" if the speakers are voices of a synthesiser."""
    lm: str = ""
    """The language model of the last pass; empty for an aligner, which has none."""
    wer: dict[str, float] = field(default_factory=dict)
    """WER in percent by split; each utterance is recognised with its speaker's other utterances."""
    wer_unknown_speaker: dict[str, float] = field(default_factory=dict)
    """WER in percent by split; every utterance is recognised alone."""
    tuned_on: tuple[str, ...] = ()
    """Names of the splits on which weights were tuned and the system was chosen."""

    def __str__(self) -> str:
        lm = f" with {self.lm}" if self.lm else ""
        parts = [
            f"{self.system}: {self.model}{lm}",
            f"{self.words:,} words",
            f"trained on {self._speech()}",
        ]
        if self.wer:
            parts.append(self._error_rates())
        return printable("; ".join(parts))

    def _speech(self) -> str:
        """Return the line about the training speech."""
        hours = f"{self.hours:.2g}" if self.hours < 10 else f"{self.hours:,.0f}"
        if self.corpus == SYNTHETIC:
            return f"{hours} h of synthetic speech ({self.speakers} voices)"
        return f"{hours} h of speech (corpus {self.corpus}, {self.speakers} speakers)"

    def _error_rates(self) -> str:
        """Return the error rates on the test splits or, if there are none, the tuning splits."""
        test = [split for split in self.wer if split not in self.tuned_on]
        kind = "test set" if test else "development set"
        rates = []
        for split in test or self.wer:
            rate, meaning = f"{self.wer[split]:.2f} %", "speaker known"
            if split in self.wer_unknown_speaker:
                rate += f" / {self.wer_unknown_speaker[split]:.2f} %"
                meaning += " / unknown"
            name = "" if split in ("test", "dev") else f" {split}"
            rates.append(f"{rate} ({meaning}) on its own {kind}{name}")
        return f"WER {', '.join(rates)}"


def printable(text: str) -> str:
    """Replace unprintable characters in a text from an untrusted bundle by `?`."""
    return "".join(c if c.isprintable() else "?" for c in text)


def write_card(bundle: Path, card: Card) -> None:
    """Write the card into a bundle's folder."""
    write_atomically(bundle / CARD, json.dumps(asdict(card), indent=1) + "\n")


def read_card(bundle: Path) -> Card | None:
    """Read the card of a bundle; return None if the bundle has none.

    Raises:
      BundleError: the card cannot be read.
    """
    if not (bundle / CARD).exists():
        return None
    return read_plain(bundle / CARD, Card, BundleError, ADVICE)


@dataclass(frozen=True)
class TunedSearch:
    """A search and the files with its tuned weights."""

    graph: Path
    """The decoding graph."""
    config: DecodeConfig
    """The search."""
    tuned: Path
    """`tuned.json` of the decoding pass, with the tuned scale and penalty."""
    rescorer: Path | None = None
    """The language model of the second pass; None if there is none."""
    rescorer_tuned: Path | None = None
    """`tuned.json` of the second pass."""
    neural: "NeuralFiles | None" = None
    """The neural language model of the last pass; None if there is none."""


@dataclass(frozen=True)
class NeuralFiles:
    """Files of a neural language model that rescores n-best lists."""

    model: Path
    """The model's folder."""
    weights: Path
    """`weights.json` of `toolkit.decode.rescore.rescore_lists`."""
    tuned: Path
    """`tuned.json` of the pass whose n-best lists are rescored."""
    count: int
    """Length of the lists."""


@dataclass(frozen=True)
class NetworkFiles:
    """Files of a trained network."""

    model: Path
    """The network's folder."""
    normaliser: Path
    """The file of the features' normaliser."""
    senones: Path
    """The folder of the network's senones, which give word times, silence and endpoints."""


def write_network_bundle(
    network: NetworkFiles,
    search: TunedSearch,
    lang: Path,
    frontend: FrontendConfig,
    out: Path,
    calibration: Path | None = None,
) -> None:
    """Write the bundle of a network on log-mel features; the bundle can be moved anywhere.

    Args:
      network: files of the network.
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
    """Write the bundle of a GMM system, or of a network on GMM features.

    Args:
      gmm: the folder of the GMM system.
      search: graph and weights of the last pass.
      lang: the folder of the lexicon.
      frontend: the front end of the cepstra.
      out: the bundle to write.
      network: the network on the system's features; None: the GMMs recognise.
      first_pass: only for a system trained with fMLLR: the folder of the speaker-independent
        system; the search with that system; the graph with which `gmm` makes the lattices that
        refine the transforms; the settings of the alignments that give the first transforms.
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
    """Copy a network, its normaliser and its senones into a bundle."""
    _copy_all(MODEL_FILES, network.model, out / MODEL)
    _copy(network.normaliser, out / NORMALISER)
    _copy_all(SENONE_FILES, network.senones, out / SENONES)


def _searching(search: TunedSearch, out: Path) -> dict:
    """Copy graph and language models into a bundle; return the settings of the search."""
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
    """Write the settings, and copy the lexicon and the calibration into a bundle."""
    _copy_all(LANG_FILES, lang, out)
    if calibration is not None:
        _copy(calibration, out / CALIBRATION)
    write_atomically(out / SETTINGS, json.dumps(asdict(settings), indent=1) + "\n")


def _copy_all(names: Sequence[str], source: Path, out: Path, optional: Sequence[str] = ()) -> None:
    """Copy several files into a bundle; `optional` ones may be missing."""
    for name in names:
        _copy(source / name, out / name)
    for name in optional:
        if (source / name).exists():
            _copy(source / name, out / name)


def _copy(source: Path, target: Path) -> None:
    """Copy one file, and make the folder that it goes to."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


@dataclass(frozen=True)
class CtcFiles:
    """Files of a trained CTC network and of its search."""

    model: Path
    """The network's folder."""
    normaliser: Path
    """The file of the features' normaliser."""
    units: Units
    """The network's output units."""
    words: Sequence[str]
    """The dictionary."""
    arpa: Path
    """The language model; copied if the search uses it."""
    neural: tuple[Path, Path] | None = None
    """The folder of a neural language model that chooses from the search's n-best list, and the
    `weights.json` for this choice; None: the search's best text is taken."""


def write_ctc_bundle(
    files: CtcFiles,
    search: WordsConfig,
    frontend: FrontendConfig,
    out: Path,
    fast: WordsConfig | None = None,
) -> None:
    """Write the bundle of a CTC network; the bundle can be moved anywhere.

    Args:
      files: the network, units, dictionary and language model.
      search: the tuned search.
      frontend: the front end of the network's features.
      out: the bundle to write.
      fast: the search for `--fast`, tuned without rescoring; None: the same as `search`.
    """
    (out / MODEL).mkdir(parents=True, exist_ok=True)
    for name in CTC_MODEL_FILES:
        shutil.copyfile(files.model / name, out / MODEL / name)
    shutil.copyfile(files.normaliser, out / NORMALISER)
    files.units.save(out / UNITS)
    write_atomically(out / WORDS, "".join(f"{word}\n" for word in files.words))
    if search.mode != "words":
        write_binary(read_arpa(files.arpa), out / LM)
    if files.neural is not None:
        model, weights = files.neural
        (out / NEURAL_LM).mkdir(exist_ok=True)
        for name in NEURAL_LM_FILES:
            shutil.copyfile(model / name, out / NEURAL_LM / name)
        shutil.copyfile(weights, out / NEURAL_LM / WEIGHTS)
    settings = CtcSettings(frontend, search, files.neural is not None, fast, engines())
    write_atomically(out / CTC_SETTINGS, json.dumps(to_plain(settings), indent=1) + "\n")


SYSTEMS = "systems.json"
Role = Literal["speaker_known", "speaker_unknown", "stream"]
"""What a system is best for: recordings with named speakers, other recordings, or streams."""


@dataclass(frozen=True)
class BundledSystem:
    """A system with a bundle in the folder, and its error rate when the bundle was written."""

    name: str
    """Name of the system and of its folder."""
    lm: str
    """Name of the last pass's language model."""
    streams: bool
    """Whether the system can recognise a stream."""
    wer: dict[str, float]
    """WER in percent by split, with speakers known."""
    roles: tuple[Role, ...]
    """What the system is best for."""


def write_systems(folder: Path, systems: Sequence[BundledSystem]) -> None:
    """Write `systems.json`: the systems with bundles in the folder, best first."""
    rows = [asdict(system) for system in systems]
    write_atomically(folder / SYSTEMS, json.dumps(rows, indent=1) + "\n")


def read_systems(folder: Path) -> list[BundledSystem]:
    """Read the systems that `write_systems` wrote.

    Raises:
      BundleError: `systems.json` cannot be read.
    """
    path = folder / SYSTEMS
    with reading(path, BundleError, ADVICE):
        systems = [from_plain(BundledSystem, row) for row in read_json(path, [{}])]
        if not systems:
            raise ValueError("no systems")
        return systems


class Bundle:
    """The bundles of a run's systems (the run's folder `final`), or the bundle of one system.

    Args:
      folder: the folder with the bundles, or the bundle.

    Raises:
      BundleError: the folder's `systems.json` cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._systems = read_systems(folder) if (folder / SYSTEMS).exists() else None

    def choose(self, role: Role = "speaker_unknown", name: str | None = None) -> Path:
        """Return the bundle folder of the system to use.

        Args:
          role: what is to be recognised; a system chosen by name must support it.
          name: the system's name; None: the best system for `role`.

        Raises:
          BundleError: there is no such system.
          UnsafePathError: the system's name leads out of the folder.
        """
        if self._systems is None:
            if name is not None and ((self._folder / SETTINGS).exists() or is_ctc(self._folder)):
                raise BundleError(f"{self._folder} contains only one system: leave out --system")
            return self._folder
        names = [system.name for system in self._systems]
        if name is not None and name not in names:
            raise BundleError(f"{self._folder} has no system {name!r}, only {', '.join(names)}")
        able = [
            system
            for system in self._systems
            if name in (None, system.name) and (system.streams or role != "stream")
        ]
        if not able:
            raise BundleError(
                "streaming needs a unidirectional LSTM or a TDNN-F on log-mel features, but "
                f"{self._folder} has neither (systems: {name or ', '.join(names)}): transcribe "
                "without --stream"
            )
        best = next((system for system in able if role in system.roles), able[0])
        return path_below(self._folder, best.name)

    def network(self) -> Path:
        """Return the bundle folder of the network that `toolkit export` exports.

        Among several systems, a CTC network is chosen, or else the best that can recognise streams.

        Raises:
          BundleError: there is no such system.
        """
        ctc = next(filter(is_ctc, self._folders()), None)
        return ctc or self.choose("stream")

    def ctc_network(self) -> Path | None:
        """Return the bundle folder of a CTC network, in this folder or in its `final`.

        Returns None if neither contains a CTC network.
        """
        for folder in (self._folder, self._folder / "final"):
            network = next(filter(is_ctc, [folder, *Bundle(folder)._folders()]), None)
            if network is not None:
                return network
        return None

    def _folders(self) -> list[Path]:
        """Return the systems' folders, best first; empty if this folder is one system's bundle."""
        return [path_below(self._folder, system.name) for system in self._systems or ()]


def adapts_to_speakers(bundle: Path) -> bool:
    """Whether a system's features depend on all recordings of a speaker.

    Raises:
      BundleError: its settings cannot be read.
    """
    return (bundle / SETTINGS).exists() and read_settings(bundle).by_speaker
