"""Search in Kaldi's decoding graphs with Kaldi's log-likelihoods."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from toolkit.fsa.config import Beam
from toolkit.fsa.fst import Fst, GraphError
from toolkit.fsa.lattice import best_path
from toolkit.fsa.remove_epsilon import remove_epsilon
from toolkit.fsa.search import search_lattice
from toolkit.kaldi.model import KaldiTransitions
from toolkit.kaldi.openfst_reader import load_openfst
from toolkit.kaldi.tables import entries, read_matrix
from toolkit.lang.tables import SymbolTable


def load_graph(path: Path, model: Path | None = None) -> Fst:
    """Read a graph of Kaldi as the toolkit's searches take it: its labels are pdf + 1.

    Args:
      path: HCLG.fst.
      model: the transition model (final.mdl, 0.trans_mdl) if the graph reads transition ids; None:
        it reads columns of the log-likelihoods, counted from 1.

    Raises:
      GraphError: no graph, or one that reads other transition ids than the model has.
      KaldiModelError: no transition model.
    """
    graph = load_openfst(path)
    if model is not None:
        pdfs = KaldiTransitions.read(model).pdf
        if graph.top_label > len(pdfs):
            raise GraphError(
                f"{path}: reads the transition id {graph.top_label}, {model} has {len(pdfs)}: give "
                "the model for which the graph was made"
            )
        graph.labels[graph.labels > 0] = 1 + pdfs[graph.labels[graph.labels > 0] - 1]
    return remove_epsilon(graph)


def decode_table(
    table: Path, graph: Fst, words: Path, acoustic_scale: float, beam: Beam, allow_pipes: bool
) -> Iterator[tuple[str, str | None]]:
    """Yield each utterance of a table of log-likelihoods and its words, None where none survive.

    Args:
      table: scp file or archive of matrices [T, pdfs], not scaled.
      graph: see `load_graph`.
      words: the graph's words.txt.
      acoustic_scale: of the log-likelihoods.
      beam: of the search.
      allow_pipes: see `toolkit.kaldi.tables.entries`.

    Raises:
      GraphError: the graph writes a word that `words` lacks.
      GraphMismatchError: the graph reads more pdfs than a matrix has columns.
    """
    symbols = SymbolTable.read(words)
    names = {symbols[word]: word for word in symbols}
    unknown = set(np.unique(graph.words).tolist()) - names.keys()
    if unknown:
        raise GraphError(f"{words}: has no word {min(unknown)}: give the words.txt of the graph")
    for utterance, entry in entries(table, allow_pipes).items():
        scores = torch.from_numpy(read_matrix(entry)) * acoustic_scale
        lattice = search_lattice(scores, graph, beam)
        if lattice is None:
            yield utterance, None
        else:
            yield utterance, " ".join(names[word] for word in best_path(lattice).words)
