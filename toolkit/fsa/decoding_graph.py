"""The decoding graph: H, C, L and G composed."""

from dataclasses import replace

import numpy as np

from toolkit.fsa.compose import CompositionError, compose
from toolkit.fsa.connect import connect
from toolkit.fsa.determinize import determinize
from toolkit.fsa.epsilons import remove_epsilon
from toolkit.fsa.fst import EPSILON, Fst
from toolkit.fsa.hmm import expand_phones
from toolkit.hmm.senones import Senones


def compile_decoding_graph(
    senones: Senones,
    lexicon: Fst,
    grammar: Fst,
    first_phone_disambig: int,
    first_word_disambig: int,
) -> Fst:
    """H∘C∘det(L∘G): reads pdf + 1 per frame, writes words; no epsilons on the input side.

    The order of operations is that of Kaldi's mkgraph.sh, with two differences: H and C are not
    composed but written out (see `expand_phones`), and the graph keeps G's own scores as
    `lm_scores`, so that a rescoring pass can replace them and leave the rest.

    Args:
      senones: HMMs in context.
      lexicon: phones with disambiguation symbols to words.
      grammar: words, back-off on `#0`.
      first_phone_disambig: phone ids from here on are disambiguation symbols.
      first_word_disambig: word ids from here on are `#0` and the like.
    """
    lg = compose_words(lexicon, grammar, first_phone_disambig, first_word_disambig)
    return expand_phones(lg, senones)


def compose_words(
    lexicon: Fst, grammar: Fst, first_label_disambig: int, first_word_disambig: int
) -> Fst:
    """det(L∘G): L's input labels without disambiguation symbols and epsilons, to words.

    Args:
      lexicon: see `compile_decoding_graph`.
      grammar: see `compile_decoding_graph`.
      first_label_disambig: L's input labels from here on are disambiguation symbols.
      first_word_disambig: word ids from here on are `#0` and the like.

    Raises:
      CompositionError: they have no sentence in common.
    """
    lg = connect(compose(lexicon, grammar))
    if not lg.num_arcs:
        raise CompositionError("lexicon and language model have no sentence in common")
    lg = determinize(lg)
    labels = np.where(lg.labels >= first_label_disambig, np.int32(EPSILON), lg.labels)
    spoken = np.append(0, np.cumsum(lg.words < first_word_disambig))
    lg = replace(
        lg,
        labels=labels,
        splits=spoken[lg.splits].astype(np.int32),
        words=lg.words[lg.words < first_word_disambig],
    )
    return remove_epsilon(lg)
