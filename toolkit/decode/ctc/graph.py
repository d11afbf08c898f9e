"""CTC decoding by dense search in a graph of output units, dictionary and language model."""

import math
from collections.abc import Collection, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

import torch

from toolkit.decode.config import GraphConfig
from toolkit.decode.ctc.dictionary import Dictionary
from toolkit.decode.ctc.search import CtcDecoder, CtcHypothesis, LogProbs, Pair, as_array
from toolkit.fsa.decoding_graph import compile_ctc_graph, spelling_transducer
from toolkit.fsa.fst import Fst, dump_fst, load_fst
from toolkit.fsa.grammar import grammar_acceptor
from toolkit.fsa.lattice import ScoredLattice, Weights
from toolkit.fsa.nbest import n_best
from toolkit.fsa.search import search_with_retries
from toolkit.lang.lexicon import add_disambiguation
from toolkit.lang.tables import SymbolTable, word_table
from toolkit.lang.units import Units
from toolkit.processes.workers import map_in_processes
from toolkit.storage.files import write_atomically

GRAPH = "graph.safetensors"
# Log-probability of impossible symbols, as dense search does not support -inf.
_LEAST = -1e4
RETRIES = (2.0, 4.0)
"""Factors by which the beam is widened when no path survives."""


def make_ctc_graph(
    words: Collection[str] | Dictionary,
    units: Units,
    arpa: Path,
    out: Path,
) -> dict[str, float]:
    """Compose CTC topology, dictionary and language model into a decoding graph.

    Words that the language model lacks cannot be recognised.

    Args:
      words: the words of the dictionary.
      units: the model's output units.
      arpa: the language model.
      out: the folder that gets `words.txt` and, last, `graph.safetensors`.

    Returns:
      The numbers of states and arcs.
    """
    if not isinstance(words, Dictionary):
        words = Dictionary.of(words, units)
    table = word_table(words.words)
    out.mkdir(parents=True, exist_ok=True)
    table.write(out / "words.txt")
    tree = words.tree
    # Labels of the graph are units + 1, since 0 is epsilon; words with the same spelling get
    # disambiguation symbols #1, #2, ..., so that the lexicon can be determinised.
    spelt = [
        (word, tuple(str(label + 1) for label in tree.letters[begin:end].tolist()))
        for word, begin, end in zip(words.words, tree.begin[:-1], tree.begin[1:], strict=True)
    ]
    marked, highest = add_disambiguation(spelt)
    first = units.size + 1  # the label of #0, then those of #1, #2, ..., then that of the end
    entries = [
        (
            table[word],
            [first + int(x[1:]) if x.startswith("#") else int(x) for x in labels],
        )
        for word, labels in marked
    ]
    graph = compile_ctc_graph(
        units.size,
        units.blank,
        spelling_transducer(
            entries,
            between=[label + 1 for label in tree.between],
            word_disambig=table["#0"],
            label_disambig=first,
            end_disambig=first + highest + 1,
        ),
        grammar_acceptor(arpa, out / "words.txt"),
        first_label_disambig=first,
        first_word_disambig=table["#0"],
    )
    write_atomically(out / GRAPH, dump_fst(graph))
    return {"states": graph.num_states, "arcs": graph.num_arcs}


class GraphDecoder(CtcDecoder):
    """Finds the best paths in a graph by pruned search.

    Args:
      graph: a folder that `make_ctc_graph` wrote.
      units: the output units, in the order of the posteriors' columns.
      config: settings of the search.
    """

    def __init__(self, graph: Path, units: Units, config: GraphConfig | None = None) -> None:
        self._folder, self._columns = graph, units.size
        self.config = config or GraphConfig()

    def decode(self, log_probs: LogProbs) -> list[CtcHypothesis]:
        """Return the best hypotheses of one utterance; empty text if no path survives any beam."""
        config = self.config
        lattice = self._search(log_probs, config.lm_weight)
        if lattice is None:
            return [CtcHypothesis("", -math.inf)]
        weights = _weights(config.lm_weight, config.word_bonus)
        if config.nbest == 1:
            path = lattice.best_path(weights)
            paths = [(path.words, path.score)]
        else:
            paths = [(best.words, best.score) for best in n_best(lattice, weights, config.nbest)]
        # The search ran with scores divided by the weight of the language model.
        return [CtcHypothesis(self._text(ids), score * config.lm_weight) for ids, score in paths]

    def decode_many(
        self, utterances: Sequence[LogProbs], jobs: int = 1
    ) -> Iterator[list[CtcHypothesis]]:
        """Decode utterances in `jobs` processes, as part of the work holds the GIL."""
        yield from map_in_processes(partial(GraphDecoder.decode, self), utterances, jobs)

    def texts(
        self, utterances: Sequence[LogProbs], pairs: Sequence[Pair], jobs: int = 1
    ) -> Iterator[list[str]]:
        """Yield the best texts for each pair of weights; equal LM weights share a search."""
        function = partial(GraphDecoder._all_texts, self, pairs)
        yield from map(list, zip(*map_in_processes(function, utterances, jobs), strict=True))

    def _all_texts(self, pairs: Sequence[Pair], log_probs: LogProbs) -> list[str]:
        """Return one utterance's best text for each pair of weights."""
        # One search for each LM weight; the bonus is added to the words in its lattice.
        lattices = {weight: self._search(log_probs, weight) for weight in dict(pairs)}
        return [
            ""
            if (lattice := lattices[weight]) is None
            else self._text(lattice.best_path(_weights(weight, bonus)).words)
            for weight, bonus in pairs
        ]

    def _search(self, log_probs: LogProbs, lm_weight: float) -> ScoredLattice | None:
        """Search without a word bonus; return None if no path survives."""
        graph, _ = _load(self._folder)
        # Impossible symbols get a finite score. Scores are divided by the weight of the language
        # model, so that the graph's n-grams stay unscaled.
        rows = torch.from_numpy(as_array(log_probs, self._columns)).clamp(min=_LEAST)
        scores = rows / lm_weight
        tries = self.config.beam.with_retries(RETRIES)
        lattice, _ = search_with_retries(scores, graph, tries)
        return None if lattice is None else ScoredLattice.of(lattice, scores, 1.0 / lm_weight)

    def _text(self, ids: Sequence[int]) -> str:
        """Return the words with these ids as a text."""
        return " ".join(map(_load(self._folder)[1].symbol, ids))

    def tuned(self, lm_weight: float, word_bonus: float) -> "GraphDecoder":
        """Return the same decoder with other weights."""
        decoder = copy(self)
        decoder.config = replace(self.config, lm_weight=lm_weight, word_bonus=word_bonus)
        return decoder


def _weights(lm_weight: float, word_bonus: float) -> Weights:
    """Return a path's weights, scaled like the search so that the language model has weight 1."""
    return Weights(1.0 / lm_weight, word_bonus / lm_weight)


@lru_cache(maxsize=1)
def _load(folder: Path) -> tuple[Fst, SymbolTable]:
    """Load a graph and its words, once per process."""
    return load_fst(folder / GRAPH), SymbolTable.read(folder / "words.txt")
