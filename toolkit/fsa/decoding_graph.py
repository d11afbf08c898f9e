"""Composes decoding graphs: H, C, L and G for HMMs; a topology, spellings and G for CTC."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from toolkit.fsa.compose import CompositionError, compose
from toolkit.fsa.determinize import determinize
from toolkit.fsa.expand import expand_phones_to_pdfs
from toolkit.fsa.fst import EPSILON, Arc, Fst, arc_sort, connect, dump_fst, fst_from_arcs
from toolkit.fsa.grammar import grammar_acceptor
from toolkit.fsa.lexicon import lexicon_transducer, weighted_lexicon_transducer
from toolkit.fsa.remove_epsilon import remove_epsilon
from toolkit.hmm.senones import Senones
from toolkit.lang.lang import Lang
from toolkit.lang.tables import SILENCE, UNKNOWN
from toolkit.storage.files import write_atomically


def make_decoding_graph(lang: Path, arpa: Path, senones: Senones, out: Path) -> dict[str, float]:
    """Compose H, C, L and G, and write the decoding graph to `out`.

    Args:
      lang: the folder of the lexicon; its pronunciation and silence probabilities are used if it
        has them.
      arpa: the language model.
      senones: the HMMs of the acoustic model.
      out: the file to write.

    Returns:
      The graph's numbers of `states` and `arcs`.
    """
    graph = compile_graph(lang, arpa, senones)
    write_atomically(out, dump_fst(graph))
    return {"states": graph.num_states, "arcs": graph.num_arcs}


def compile_graph(lang: Path, arpa: Path, senones: Senones) -> Fst:
    """Compose H, C, L and G into a decoding graph; see `make_decoding_graph`."""
    words = Lang.load(lang)
    return compile_decoding_graph(
        senones,
        make_lexicon(words),
        grammar_acceptor(arpa, lang / "words.txt"),
        first_phone_disambig=words.phones["#0"],
        first_word_disambig=words.words["#0"],
    )


def make_lexicon(lang: Lang, unknown: bool = False) -> Fst:
    """Return L, with pronunciation and silence probabilities if the vocabulary has any.

    Args:
      lang: the vocabulary.
      unknown: whether L has <UNK>, which decoding graphs leave out.
    """
    entries, last_disambig = lang.disambiguated_entries()
    # Entries with disambiguation symbols, each with its word and pronunciation.
    pairs = zip(entries, lang.lexicon.pairs(), strict=True)
    entries_and_words = [(entry, pair) for entry, pair in pairs if unknown or pair[0] != UNKNOWN]
    spoken_entries = [entry for entry, _ in entries_and_words]
    symbols = {
        "silence": lang.phones[SILENCE],
        "word_disambig": lang.words["#0"],
        "phone_disambig": lang.phones["#0"],
        "silence_disambig": last_disambig,
    }
    ends = lang.probabilities
    if ends is None:
        return lexicon_transducer(spoken_entries, **symbols)
    weights = [ends.of(pair) for _, pair in entries_and_words]
    return weighted_lexicon_transducer(spoken_entries, weights, ends, **symbols)


def compile_decoding_graph(
    senones: Senones,
    lexicon: Fst,
    grammar: Fst,
    first_phone_disambig: int,
    first_word_disambig: int,
) -> Fst:
    """Return H∘C∘det(L∘G), which reads pdf + 1 per frame, writes words and has no input epsilons.

    The order of operations is that of Kaldi's mkgraph.sh, with two differences: H and C are not
    composed but written out (see `expand_phones_to_pdfs`), and the graph keeps G's own scores as
    `lm_scores`, so that a rescoring pass can replace only these.

    Args:
      senones: HMMs in context.
      lexicon: L, from phones and disambiguation symbols to words.
      grammar: G over words, whose back-off arcs read `#0`.
      first_phone_disambig: phone ids from this one on are disambiguation symbols.
      first_word_disambig: word ids from this one on are `#0` and the like.
    """
    lg = compose_words(lexicon, grammar, first_phone_disambig, first_word_disambig)
    return expand_phones_to_pdfs(lg, senones)


def compose_words(
    lexicon: Fst, grammar: Fst, first_label_disambig: int, first_word_disambig: int
) -> Fst:
    """Return det(L∘G), from L's input labels without disambiguation symbols to words.

    Args:
      lexicon: see `compile_decoding_graph`.
      grammar: see `compile_decoding_graph`.
      first_label_disambig: L's input labels from this one on are disambiguation symbols.
      first_word_disambig: word ids from this one on are `#0` and the like.

    Raises:
      CompositionError: lexicon and grammar have no sentence in common.
    """
    lg = connect(compose(lexicon, grammar))
    if not lg.num_arcs:
        raise CompositionError(
            "the language model accepts no sentence that consists of words of the lexicon"
        )
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


def ctc_topology(columns: int, blank: int) -> Fst:
    """Return H, which reads column + 1 per frame and writes the labels after CTC's collapse.

    Like k2's `ctc_topo`, but the blank may be in any column, and label 0 is not used because dense
    search reads it as epsilon.

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
    """Return L for CTC, from labels to words with separators (`between`) around them.

    Args:
      entries: (word id, labels) with the disambiguation symbols already appended.
      between: the labels that separate words; if empty, words follow each other directly.
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
    """Return H∘det(L∘G) for CTC, which reads column + 1 per frame and writes words.

    Args:
      columns: number of columns of the posteriors.
      blank: the column of the blank.
      lexicon: from `spelling_transducer`.
      grammar: G over words, whose back-off arcs read `#0`.
      first_label_disambig: labels from this one on are disambiguation symbols.
      first_word_disambig: word ids from this one on are `#0` and the like.
    """
    lg = compose_words(lexicon, grammar, first_label_disambig, first_word_disambig)
    return arc_sort(connect(compose(ctc_topology(columns, blank), lg)))
