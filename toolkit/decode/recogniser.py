"""Recognisers of bundles: networks by utterance, GMMs and networks on their features by speaker."""

import tempfile
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from itertools import compress
from pathlib import Path

from lhotse import MonoCut, Recording
from torch import Tensor

from toolkit.align.adapt import LatticeSearch, adapt_speakers, refine_on_lattices
from toolkit.align.scorer import GmmScorer
from toolkit.corpus.manifest import make_cut
from toolkit.decode.bundle import (
    CALIBRATION,
    FIRST_PASS,
    GMM,
    GRAPH,
    MISMATCH,
    MODEL,
    NEURAL_LM,
    NORMALISER,
    RESCORER,
    SENONES,
    SETTINGS,
    BundleError,
    RecogniserSettings,
    check_frontend,
    check_graph,
    check_language_model,
    check_senones,
    is_ctc,
    read_settings,
)
from toolkit.decode.ctc.recogniser import CtcRecogniser
from toolkit.decode.decoded import Recognised
from toolkit.decode.rescore import WEIGHTS, NbestList, Rescorer, RescoringWeights
from toolkit.decode.words import SilenceGate, SilencePosteriors, WordAligner, silence_pdfs
from toolkit.features.frontend import Frontend
from toolkit.features.gmm_features import load_transforms
from toolkit.features.low_frame_rate import LOW_RATE_FACTOR
from toolkit.features.shards import SHARDS, CmnState, FeatureStore, write_manifest, write_shard
from toolkit.features.silence import counted_frames
from toolkit.fsa.config import Beam
from toolkit.fsa.fst import Fst, Lattice, load_fst
from toolkit.fsa.lattice import ScoredLattice, Weights
from toolkit.fsa.nbest import n_best
from toolkit.fsa.rescore import Grammar, rescore_lattice
from toolkit.fsa.search import search_with_retries
from toolkit.hmm.gmm_system import GmmSystem, write_gmm_features
from toolkit.hmm.senones import Senones
from toolkit.hmm.transforms import MIN_FRAMES
from toolkit.lang.arpa import read_binary
from toolkit.lang.tables import SymbolTable
from toolkit.models.scorer import NeuralModel, NeuralScorer
from toolkit.processes.bars import hide_progress_bars
from toolkit.processes.workers import map_in_processes


class BundleSearch:
    """Searches for the words of an utterance.

    Args:
      folder: the bundle of one system.
      settings: its settings.
      fast: leave out the passes that rescore.
      num_pdfs: P of the acoustic model.
    """

    def __init__(
        self, folder: Path, settings: RecogniserSettings, fast: bool, num_pdfs: int
    ) -> None:
        self._folder, self._settings, self._num_pdfs = folder, settings, num_pdfs
        self._rescoring = None if fast else settings.rescoring
        self._neural = None if fast else settings.neural
        self._words = SymbolTable.read(folder / "words.txt")
        self.beams: list[Beam] = settings.beam.with_retries(settings.retries)
        """The beams to try, in order."""
        self.weights: Weights = settings.weights
        """Acoustic scale and word penalty of the best path."""
        self.scale: float = settings.search_scale
        """Factor on the acoustic log-likelihoods that are searched."""
        if self._rescoring is not None:
            self.weights = self._rescoring.weights
            self.scale = self.weights.acoustic_scale
        if self._neural is not None:
            self.scale = RescoringWeights.load(folder / NEURAL_LM / WEIGHTS).acoustic_scale
            self.weights = Weights(self.scale, self._neural.word_penalty)

    @cached_property
    def graph(self) -> Fst:
        """The decoding graph, loaded on first use.

        Raises:
          BundleError: it is not that of the acoustic model and the words.
          GraphError: it cannot be read.
        """
        return self.load_graph(self._folder / GRAPH)

    def load_graph(self, path: Path, num_pdfs: int | None = None) -> Fst:
        """Read a graph that writes the bundle's words.

        Args:
          path: its file.
          num_pdfs: of the acoustic model that it is for; None: of the last pass.

        Raises:
          BundleError: it is not that of the acoustic model and the words.
          GraphError: it cannot be read.
        """
        graph = load_fst(path)
        check_graph(path, graph, num_pdfs or self._num_pdfs, self._words)
        return graph

    @cached_property
    def _grammar(self) -> Grammar:
        model = read_binary(self._folder / RESCORER)
        check_language_model(self._folder / RESCORER, model.vocabulary, self._words)
        return Grammar(model, self._words)

    @cached_property
    def _neural_rescorer(self) -> Rescorer:
        rescorer = Rescorer.load(self._folder / NEURAL_LM)
        shortlist = rescorer.lm.shortlist
        modelled = (*shortlist.words, *shortlist.shares)
        check_language_model(self._folder / NEURAL_LM, modelled, self._words)
        return rescorer

    def load(self) -> None:
        """Load what is loaded on first use."""
        self.graph  # noqa: B018
        if self._rescoring is not None:
            self._grammar  # noqa: B018
        if self._neural is not None:
            self._neural_rescorer  # noqa: B018

    def lattice(self, scores: Tensor) -> Lattice | None:
        """Search scores [T, P], which are scaled; None if no path survives the widest beam."""
        return search_with_retries(scores, self.graph, self.beams)[0]

    def best(
        self, lattice: Lattice | None, scores: Tensor, aligner: WordAligner | None = None
    ) -> Recognised:
        """Return the best words of an utterance's lattice, after the passes that rescore.

        Args:
          lattice: from the search; None if no path survived.
          scores: [T, P] the scores that were searched.
          aligner: finds word times and confidences; None: they are not wanted.
        """
        if lattice is None:
            return Recognised("", None if aligner is None else ())
        if self._rescoring is not None:
            lattice = rescore_lattice(lattice, self._grammar, self._rescoring.limits).lattice
        scored = ScoredLattice.of(lattice, scores, self.scale)
        if self._neural is not None:
            return self._chosen(scored, self._neural.count, scores, aligner)
        if aligner is None:
            return Recognised(self.text(scored.best_words(self.weights)))
        words = aligner(scored, self.weights, scores, self.scale)
        return Recognised(" ".join(word.token for word in words), tuple(words))

    def _chosen(
        self, lattice: ScoredLattice, count: int, scores: Tensor, aligner: WordAligner | None
    ) -> Recognised:
        """Choose from the n-best list with the neural language model."""
        hypotheses = n_best(lattice, self.weights, count)
        candidates = NbestList.of(hypotheses, self.weights, self._words)
        if aligner is None:
            return Recognised(self._neural_rescorer.best(candidates))
        names, posteriors = self._neural_rescorer.words(candidates)
        words = aligner.timed(names, posteriors, scores, self.scale)
        return Recognised(" ".join(names), tuple(words))

    def text(self, words: list[int]) -> str:
        """Return the words with these ids, separated by spaces."""
        return " ".join(map(self._words.symbol, words))


class NetworkRecogniser:
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
        return self.silence_gate().gate_utterance(features, log_likelihoods) * self.search.scale

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
        (result,) = self.recognise_batch([(features, state)], details)
        return result

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
        results = []
        for (features, _), sound in zip(utterances, has_sound, strict=True):
            if sound:
                gated = self.silence_gate().gate_utterance(features, next(scored))
                scores = gated * self.search.scale
                results.append(self.best(self.search.lattice(scores), scores, details))
            else:
                results.append(Recognised("", () if details else None))
        return results

    def best(self, lattice: Lattice | None, scores: Tensor, details: bool) -> Recognised:
        """Return the best path of an utterance's lattice.

        Args:
          lattice: from the search; None if no path survived.
          scores: [T, P] the scores that were searched.
          details: see `recognise_features`.
        """
        return self.search.best(lattice, scores, self.word_aligner if details else None)


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
        results = [Recognised("", () if details else None)] * len(utterances)
        aligner = self.word_aligner if details else None
        for number, scores in self.scores(utterances):
            results[number] = self.search.best(self.search.lattice(scores), scores, aligner)
        return results

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
            silent = silence_pdfs(self._senones)
            for name, scores in scored:
                gate = SilenceGate(kind, silent, factor, factor // 2)
                gated = gate.gate_utterance(sounding[name], scores)
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
        kind, silent = self.frontend_config.kind, silence_pdfs(independent.senones)
        for name, scores in _gmm_scores(independent):
            cepstra = independent.features.store.load(name)
            scores = SilenceGate(kind, silent, 1).gate_utterance(cepstra, scores) * scale
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


def _gmm_scores(system: GmmSystem) -> Iterator[tuple[str, Tensor]]:
    """A GMM system's scores of each utterance."""
    for name in system.features.store.ids:
        yield name, system.gmm.log_likelihoods(system.features.load(name))


def _cut(name: str, seconds: float) -> MonoCut:
    return make_cut(name, Recording(name, [], 16000, round(16000 * seconds), seconds), "", SPEAKER)


def load_recogniser(
    bundle: Path, device: str = "cpu", fast: bool = False, int8: bool = False
) -> NetworkRecogniser | SpeakerRecogniser | CtcRecogniser:
    """The recogniser of one system's bundle.

    Args:
      bundle: its folder.
      device: where a network computes.
      fast: leave out rescoring.
      int8: compute in 8 bits, which CTC networks can on the CPU.

    Raises:
      BundleError: the folder is no bundle, or its network cannot compute in 8 bits there.
    """
    ctc = is_ctc(bundle)
    settings = None if ctc else read_settings(bundle)
    if int8 and not (ctc and device == "cpu"):
        raise BundleError(f"{bundle}: only CTC networks on the CPU compute in 8 bits (--int8)")
    if settings is None:
        return CtcRecogniser(bundle, device, fast, int8)
    kind = SpeakerRecogniser if settings.by_speaker else NetworkRecogniser
    return kind(bundle, device, fast)


def recognise_alone(bundle: Path, features: Path, jobs: int) -> dict[str, str]:
    """Recognise every utterance of a split as the first and only one of its speaker.

    The mean of the normalisation begins anew with each utterance, and a system that adapts to
    speakers has that utterance alone to adapt to.

    Args:
      bundle: the folder of one system.
      features: the split's features by the bundle's front end, before normalisation.
      jobs: worker processes, each with the bundle in its memory.

    Returns:
      Text by utterance id; of utterances without features, last, it is empty.
    """
    store = FeatureStore(features)
    ids = store.ids
    shares = [share for share in (ids[n::jobs] for n in range(jobs)) if share]
    texts: dict[str, str] = {}
    for part in map_in_processes(partial(_recognise, bundle, features), shares, jobs):
        texts.update(part)
    recognised = {utterance: texts[utterance] for utterance in ids}
    return recognised | {cut.id: "" for cut in store.failed_cuts}


def _recognise(bundle: Path, features: Path, ids: Sequence[str]) -> dict[str, str]:
    recogniser, store = load_recogniser(bundle), FeatureStore(features)
    if isinstance(recogniser, SpeakerRecogniser):
        return {name: recogniser.recognise([store.load(name)])[0].text for name in ids}
    return {name: recogniser.recognise_features(store.load(name)).text for name in ids}
