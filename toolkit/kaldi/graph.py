"""Decoding graphs for Kaldi's decoders: HCLG.fst with its tree and transition model."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from toolkit.decode.graph import compile_graph
from toolkit.fsa.fst import Fst
from toolkit.hmm.senones import Senones
from toolkit.kaldi.openfst import dump_openfst
from toolkit.kaldi.transition_graph import with_transition_ids
from toolkit.kaldi.transitions import Transitions
from toolkit.kaldi.tree import tree_text
from toolkit.lang.lang import Lang
from toolkit.storage.files import write_atomically

Labels = Literal["transitions", "pdfs"]


def export_graph(
    lang: Path,
    arpa: Path,
    senones: Senones,
    out: Path,
    labels: Labels = "transitions",
    word_penalty: float = 0.0,
) -> dict[str, int]:
    """Compile a decoding graph and write it with what decoders need beside it.

    HCLG.fst; words.txt and phones.txt; num_pdfs, the number of columns of log-likelihoods; and in
    Kaldi's text form `tree` and `0.trans_mdl`, the transition model. Sentences have the costs that
    they have in the toolkit's own graphs.

    Args:
      lang: the folder of the lexicon.
      arpa: the language model.
      senones: the HMMs of the acoustic model.
      out: the folder to write.
      labels: what the graph reads: transition ids of `0.trans_mdl`, or pdf + 1.
      word_penalty: added per word; negative means fewer words.

    Returns:
      The numbers of states and arcs, as in the toolkit's own graph.
    """
    out, transitions = Path(out), Transitions(senones)
    if labels == "pdfs":
        graph = compile_graph(lang, arpa, senones)
        written = graph
    else:
        graph = compile_graph(lang, arpa, transitions.states)
        written = with_transition_ids(graph, transitions)
    write_atomically(out / "HCLG.fst", dump_openfst(_penalised(written, word_penalty)))
    words = Lang.load(lang)
    words.words.write(out / "words.txt")
    words.phones.write(out / "phones.txt")
    write_atomically(out / "num_pdfs", f"{senones.num_pdfs}\n")
    write_atomically(out / "tree", tree_text(senones.tree, senones.topology))
    write_atomically(out / "0.trans_mdl", transitions.text())
    return {"states": graph.num_states, "arcs": graph.num_arcs}


def _penalised(graph: Fst, word_penalty: float) -> Fst:
    scores = graph.scores + np.float32(word_penalty) * graph.word_counts
    return replace(graph, scores=scores.astype(np.float32))
