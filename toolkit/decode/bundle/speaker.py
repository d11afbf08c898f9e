"""Recognition by speaker: GMMs, adapted to the speaker or not, and networks on their features."""

import tempfile
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

from lhotse import MonoCut, Recording
from torch import Tensor

from toolkit.align.gmm.adaptation import adapt_speakers
from toolkit.align.gmm.features import write_gmm_features
from toolkit.align.gmm.lattice_adaptation import LatticeSearch, refine_on_lattices
from toolkit.align.gmm.system import GmmSystem
from toolkit.align.scorer import GmmScorer
from toolkit.corpus.manifest import make_cut
from toolkit.decode.bundle.search import BundleSearch
from toolkit.decode.bundle.settings import (
    CALIBRATION,
    FIRST_PASS,
    GMM,
    GRAPH,
    MODEL,
    NORMALISER,
    SENONES,
    SETTINGS,
    BundleError,
    read_settings,
)
from toolkit.decode.bundle.sizes import MISMATCH, check_frontend, check_senones
from toolkit.decode.silence import SilenceGate, silence_pdfs
from toolkit.decode.transcript import Recognised
from toolkit.decode.word_times import WordAligner
from toolkit.features.frontend import Frontend
from toolkit.features.gmm_features import load_transforms
from toolkit.features.low_frame_rate import LOW_RATE_FACTOR
from toolkit.features.shards import SHARDS, write_manifest, write_shard
from toolkit.features.silence import counted_frames
from toolkit.features.store import FeatureStore
from toolkit.fsa.fst import Fst
from toolkit.fsa.lattice import ScoredLattice
from toolkit.fsa.search import search_with_retries
from toolkit.hmm.fmllr import MIN_FRAMES
from toolkit.hmm.senones import Senones
from toolkit.models.scorer import NeuralModel, NeuralScorer
from toolkit.processes.bars import hide_progress_bars

SPEAKER = "speaker"
CEPSTRA = "cepstra"
FEATURES = "features"


class SpeakerRecogniser:
    """Recognises all utterances of a speaker with a bundle from `write_speaker_bundle`.

    They go through the functions that decode the splits of a recipe, in a temporary folder: mean
    normalisation over all utterances, and where the system is adapted a first pass, from whose
    words the speaker's fMLLR transform is estimated (C4), to be refined on an adapted pass.

    Args:
      bundle: the folder of the system.
      device: where the network computes, if the system has one.
      fast: leave out rescoring.

    Raises:
      BundleError: the folder is not such a bundle, or its files come from different ones.
    """

    def __init__(self, bundle: Path, device: str = "cpu", fast: bool = False) -> None:
        self._bundle = Path(bundle)
        self._settings = read_settings(self._bundle)
        if not self._settings.by_speaker:
            raise BundleError(f"{bundle} recognises by utterance, not by speaker")
        self.frontend_config = self._settings.frontend
        self.frontend = Frontend(self.frontend_config)
        self._gmm = self._load_gmm(self._bundle / GMM)
        self._first_gmm = (
            self._load_gmm(self._bundle / FIRST_PASS / GMM) if self._settings.first_pass else None
        )
        self._network = self._load_network(device) if (self._bundle / MODEL).is_dir() else None
        self._num_pdfs = len(self._network.log_priors) if self._network else self._gmm.gmm.num_pdfs
        self.search = BundleSearch(self._bundle, self._settings, fast, self._num_pdfs)
        """The search of its last pass."""

    def _load_gmm(self, folder: Path) -> GmmSystem:
        """Read a system, over no cepstra yet."""
        system = GmmSystem.load(folder, self._bundle)
        check_frontend(self._bundle / SETTINGS, self.frontend_config, system.cepstra, folder)
        return system

    def _load_network(self, device: str) -> NeuralModel:
        """Read the network on the system's features."""
        network = NeuralModel(self._bundle / MODEL, self._bundle / NORMALISER, device)
        inputs, dimension = len(network.normaliser.prior_mean), self._gmm.gmm.means.shape[1]
        if inputs != dimension:
            raise BundleError(
                f"{self._bundle / NORMALISER} is for {inputs} features, {self._bundle / GMM} has"
                f" {dimension}: {MISMATCH}"
            )
        return network

    @cached_property
    def word_aligner(self) -> WordAligner:
        """Finds word times and confidences."""
        calibration = self._bundle / CALIBRATION
        scorer = NeuralScorer if self._network else GmmScorer
        return WordAligner(
            self._bundle,
            self._senones,
            calibration if calibration.exists() else None,
            scorer.frame_shift,
            self.search.beams[0].search,
        )

    @cached_property
    def _senones(self) -> Senones:
        """Those of the last pass."""
        folder = self._bundle / (SENONES if self._network else GMM)
        senones = Senones.load(folder)
        check_senones(folder, senones, self._num_pdfs)
        return senones

    @cached_property
    def _first_graph(self) -> Fst:
        path = self._bundle / FIRST_PASS / GRAPH
        return self.search.load_graph(path, self._first_gmm.gmm.num_pdfs)

    def recognise(self, utterances: Sequence[Tensor], details: bool = False) -> list[Recognised]:
        """Recognise the utterances of one speaker.

        Args:
          utterances: for each its cepstra [T, F], in order of time, not normalised.
          details: find word times and confidences too.

        Returns:
          The result of each utterance.
        """
        found = [Recognised("", () if details else None)] * len(utterances)
        aligner = self.word_aligner if details else None
        for number, scores in self.scores(utterances):
            found[number] = self.search.best(self.search.lattice(scores), scores, aligner)
        return found

    def scores(self, utterances: Sequence[Tensor]) -> Iterator[tuple[int, Tensor]]:
        """Score the utterances of one speaker with the system adapted to it.

        Args:
          utterances: see `recognise`.

        Yields:
          The position of each utterance that is more than digital silence, and its scores [T, P]:
          log-likelihoods times the acoustic scale of the search.
        """
        kind = self.frontend_config.kind
        sounding = {
            f"{i:06d}": x for i, x in enumerate(utterances) if counted_frames(x, kind).any()
        }
        if not sounding:
            return
        config, shift = self.frontend_config, self.frontend_config.frame_shift_ms / 1000
        with tempfile.TemporaryDirectory() as name:
            work = Path(name)
            stored = [(_cut(name, len(x) * shift), SPEAKER, x) for name, x in sounding.items()]
            written, frames = write_shard(work / CEPSTRA / SHARDS, 0, stored, config)
            write_manifest(work / CEPSTRA, config, [{"utterances": written, "frames": frames}])
            system = self._gmm.on(work / CEPSTRA)
            # Of fewer frames every estimate is the identity, whatever the first pass recognises.
            if sum(map(len, utterances)) >= MIN_FRAMES:
                with hide_progress_bars():
                    system = self._adapted(system, work)
            scored = self._network_scores(system, work) if self._network else _gmm_scores(system)
            factor = LOW_RATE_FACTOR if self._network else 1
            for name, scores in scored:
                gated = _gated(sounding[name], scores, kind, self._senones, factor)
                yield int(name), gated * self.search.scale

    def _adapted(self, system: GmmSystem, work: Path) -> GmmSystem:
        """Estimate the speaker's transform from the words of a first pass."""
        first = self._settings.first_pass
        if first is None:
            return system
        independent = self._first_gmm.on(work / CEPSTRA)
        scale = first.weights.acoustic_scale
        beams = first.beam.with_retries(first.retries)
        hypotheses = {}
        kind, senones = self.frontend_config.kind, independent.senones
        for name, scores in _gmm_scores(independent):
            cepstra = independent.features.store.load(name)
            scores = _gated(cepstra, scores, kind, senones) * scale
            lattice, _ = search_with_retries(scores, self._first_graph, beams)
            best = lattice and ScoredLattice.of(lattice, scores, scale).best_words(first.weights)
            hypotheses[name] = self.search.text(best or []).split()
        out = work / "fmllr" / "transforms.safetensors"
        adapt_speakers(system, independent, hypotheses, self._bundle, first.adaptation, out, jobs=1)
        graph = self._bundle / GMM / GRAPH if self._network else self._bundle / GRAPH
        search = LatticeSearch(graph, first.lattice_scale, beams)
        refine_on_lattices(system.adapted(load_transforms(out)), search, out, jobs=1)
        return system.adapted(load_transforms(out))

    def _network_scores(self, system: GmmSystem, work: Path) -> Iterator[tuple[str, Tensor]]:
        """The network's scores of each utterance."""
        write_gmm_features(system, work / FEATURES)
        store = FeatureStore(work / FEATURES)
        for name in store.ids:
            yield name, self._network.log_likelihoods(store.load(name), store.state(name))


def _gated(cepstra: Tensor, scores: Tensor, kind: str, senones: Senones, factor: int = 1) -> Tensor:
    """Return the scores [T', P] of an utterance, without words in digital silence."""
    gate = SilenceGate(kind, silence_pdfs(senones), factor, factor // 2)
    gate.push(cepstra)
    return gate(scores)


def _gmm_scores(system: GmmSystem) -> Iterator[tuple[str, Tensor]]:
    """A GMM system's scores of each utterance."""
    for name in system.features.store.ids:
        yield name, system.gmm.log_likelihoods(system.features.load(name))


def _cut(name: str, seconds: float) -> MonoCut:
    return make_cut(name, Recording(name, [], 16000, round(16000 * seconds), seconds), "", SPEAKER)
