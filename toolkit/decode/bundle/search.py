"""The search of a bundle: its graph, its language models, its words."""

from functools import cached_property
from pathlib import Path

from torch import Tensor

from toolkit.decode.bundle.settings import GRAPH, NEURAL_LM, RESCORER, RecogniserSettings
from toolkit.decode.bundle.sizes import check_graph, check_language_model
from toolkit.decode.rescoring.candidates import Candidates
from toolkit.decode.rescoring.rescorer import WEIGHTS, Rescorer, RescoringWeights
from toolkit.decode.transcript import Recognised
from toolkit.decode.word_times import WordAligner
from toolkit.fsa.beam import Beam
from toolkit.fsa.files import load_fst
from toolkit.fsa.fst import Fst, Lattice
from toolkit.fsa.lattice import ScoredLattice, Weights
from toolkit.fsa.nbest import n_best
from toolkit.fsa.rescore import Grammar, rescore_lattice
from toolkit.fsa.search import search_with_retries
from toolkit.lang.ngram.binary import read_binary
from toolkit.lang.tables import SymbolTable


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
        return Recognised(" ".join(word.word for word in words), tuple(words))

    def _chosen(
        self, lattice: ScoredLattice, count: int, scores: Tensor, aligner: WordAligner | None
    ) -> Recognised:
        """Choose from the n-best list with the neural language model."""
        hypotheses = n_best(lattice, self.weights, count)
        candidates = Candidates.of(hypotheses, self.weights, self._words)
        if aligner is None:
            return Recognised(self._neural_rescorer.best(candidates))
        names, posteriors = self._neural_rescorer.words(candidates)
        words = aligner.timed(names, posteriors, scores, self.scale)
        return Recognised(" ".join(names), tuple(words))

    def text(self, words: list[int]) -> str:
        """Return the words with these ids, separated by spaces."""
        return " ".join(map(self._words.symbol, words))
