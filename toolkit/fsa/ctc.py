"""CTC decoding graphs: topology, lexicon of spellings, and their composition with a grammar."""

from collections.abc import Sequence

from toolkit.fsa.compose import compose
from toolkit.fsa.connect import arc_sort, connect
from toolkit.fsa.decoding_graph import compose_words
from toolkit.fsa.fst import EPSILON, Arc, Fst, fst_from_arcs


def ctc_topology(columns: int, blank: int) -> Fst:
    """H: reads column + 1 of every frame, writes column + 1 of each label after CTC's collapse.

    As k2's `ctc_topo`, with the blank in any column and no label 0, which is epsilon to dense
    search.

    Args:
      columns: number of columns of the posteriors.
      blank: the column of the blank.
    """
    labels = [i for i in range(columns) if i != blank]
    # State 0 follows a blank (or is the start), the others follow each label.
    state = {column: i for i, column in enumerate([blank, *labels])}
    arcs: list[Arc] = []
    for last, source in state.items():
        arcs.append((source, 0, blank + 1, EPSILON, 0.0))
        for label in labels:
            written = EPSILON if label == last else label + 1
            arcs.append((source, state[label], label + 1, written, 0.0))
    return fst_from_arcs(arcs, sorted(state.values()))


def spelling_transducer(
    entries: Sequence[tuple[int, Sequence[int]]],
    between: Sequence[int],
    word_disambig: int,
    label_disambig: int,
    end_disambig: int,
) -> Fst:
    """L: labels to words, with one or more of `between` from word to word, any number at the edges.

    Args:
      entries: (word id, labels) with the disambiguation symbols already appended.
      between: the labels that separate words; without any, words follow each other directly.
      word_disambig: the word id of `#0`, which L passes through for G's back-off arcs.
      label_disambig: the label of `#0`.
      end_disambig: a label between the last word and the end, so that L∘G is determinisable.
    """
    start, ended, end, count = 0, 1, 2, 3
    arcs: list[Arc] = [(start, start, label_disambig, word_disambig, 0.0)]
    finals = [start]
    if between:
        arcs += [(start, start, label, EPSILON, 0.0) for label in between]
        arcs += [(ended, start, label, EPSILON, 0.0) for label in between]
        arcs.append((ended, end, end_disambig, EPSILON, 0.0))
        arcs.append((end, end, label_disambig, word_disambig, 0.0))
        finals.append(end)
    else:
        ended, count = start, 1
    for word, labels in entries:
        source = start
        for i, label in enumerate(labels):
            target = ended if i == len(labels) - 1 else count
            arcs.append((source, target, label, word if i == 0 else EPSILON, 0.0))
            source, count = target, count + (target == count)
    return fst_from_arcs(arcs, finals)


def compile_ctc_graph(
    columns: int,
    blank: int,
    lexicon: Fst,
    grammar: Fst,
    first_label_disambig: int,
    first_word_disambig: int,
) -> Fst:
    """H∘det(L∘G): reads column + 1 of every frame, writes words.

    Args:
      columns: number of columns of the posteriors.
      blank: the column of the blank.
      lexicon: from `spelling_transducer`.
      grammar: words, back-off on `#0`.
      first_label_disambig: labels from here on are disambiguation symbols.
      first_word_disambig: word ids from here on are `#0` and the like.
    """
    lg = compose_words(lexicon, grammar, first_label_disambig, first_word_disambig)
    return arc_sort(connect(compose(ctc_topology(columns, blank), lg)))
