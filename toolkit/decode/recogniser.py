"""Recognisers for bundles: networks work by utterance, systems on GMM features by speaker."""

import tempfile
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
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
from toolkit.decode.config import EndpointConfig
from toolkit.decode.ctc.recogniser import CtcRecogniser
from toolkit.decode.decoded import DecodedUtterance
from toolkit.decode.rescore import Rescorer
from toolkit.decode.search import Decoder, NeuralPass
from toolkit.decode.speech import load_detector
from toolkit.decode.stream import (
    NetworkScoreStream,
    Recogniser,
    RecogniserStream,
    StreamParts,
    Utterance,
)
from toolkit.decode.words import SilenceGate, SilencePosteriors, WordAligner, silence_pdfs
from toolkit.features.frontend import Frontend
from toolkit.features.gmm_features import load_transforms
from toolkit.features.low_frame_rate import LOW_RATE_FACTOR
from toolkit.features.shards import SHARDS, CmnState, FeatureStore, write_manifest, write_shard
from toolkit.fsa.config import RescoreLimits
from toolkit.fsa.fst import Fst, load_fst
from toolkit.fsa.lattice import ScoredLattice, Weights
from toolkit.fsa.rescore import Grammar
from toolkit.fsa.search import search_with_retries
from toolkit.hmm.gmm_system import GmmSystem, write_gmm_features
from toolkit.hmm.senones import Senones
from toolkit.hmm.transforms import MIN_FRAMES
from toolkit.lang.arpa import read_binary
from toolkit.lang.tables import SymbolTable
from toolkit.models.scorer import NeuralModel, NeuralScorer
from toolkit.processes.bars import hide_progress_bars
from toolkit.processes.workers import map_in_processes

ONSET_ROWS = 3
"""Number of consecutive rows of scores that must be speech before speech counts as begun."""


def load_decoder(
    folder: Path, settings: RecogniserSettings, fast: bool, num_pdfs: int
) -> tuple[Decoder, Weights]:
    """Load a bundle's decoder, and the weights of its best path.

    Args:
      folder: the bundle of one system.
      settings: the bundle's settings.
      fast: leave out the passes that rescore.
      num_pdfs: the acoustic model's number of pdfs.

    Raises:
      BundleError: the graph or a language model does not fit the acoustic model or the words.
      GraphError: the graph cannot be read.
    """
    # The last pass determines the weights; the search uses the scale that was tuned for it.
    words = SymbolTable.read(folder / "words.txt")
    weights, acoustic_scale = settings.weights, settings.search_scale
    grammar, neural, limits = None, None, RescoreLimits()
    if settings.rescoring is not None and not fast:
        ngrams = read_binary(folder / RESCORER)
        check_language_model(folder / RESCORER, ngrams.vocabulary, words)
        grammar, limits = Grammar(ngrams, words), settings.rescoring.limits
        weights = settings.rescoring.weights
        acoustic_scale = weights.acoustic_scale
    if settings.neural is not None and not fast:
        rescorer = Rescorer.load(folder / NEURAL_LM)
        shortlist = rescorer.lm.shortlist
        modelled = (*shortlist.words, *shortlist.shares)
        check_language_model(folder / NEURAL_LM, modelled, words)
        acoustic_scale = rescorer.weights.acoustic_scale
        weights = Weights(acoustic_scale, settings.neural.word_penalty)
        neural = NeuralPass(rescorer, settings.neural.count)
    graph = load_graph(folder / GRAPH, num_pdfs, words)
    beams = settings.beam.with_retries(settings.retries)
    return Decoder(graph, words, acoustic_scale, beams, grammar, limits, neural), weights


def load_graph(path: Path, num_pdfs: int, words: SymbolTable) -> Fst:
    """Load a decoding graph and check that it fits the acoustic model and the bundle's words.

    Args:
      path: its file.
      num_pdfs: number of pdfs of the acoustic model.
      words: the bundle's words.

    Raises:
      BundleError: the graph does not match the acoustic model and the words.
      GraphError: the graph cannot be read.
    """
    graph = load_fst(path)
    check_graph(path, graph, num_pdfs, words)
    return graph


def load_word_aligner(
    bundle: Path, senones: Senones, frame_shift_s: float, decoder: Decoder
) -> WordAligner:
    """Load the aligner that finds the times and confidences of a bundle's words."""
    calibration = bundle / CALIBRATION
    return WordAligner(
        bundle,
        senones,
        calibration if calibration.exists() else None,
        frame_shift_s,
        decoder.beams[0].search,
    )


def network_gate(kind: str, silence: Tensor, model: NeuralModel) -> SilenceGate:
    """Return the gate for a network's scores.

    Args:
      kind: the kind of the raw features, see `FrontendConfig.kind`.
      silence: [P] bool, which pdfs are silence.
      model: the network, which looks ahead by `lookahead` rows (an LSTM) or `context` (a TDNN-F).
    """
    keep = max(getattr(model.model.config, name, 0) for name in ("lookahead", "context"))
    return SilenceGate(kind, silence, LOW_RATE_FACTOR, LOW_RATE_FACTOR // 2, keep)


class NetworkRecogniser(Recogniser):
    """Recognises utterances with a bundle written by `write_network_bundle`.

    Args:
      bundle: the folder of the system; `Bundle.choose` finds one in a run's `final/`.
      device: where the network computes; the front end and the search run on the CPU.
      fast: leave out the passes that rescore.

    Raises:
      BundleError: the folder is not such a bundle, or its files come from different bundles.
    """

    def __init__(self, bundle: Path, device: str = "cpu", fast: bool = False) -> None:
        self._bundle = Path(bundle)
        settings = read_settings(self._bundle)
        if settings.by_speaker:
            raise BundleError(
                f"{bundle} needs whole recordings, grouped by speaker. Give the bundle of a "
                "network on log-mel features"
            )
        self.frontend_config = settings.frontend
        self.frontend = Frontend(self.frontend_config)
        self.detector = load_detector(self._bundle, self.frontend_config)
        normaliser = self._bundle / NORMALISER
        self.model = NeuralModel(self._bundle / MODEL, normaliser, device)
        inputs = len(self.model.normaliser.prior_mean)
        check_frontend(self._bundle / SETTINGS, self.frontend_config, inputs, normaliser)
        num_pdfs = len(self.model.log_priors)
        self.decoder, self.weights = load_decoder(self._bundle, settings, fast, num_pdfs)

    @property
    def frame_shift(self) -> float:
        """Seconds between consecutive rows of scores."""
        return LOW_RATE_FACTOR * self.frontend_config.frame_shift_ms / 1000

    @cached_property
    def word_aligner(self) -> WordAligner:
        """The aligner that finds word times and confidences."""
        return load_word_aligner(self._bundle, self._senones, self.frame_shift, self.decoder)

    @cached_property
    def silence(self) -> SilencePosteriors:
        """The function that computes silence posteriors from scores."""
        return SilencePosteriors(self._senones, self.model.log_priors)

    def silence_posteriors(self, features: Tensor, state: CmnState) -> Tensor:
        """Return the silence posterior of each frame; see `Recogniser`."""
        # The block is scored as a separate utterance; a row covers LOW_RATE_FACTOR frames.
        posteriors = self.silence(self.model.log_likelihoods(features, state))
        return posteriors.repeat_interleave(LOW_RATE_FACTOR)[: len(features)]

    @cached_property
    def _silence_pdfs(self) -> Tensor:
        """Which pdfs are those of silence: [P] bool."""
        return silence_pdfs(self._senones)

    def silence_gate(self) -> SilenceGate:
        """Return the gate that keeps words out of an utterance's digital silence."""
        return network_gate(self.frontend_config.kind, self._silence_pdfs, self.model)

    @cached_property
    def _senones(self) -> Senones:
        """The senones of the network's outputs."""
        senones = Senones.load(self._bundle / SENONES)
        check_senones(self._bundle / SENONES, senones, len(self.model.log_priors))
        return senones

    def log_likelihoods(self, features: Tensor, state: CmnState | None = None) -> Tensor:
        """Score an utterance's features, and keep words out of its digital silence.

        Returns:
          Log-likelihoods [ceil(T / 3), P].
        """
        gate = self.silence_gate()
        return gate(self.model.log_likelihoods(gate.push_utterance(features), state))

    def recognise_batch(
        self, utterances: Sequence[Utterance], details: bool = False
    ) -> list[DecodedUtterance]:
        """Recognise several utterances; see `Recogniser.recognise_batch`."""
        aligner = self.word_aligner if details else None
        results = []
        for scores in self.gated_scores(utterances, self.model.batch_log_likelihoods):
            if scores is None:
                results.append(DecodedUtterance("", () if details else None))
            else:
                result = self.decoder.search(scores)
                results.append(self.decoder.best(result, self.weights, aligner))
        return results

    def stream(
        self, endpoint: EndpointConfig | None = None, details: bool = False
    ) -> RecogniserStream:
        """Begin to recognise a stream; see `Recogniser.stream`."""
        aligner = self.word_aligner if details else None
        parts = StreamParts(
            self.frontend,
            NetworkScoreStream(self.model),
            lambda: self.decoder.start(self.weights, aligner),
            lambda scores: self.silence(scores) > 0.5,
            self.silence_gate(),
            self.detector,
            self.frame_shift,
            ONSET_ROWS,
        )
        return RecogniserStream(parts, endpoint)


SPEAKER = "speaker"
CEPSTRA = "cepstra"
FEATURES = "features"


class SpeakerRecogniser(Recogniser):
    """Recognises a speaker's utterances with a bundle written by `write_speaker_bundle`.

    The utterances are put into a temporary folder and decoded by the functions that decode a
    recipe's splits. The features are normalised by their mean over all utterances. If the system is
    adapted to speakers, the fMLLR transform is estimated from the words of a first pass (C4), and
    refined on lattices of an adapted pass.

    Args:
      bundle: the folder of the system.
      device: where the network computes, if the system has one.
      fast: leave out rescoring.

    Raises:
      BundleError: the folder is not such a bundle, or its files come from different bundles.
    """

    by_speaker = True

    def __init__(self, bundle: Path, device: str = "cpu", fast: bool = False) -> None:
        self._bundle = Path(bundle)
        self._settings = read_settings(self._bundle)
        if not self._settings.by_speaker:
            raise BundleError(
                f"{bundle} recognises utterance by utterance, not speaker by speaker: load it with "
                "`NetworkRecogniser`"
            )
        self.frontend_config = self._settings.frontend
        self.frontend = Frontend(self.frontend_config)
        self.detector = load_detector(self._bundle, self.frontend_config)
        self._gmm = self._load_gmm(self._bundle / GMM)
        self._first_gmm = (
            self._load_gmm(self._bundle / FIRST_PASS / GMM) if self._settings.first_pass else None
        )
        self._network = self._load_network(device) if (self._bundle / MODEL).is_dir() else None
        self._num_pdfs = len(self._network.log_priors) if self._network else self._gmm.gmm.num_pdfs
        self.decoder, self.weights = load_decoder(
            self._bundle, self._settings, fast, self._num_pdfs
        )

    def _load_gmm(self, folder: Path) -> GmmSystem:
        """Load a GMM system without cepstra."""
        system = GmmSystem.load(folder, self._bundle)
        check_frontend(self._bundle / SETTINGS, self.frontend_config, system.cepstra, folder)
        return system

    def _load_network(self, device: str) -> NeuralModel:
        """Load the network on the GMM system's features."""
        network = NeuralModel(self._bundle / MODEL, self._bundle / NORMALISER, device)
        inputs, dimension = len(network.normaliser.prior_mean), self._gmm.gmm.means.shape[1]
        if inputs != dimension:
            raise BundleError(
                f"{self._bundle / NORMALISER} is for {inputs} features, but {self._bundle / GMM} "
                f"has {dimension}: {MISMATCH}"
            )
        return network

    @cached_property
    def word_aligner(self) -> WordAligner:
        """The aligner that finds word times and confidences."""
        scorer = NeuralScorer if self._network else GmmScorer
        return load_word_aligner(self._bundle, self._senones, scorer.frame_shift, self.decoder)

    @cached_property
    def _senones(self) -> Senones:
        """The senones of the last pass."""
        folder = self._bundle / (SENONES if self._network else GMM)
        senones = Senones.load(folder)
        check_senones(folder, senones, self._num_pdfs)
        return senones

    @cached_property
    def _silence_pdfs(self) -> Tensor:
        """Which pdfs of the last pass are those of silence: [P] bool."""
        return silence_pdfs(self._senones)

    def silence_gate(self) -> SilenceGate:
        """Return the gate that keeps words out of an utterance's digital silence."""
        kind = self.frontend_config.kind
        if self._network:
            return network_gate(kind, self._silence_pdfs, self._network)
        return SilenceGate(kind, self._silence_pdfs, factor=1, offset=0, keep=0)

    @cached_property
    def _first_graph(self) -> Fst:
        """The decoding graph of the first pass."""
        path = self._bundle / FIRST_PASS / GRAPH
        return load_graph(path, self._first_gmm.gmm.num_pdfs, self.decoder.words)

    def recognise_batch(
        self, utterances: Sequence[Utterance], details: bool = False
    ) -> list[DecodedUtterance]:
        """Recognise one speaker's utterances, given in order of time; see `Recogniser`."""
        results = [DecodedUtterance("", () if details else None)] * len(utterances)
        aligner = self.word_aligner if details else None
        for number, scores in self.log_likelihoods([cepstra for cepstra, _ in utterances]):
            result = self.decoder.search(scores)
            results[number] = self.decoder.best(result, self.weights, aligner)
        return results

    def stream(
        self, endpoint: EndpointConfig | None = None, details: bool = False
    ) -> RecogniserStream:
        """Raise a BundleError, because a system that works by speaker cannot recognise streams."""
        raise BundleError(
            f"{self._bundle} needs whole recordings, grouped by speaker. Streaming needs a "
            "network on log-mel features"
        )

    def log_likelihoods(self, utterances: Sequence[Tensor]) -> Iterator[tuple[int, Tensor]]:
        """Score one speaker's utterances with the system adapted to the speaker.

        Args:
          utterances: the cepstra [T, F] of each, in order of time, not normalised.

        Yields:
          The position of each utterance with speech, and its log-likelihoods [T, P], gated so that
          digital silence gets no words.
        """
        gates: dict[str, SilenceGate] = {}
        spoken: dict[str, Tensor] = {}
        for number, cepstra in enumerate(utterances):
            if self.has_speech(cepstra):
                name, gate = f"{number:06d}", self.silence_gate()
                gates[name], spoken[name] = gate, gate.push_utterance(cepstra)
        if not spoken:
            return
        config, shift = self.frontend_config, self.frontend_config.frame_shift_ms / 1000
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            # The recipes' functions read feature stores, so the features are stored. Recipe and
            # bundle thus use the same float16 values and means, and recognise the same words,
            # unless there is digital silence, which only bundles leave out.
            stored = [(_cut(name, len(x) * shift), SPEAKER, x) for name, x in spoken.items()]
            written, frames = write_shard(folder / CEPSTRA / SHARDS, 0, stored, config)
            write_manifest(folder / CEPSTRA, config, [{"utterances": written, "frames": frames}])
            system = self._gmm.on(folder / CEPSTRA)
            # With fewer frames every transform is the identity, so the first pass is not needed.
            if sum(map(len, spoken.values())) >= MIN_FRAMES:
                with hide_progress_bars():
                    system = self._adapted(system, folder)
            scored = self._network_scores(system, folder) if self._network else _gmm_scores(system)
            for name, scores in scored:
                yield int(name), gates[name](scores)

    def _adapted(self, system: GmmSystem, folder: Path) -> GmmSystem:
        """Return the system adapted to the speaker from the words of a first pass.

        It is returned unchanged if the bundle has no first pass.
        """
        first = self._settings.first_pass
        if first is None:
            return system
        independent = self._first_gmm.on(folder / CEPSTRA)
        scale = first.weights.acoustic_scale
        beams = first.beam.with_retries(first.retries)
        hypotheses = {}
        # First pass: the alignment of the speaker-independent system's words gives the statistics.
        for name, scores in _gmm_scores(independent):
            scores = scores * scale
            lattice, _ = search_with_retries(scores, self._first_graph, beams)
            best = lattice and ScoredLattice.of(lattice, scores, scale).best_words(first.weights)
            hypotheses[name] = self.decoder.text(best or []).split()
        out = folder / "fmllr" / "transforms.safetensors"
        # fMLLR from these words (C4), then once more from lattices of the adapted system.
        adapt_speakers(system, independent, hypotheses, self._bundle, first.adaptation, out, jobs=1)
        graph = self._bundle / GMM / GRAPH if self._network else self._bundle / GRAPH
        search = LatticeSearch(graph, first.lattice_scale, beams)
        refine_on_lattices(system.adapted(load_transforms(out)), search, out, jobs=1)
        return system.adapted(load_transforms(out))

    def _network_scores(self, system: GmmSystem, folder: Path) -> Iterator[tuple[str, Tensor]]:
        """Yield each utterance's scores from the network."""
        write_gmm_features(system, folder / FEATURES)
        store = FeatureStore(folder / FEATURES)
        for name in store.ids:
            yield name, self._network.log_likelihoods(store.load(name), store.cmn_state(name))


def _gmm_scores(system: GmmSystem) -> Iterator[tuple[str, Tensor]]:
    """Yield each utterance's scores from a GMM system."""
    for name in system.features.store.ids:
        yield name, system.gmm.log_likelihoods(system.features.load(name))


def _cut(name: str, seconds: float) -> MonoCut:
    """Make the cut of an utterance for the temporary feature store."""
    return make_cut(name, Recording(name, [], 16000, round(16000 * seconds), seconds), "", SPEAKER)


def load_recogniser(
    bundle: Path, device: str = "cpu", fast: bool = False, int8: bool = False
) -> Recogniser:
    """Load the recogniser of a system's bundle.

    Args:
      bundle: its folder.
      device: where a network computes.
      fast: leave out rescoring.
      int8: compute in 8 bits; only CTC networks on the CPU can.

    Raises:
      BundleError: the folder is not a bundle, or its network cannot compute in 8 bits there.
    """
    ctc = is_ctc(bundle)
    settings = None if ctc else read_settings(bundle)
    if int8 and not (ctc and device == "cpu"):
        raise BundleError(f"{bundle}: --int8 is possible only for CTC networks on the CPU")
    if settings is None:
        return CtcRecogniser(bundle, device, fast, int8)
    kind = SpeakerRecogniser if settings.by_speaker else NetworkRecogniser
    return kind(bundle, device, fast)


def recognise_alone(bundle: Path, features: Path, jobs: int) -> dict[str, str]:
    """Recognise each utterance of a split as if it were its speaker's first and only one.

    The normalisation mean is reset for each utterance, and a system with speaker adaptation adapts
    to that utterance only.

    Args:
      bundle: the folder of one system.
      features: the split's features by the bundle's front end, before normalisation.
      jobs: worker processes, each with the bundle in its memory.

    Returns:
      Text by utterance id; utterances without features come last, with empty texts.
    """
    store = FeatureStore(features)
    ids = store.ids
    # Interleaved, so that all processes get long and short utterances.
    shares = [share for share in (ids[n::jobs] for n in range(jobs)) if share]
    texts: dict[str, str] = {}
    for part in map_in_processes(partial(_recognise, bundle, features), shares, jobs):
        texts.update(part)
    recognised = {utterance: texts[utterance] for utterance in ids}
    return recognised | {cut.id: "" for cut in store.failed_cuts}


def _recognise(bundle: Path, features: Path, ids: Sequence[str]) -> dict[str, str]:
    """Recognise some utterances of a split, in a worker process."""
    recogniser, store = load_recogniser(bundle), FeatureStore(features)
    return {name: recogniser.recognise_features(store.load(name)).text for name in ids}
