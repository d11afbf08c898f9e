"""The decoding graph: H, C, L and G composed."""

import k2
import torch

from toolkit.fsa.hmm import expand_phones
from toolkit.hmm.senones import Senones


def compile_decoding_graph(
    senones: Senones,
    lexicon: k2.Fsa,
    grammar: k2.Fsa,
    first_phone_disambig: int,
    first_word_disambig: int,
) -> k2.Fsa:
    """H∘C∘det(L∘G): reads pdf + 1 per frame, writes words; no epsilons on the input side.

    The order of operations is icefall's compile_hlg, with two differences: H and C are not
    composed but written out (see `expand_phones`), and the graph keeps G's own scores as the
    attribute `lm_scores`, so that a rescoring pass can replace them and leave the rest.

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
    lexicon: k2.Fsa, grammar: k2.Fsa, first_label_disambig: int, first_word_disambig: int
) -> k2.Fsa:
    """det(L∘G): L's input labels without disambiguation symbols and epsilons, to words.

    Args:
      lexicon: see `compile_decoding_graph`.
      grammar: see `compile_decoding_graph`.
      first_label_disambig: L's input labels from here on are disambiguation symbols.
      first_word_disambig: word ids from here on are `#0` and the like.
    """
    grammar.lm_scores = grammar.scores.clone()
    lg = k2.connect(k2.compose(k2.arc_sort(lexicon), k2.arc_sort(grammar)))
    lg = k2.connect(k2.determinize(lg))
    lg = _without_disambiguation(lg, first_label_disambig, first_word_disambig)
    lg = k2.connect(k2.remove_epsilon(lg))
    lg.aux_labels = lg.aux_labels.remove_values_eq(0)
    return lg


def _without_disambiguation(lg: k2.Fsa, first_phone: int, first_word: int) -> k2.Fsa:
    """A copy in which disambiguation symbols are epsilons on both sides.

    A new Fsa, because k2 caches an Fsa's properties and does not see labels edited in place.
    """
    arcs = lg.arcs.values().clone()
    arcs[:, 2][arcs[:, 2] >= first_phone] = 0
    written = lg.aux_labels
    if isinstance(written, torch.Tensor):  # there was nothing to determinise: -1 on final arcs
        written = k2.RaggedTensor(written.clamp(min=0)[:, None])
    words = written.values.clone()
    words[words >= first_word] = 0
    copy = k2.Fsa(arcs, aux_labels=k2.RaggedTensor(written.shape, words))
    copy.lm_scores = lg.lm_scores
    return copy


def count_words(graph: k2.Fsa) -> torch.Tensor:
    """[arcs] the number of words on each arc."""
    splits = graph.aux_labels.shape.row_splits(1)
    return splits[1:] - splits[:-1]
